/* library/: the models of this machine: names, paths, downloads, conversions, removal. Nothing here prints: progress
 * goes to a callback. Knows the hub's cache (hub/) and the conversion of GGUF files (import/), no requests and no
 * terminal.
 *
 * Names of models as users write them, resolved to checkpoint directories. Threads: any. */
#pragma once
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"
#include "hub/hub.h"

typedef enum LibraryStage { LIBRARY_DOWNLOAD, LIBRARY_CONVERSION } LibraryStage;

/* Callbacks while a model is downloaded or converted, on the calling thread. Strings are borrowed for the call. */
typedef struct LibraryWatch {
    /* A download of a repository from an endpoint (NULL: offline), or a conversion of a file into a directory, which
     * exists if there is a conversion already. NULL: not called. */
    void (*begin)(void *context, LibraryStage stage, const char *from, const char *to);
    /* Several times a second. False: stop (ERROR_CANCELLED). NULL: not called. */
    bool (*download)(void *context, const HubProgress *progress);
    /* Bytes of the GGUF file. False: stop (ERROR_CANCELLED). NULL: not called. */
    bool (*conversion)(void *context, uint64_t done_bytes, uint64_t total_bytes);
    /* After each begin. stale: why the cache was used instead of the hub; NULL: it was not. NULL: not called. */
    void (*end)(void *context, LibraryStage stage, const Error *stale);
    void *context;
} LibraryWatch;

/* Appends the path of the checkpoint directory of `model`: a directory with config.json, a .gguf file (converted once
 * into the cache), a name in the cache, or ORG/NAME on the hub (downloaded once). watch: NULL: none. */
NODISCARD bool library_resolve(const char *model, const LibraryWatch *watch, Buffer *directory, Error *error);
/* Appends the path of a checkpoint directory or a .gguf file. update: false: a complete model in the cache is used
 * without asking the hub. watch: NULL: none. */
NODISCARD bool library_fetch(const HubName *name, bool update, const LibraryWatch *watch, Buffer *path, Error *error);
/* The id under which `model` is served: its last part, without ".gguf" and "-00001-of-00002.gguf". Appended. */
void library_name_of(const char *model, Buffer *name);

/* Appends the directory of our models: ${APUS_CACHE}/models, else ${XDG_CACHE_HOME:-~/.cache}/apus/models. */
NODISCARD bool library_path(Buffer *path, Error *error);
/* The directory of calibrations (fit/fit.h) beside it. NULL: no cache. Not owned; the next call writes it anew. */
const char *library_calibrations(void);
/* Bytes of a .gguf file, which may be part of a model, in all its parts. */
uint64_t library_gguf_bytes(const char *path);
/* Appends the directory of a .gguf file's conversion, whether it exists or not. Parts of a model have one. */
NODISCARD bool library_conversion(const char *gguf, Buffer *directory, Error *error);
/* File in a conversion with the full path of its .gguf file. */
#define CONVERSION_SOURCE "source.txt"
