/* The list of local models: those of the hub's cache and of our own, a row each. Threads: any. */
#pragma once
#include <stdint.h>

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"

typedef struct LocalModel {
    const char *name;       /* what serve, run and rm take */
    const char *format;     /* "safetensors", "GGUF", "GGUF, converted" … */
    const char *path;       /* a directory or a .gguf file */
    const char *conversion; /* the directory that serve has made of it, or NULL */
    uint64_t bytes;         /* with its conversion */
    int64_t used_s;         /* Unix time */
    bool hub;               /* in the hub's cache */
} LocalModel;

typedef struct LocalModels {
    Arena arena;
    LocalModel *models;
    size_t count, capacity;
    uint64_t unfinished_bytes; /* bytes of interrupted and running downloads and conversions */
    size_t unfinished;
} LocalModels;

/* Appends the id under which the model is served: the last part of its name. */
void local_id(const LocalModel *model, Buffer *id);
NODISCARD bool local_list(LocalModels *models, Error *error);
void local_free(LocalModels *models);
/* Appends the path of the local model of that name: a directory or a .gguf file. ERROR_NOT_FOUND. */
NODISCARD bool local_find(const char *name, Buffer *path, Error *error);
/* Removes a model with its conversion and what interrupted downloads left: a name of the list, of an unfinished one, or
 * ORG/NAME for all that is here of a repository. *freed_bytes grows by the freed bytes. ERROR_NOT_FOUND: no such model.
 */
NODISCARD bool local_remove(const LocalModels *models, const char *name, uint64_t *freed_bytes, Error *error);
