/* From what a user calls a model to a checkpoint directory. */
#pragma once
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"

/* MODEL is a directory with config.json, a .gguf file (converted once into the cache, saying so on standard error), a
 * name in the cache, or ORG/NAME on the Hugging Face Hub (fetched once, saying so). Appends the directory's path. */
NODISCARD bool model_resolve(const char *model, Buffer *directory, Error *error);
/* The id to serve it under: the last part of what the user gave, without ".gguf". */
void model_name_of(const char *model, Buffer *name);
/* ${APUS_CACHE}, else ${XDG_CACHE_HOME:-~/.cache}/apus: with /models below it. */
NODISCARD bool models_cache(Buffer *path, Error *error);
/* Beside it, /calibration: what is known of this machine with each model (fit/fit.h). NULL where there is no cache. */
const char *calibrations_path(void);
/* Where the conversion of a .gguf file lies, or would; it holds CONVERSION_SOURCE, the file's full path. */
NODISCARD bool conversion_path(const char *gguf, Buffer *directory, Error *error);
#define CONVERSION_SOURCE "source.txt"
/* Progress of a conversion on standard error: a bar on a terminal, a line per tenth elsewhere. */
void convert_progress(void *context, uint64_t done, uint64_t total, const char *tensor);
