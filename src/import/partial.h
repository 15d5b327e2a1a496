/* import/: files of other formats into checkpoints of ours: gguf/ GGUF files, checkpoint/ publishers' checkpoints.
 *
 * A directory that appears only when it is whole: built as DIRECTORY.partial, held by a lock on that directory, and
 * renamed at the end. A process that dies leaves the partial one, which the next process clears. Threads: any. */
#pragma once
#include <stdbool.h>

#include "base/error.h"

enum { PARTIAL_PATH_MAX = 4096 };

typedef struct PartialNames {
    char directory[PARTIAL_PATH_MAX], partial[PARTIAL_PATH_MAX + 16]; /* without slashes at the end */
} PartialNames;

NODISCARD bool partial_names(PartialNames *names, const char *directory, Error *error);
/* The partial directory, made if need be and locked; -1 with the error set. same: false: another process renamed it
 * while this one waited, so that the lock (or -1) is worth nothing and the caller tries again. */
int partial_lock(const char *partial, bool *same, Error *error);
void partial_clear(const char *directory);  /* removes its files; only plain files are ever written there */
void partial_remove(const char *directory); /* and the directory */
void partial_sync_parent(const char *path); /* the directory's new name is on the disk */

typedef bool PartialBuild(void *context, const char *partial, Error *error);
/* All of it: `build` writes the files. A directory that exists is an error; after one nothing is left. */
NODISCARD bool partial_build(const char *directory, PartialBuild *build, void *context, Error *error);
