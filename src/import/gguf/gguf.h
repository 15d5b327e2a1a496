/* import/gguf/: GGUF files into checkpoints of ours. Other formats get folders beside it.
 *
 * GGUF in: reading a GGUF file and rewriting it as an MLX checkpoint directory (config.json, model.safetensors,
 * tokenizer.json, tokenizer_config.json, chat template). Format: github.com/ggml-org/ggml docs/gguf.md. Q4_K Q5_K Q4_0
 * Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL convert exactly (affine over 32 values), and so does MXFP4 (to MLX's mxfp4); Q6_K to the
 * nearest 8-bit group 32; F32 F16 BF16 stay as they are; any other type is an error that names it. Streams: peak memory
 * about one tensor. */
#pragma once
#include <stdint.h>

#include "base/error.h"

typedef void (*GgufProgress)(void *context, uint64_t done_bytes, uint64_t total_bytes, const char *tensor);

typedef struct GgufOptions {
    bool
        compact; /* for Apus alone: all types but IQ4_NL keep their bits (QUANT_SYMMETRIC, QUANT_K, QUANT_K_SYMMETRIC in
                    tensor.h; Q6_K is exact), which is a third smaller for Q4_K and as much faster to generate with */
    bool replace; /* for caches: a conversion of the file in another state or form, or by another version, is made anew
                   */
    GgufProgress progress; /* may be NULL */
    void *context;
} GgufOptions;

/* directory appears only when whole (written under a temporary name beside it, then renamed); an existing directory is
 * an error unless it is a finished conversion of the same file (then nothing is done) or to be replaced. */
NODISCARD bool gguf_convert(const char *path, const char *directory, const GgufOptions *options, Error *error);
