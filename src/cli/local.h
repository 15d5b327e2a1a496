/* The models that are here: those of the hub's cache and those of our own, a row each. */
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

NODISCARD bool local_list(LocalModels *models, Error *error);
void local_free(LocalModels *models);
/* Removes a directory of plain files; *freed grows by what that frees. Absent: true. */
NODISCARD bool local_remove_directory(const char *path, uint64_t *freed_bytes, Error *error);
