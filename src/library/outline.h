/* The headers of models, of those too that are not on this machine: what a plan of memory and speed reads. */
#pragma once
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"

typedef struct ModelOutline {
    Buffer directory;    /* a checkpoint directory, or an outline of one (hub_outline()); empty: a GGUF file */
    uint64_t gguf_bytes; /* size of a GGUF file that was not converted; 0: there is a directory */
    bool local;          /* the model is on this machine */
} ModelOutline;

/* model: a name as library_resolve() takes it, but no path. ask_hub: a model that is not here is looked for on the hub,
 * and its outline is kept for a day; otherwise ERROR_NOT_FOUND. Nothing is downloaded but headers. */
NODISCARD bool outline_find(const char *model, bool ask_hub, ModelOutline *out, Error *error);
void outline_free(ModelOutline *outline);
