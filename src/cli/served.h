/* The models that `apus serve` is given. */
#pragma once
#include "base/buffer.h"
#include "server/server.h"

/* What the user calls models, as directories with names. */
typedef struct Served {
    ModelSource sources[MODELS_MAX];
    Buffer directories[MODELS_MAX], names[MODELS_MAX];
    int count;
} Served;

/* A name, directory or file; it is fetched or converted first where that is needed. name: of the only model; NULL: it
 * is called as its file is. */
NODISCARD bool served_add(Served *served, const char *model, const char *name, Error *error);
/* Each checkpoint and GGUF file of a directory, in the order of their names. They are loaded when they are needed. */
NODISCARD bool served_add_directory(Served *served, const char *path, Error *error);
void served_free(Served *served); /* what it owns, not itself */
