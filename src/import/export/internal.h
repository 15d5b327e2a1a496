/* The parts of the export: metadata, tokenizer, block types, the file. */
#pragma once
#include "import/checkpoint/internal.h"
#include "import/export/export.h"
#include "import/gguf/internal.h"

/* A tensor of the file. */
typedef struct ExportTensor {
    const Output *output;
    const char *name; /* in the file */
    GgufChange change;
    uint32_t type;
    int64_t interleaved; /* rows per head whose halves become neighbours; 0: none */
    uint64_t offset, bytes;
} ExportTensor;

typedef struct Export {
    const char *source;
    const ExportOptions *options;
    Arena arena;
    const Json *config;
    const GgufModel *model;
    Plan plan;
    int tensor_count;
    ExportTensor *tensors;
    float *factors[2]; /* rope_freqs, or the long and the short factors, as tensors of their own; NULL: none */
    int64_t factor_count;
    Buffer keys; /* metadata as they are in the file */
    uint64_t key_count;
    Error *error;
} Export;

/* --- blocks.c --------------------------------------------------------------------------------------------------- */

int export_block(uint32_t type); /* elements of a block; plain types: 1 */
/* One row of numbers, a multiple of the block, as the type has it. */
void export_row(uint32_t type, const float *x, int64_t count, uint8_t *out);

/* --- metadata.c ------------------------------------------------------------------------------------------------- */

/* A key that starts with "." belongs to the architecture. */
void export_u32(Export *e, const char *key, uint32_t value);
void export_f32(Export *e, const char *key, float value);
void export_bool(Export *e, const char *key, bool value);
void export_string(Export *e, const char *key, Slice value);
void export_array(Export *e, const char *key, GgufKind kind, uint64_t count); /* its elements follow */
/* The keys of the model, and the rotary embedding's factors. */
NODISCARD bool export_metadata(Export *e);
/* Whether the config that the header of the file `path` gives says what the source's says. */
NODISCARD bool export_check(Export *e, const char *path);

/* --- tokenizer.c ------------------------------------------------------------------------------------------------ */

/* tokenizer.json and its chat template; without that file the GGUF file has no vocabulary, which a warning says. */
NODISCARD bool export_tokenizer(Export *e);

/* --- source.c --------------------------------------------------------------------------------------------------- */

/* A JSON file of the source; NULL: there is none, or *ok is false and the error is set. */
const Json *export_read(Export *e, const char *name, bool *ok);
