/* import/: files of other formats into checkpoints of ours: gguf/ GGUF files, checkpoint/ publishers' checkpoints;
 * export/ writes GGUF files.
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
/* Creates the partial directory if needed and locks it; −1: error is set. *same false: another process renamed it
 * meanwhile, so the descriptor (or −1) is void and the caller tries again. */
int partial_lock(const char *partial, bool *same, Error *error);
void partial_clear(const char *directory);  /* removes its files; only plain files are ever written there */
void partial_remove(const char *directory); /* and the directory */
void partial_sync_parent(const char *path); /* the directory's new name is on the disk */

typedef bool PartialBuild(void *context, const char *partial, Error *error);
/* Builds a whole directory: `build` writes the files. An existing directory is an error; after an error nothing is
 * left. */
NODISCARD bool partial_build(const char *directory, PartialBuild *build, void *context, Error *error);
