/* import/gguf/: GGUF files into checkpoints of ours. Other formats get folders beside it.
 *
 * GGUF in: reading a GGUF file and rewriting it as an MLX checkpoint directory (config.json, model.safetensors,
 * tokenizer.json, tokenizer_config.json, chat template). Format: github.com/ggml-org/ggml docs/gguf.md. What each type
 * becomes, exactly or nearly, is in docs/formats.md; any other type is an error that names it. Streams: peak memory
 * about one tensor. */
#pragma once
#include <stdint.h>

#include "base/error.h"

/* False: stop (ERROR_CANCELLED). */
typedef bool (*GgufProgress)(void *context, uint64_t done_bytes, uint64_t total_bytes, const char *tensor);

typedef struct GgufOptions {
    bool compact; /* for Apus alone: scales as the file has them (QUANT_SYMMETRIC, QUANT_K, QUANT_K_SYMMETRIC in
                     tensor.h; Q6_K is exact), which is a third smaller for Q4_K and as much faster to generate with */
    bool replace; /* for caches: a conversion of the file in another state or form, or by another version, is made anew
                   */
    const char *mmproj; /* nullable: the encoder of images. Without it one that lies alone beside the file and fits */
    GgufProgress progress; /* nullable */
    void *context;
} GgufOptions;

/* path: a whole file, or any part of one in several (base/part_name.h), whose others lie beside it.
 * Converts into directory, which appears only when complete (written under a temporary name, then renamed). An existing
 * directory is an error unless it is the finished conversion of this file (nothing is done) or may be replaced. */
NODISCARD bool gguf_convert(const char *path, const char *directory, const GgufOptions *options, Error *error);
