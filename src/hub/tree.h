/* What a commit holds: from the hub, from trees/COMMIT.json, or, when neither is there, from a snapshot's folder. */
#pragma once
#include "hub/http.h"
#include "hub/name.h"

typedef struct HubFile {
    const char *path; /* checked by hub_path_valid */
    const char *etag; /* sha256 (64 digits) of large files, else git's sha1 (40): the blob's name. NULL: not known */
    const char *oid;  /* git's sha1, of large files that of the pointer in their place */
    const char *xet;  /* NULL: none */
    int64_t size, listed_size; /* listed_size: what the list says of a large file beside its own size */
} HubFile;

typedef struct HubTree {
    Arena arena;
    HubFile *files; /* by path, bytewise */
    size_t count, capacity;
    size_t skipped; /* files of a folder whose names are not supported */
} HubTree;

void tree_free(HubTree *tree);
/* size is -1 where it is not known. */
NODISCARD bool tree_add(HubTree *tree, const HubFile *file, Error *error);
void tree_sort(HubTree *tree);
const HubFile *tree_find(const HubTree *tree, Slice path); /* the tree must be sorted; NULL: no such file */

/* The files of a page of the hub's answer (GET /api/models/…/tree/…). */
NODISCARD bool tree_add_page(HubTree *tree, Slice text, Error *error);
/* From the hub, page by page. */
NODISCARD bool tree_fetch(HttpClient *client, const HubName *name, const char *commit, HubTree *tree, Error *error);
/* trees/COMMIT.json as huggingface_hub writes it (_tree_cache.py). */
NODISCARD bool tree_read(const char *path, HubTree *tree, Error *error);
NODISCARD bool tree_write(const char *path, const HubTree *tree, Error *error);
