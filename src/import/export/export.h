/* import/export/: a checkpoint, as its publisher or MLX wrote it, as a GGUF file that llama.cpp and Apus read.
 *
 * Names of tensors and keys come from the family's GGUF rows (family/gguf.h), walked backwards. Matrices are in one
 * block type, except routers (F32) and those whose rows do not fill its blocks (F16); vectors are F32. Q8_0, Q4_0 and
 * Q4_K have the bits of llama.cpp's reference quantisers (ggml-quants.c, quantize_row_*_ref). Before the weights are
 * written, the config that the file would give is compared with the source's. Peak memory: about one tensor. */
#pragma once
#include "base/error.h"

#include <stdint.h>

typedef enum ExportType { EXPORT_Q8_0, EXPORT_Q4_0, EXPORT_Q4_K, EXPORT_F16, EXPORT_BF16 } ExportType;

typedef struct ExportOptions {
    ExportType type;
    /* False: stop (ERROR_CANCELLED). Nullable. */
    bool (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes, const char *tensor);
    void *context;
    void (*warn)(void *context, const char *line); /* NULL: warnings are dropped */
} ExportOptions;

/* `source` is a directory. The file `path` must not exist and appears only when it is whole. */
NODISCARD bool gguf_export(const char *source, const char *path, const ExportOptions *options, Error *error);
