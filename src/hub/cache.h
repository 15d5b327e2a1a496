/* The layout of the cache (hub.h): paths, links, refs, locks. */
#pragma once
#include "hub/tree.h"

enum { HUB_COMMIT_DIGITS = 40 };

/* The folder of a repository, as in CACHE/models--org--name. */
void cache_repo(const HubSettings *settings, const char *repo, Buffer *path);
/* The commit that a revision stands for here: itself, or what refs/REVISION says. false: not known here. */
bool cache_commit(const char *repo_folder, const char *revision, char commit[HUB_COMMIT_DIGITS + 1]);
/* refs/REVISION, unless it says so already or the revision is the commit. */
NODISCARD bool cache_ref_write(const char *repo_folder, const char *revision, const char *commit, Error *error);

/* Folders that a download needs and the mark for backup programs. */
NODISCARD bool cache_begin(const HubSettings *settings, const char *repo, const char *repo_folder, Error *error);
/* snapshots/COMMIT/PATH → ../../blobs/ETAG, unless it is there. Where there are no symbolic links the blob moves there.
 */
NODISCARD bool cache_link(const char *repo_folder, const char *commit, const HubFile *file, Error *error);
/* The file is in the snapshot and has its size. */
bool cache_has(const char *repo_folder, const char *commit, const HubFile *file);
/* The blob is there and has the file's size. */
bool cache_has_blob(const char *repo_folder, const HubFile *file);
/* What a snapshot's folder holds, links followed; size -1 for broken ones. Files without etags. */
NODISCARD bool cache_walk(const char *snapshot, HubTree *tree, Error *error);

/* .locks/REPO/ETAG.lock, as huggingface_hub's WeakFileLock takes it. The descriptor; -1: another process has it
 * (*busy), or the error is set. */
int cache_lock(const HubSettings *settings, const char *repo, const char *etag, bool *busy, Error *error);
