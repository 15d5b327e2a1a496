/* Files of a repository into its cache: several at once and several ranges of each, until all are there and their
 * hashes are right. */
#pragma once
#include "hub/cache.h"
#include "hub/http.h"

typedef struct DownloadJob {
    const HubName *name;
    const char *commit, *repo_folder;
    const HubFile **files; /* whose blobs are missing, each etag once */
    size_t count;
} DownloadJob;

/* What has arrived stays when it fails. client->progress counts bytes and files. */
NODISCARD bool download_run(HttpClient *client, const DownloadJob *job, Error *error);
