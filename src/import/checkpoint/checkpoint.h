/* import/checkpoint/: a checkpoint as its publisher or MLX wrote it, written anew as mlx_lm.convert writes it.
 *
 * What the model's family reads is written, under the names of MLX's files: experts stacked, parts for which MLX has
 * modules of their own split, in one type of numbers, quantised as mx.quantize does it. Peak memory: about one tensor.
 * Reference: mlx_lm/convert.py, mlx_lm/utils.py (quantize_model, save). */
#pragma once
#include "tensor/quantize.h"

/* False: stop (ERROR_CANCELLED). Bytes of the source's tensors, scales aside; at the end done_bytes is total_bytes. */
typedef bool (*CheckpointProgress)(void *context, uint64_t done_bytes, uint64_t total_bytes, const char *tensor);

typedef enum QuantRecipe { RECIPE_NONE, RECIPE_2_6, RECIPE_3_4, RECIPE_3_6, RECIPE_4_6 } QuantRecipe;

typedef struct CheckpointOptions {
    bool quantize;
    QuantForm form;              /* bits and group of 0: the usual ones of the mode */
    QuantRecipe recipe;          /* mixed bits, affine groups only */
    bool dequantize;             /* not together with quantize */
    bool typed;                  /* numbers are of `dtype`; else as config.json says, or as they are */
    DType dtype;                 /* F32, F16 or BF16 */
    uint64_t shard_bytes;        /* largest size of a file, unless one tensor is larger; 0: 5 GiB */
    CheckpointProgress progress; /* nullable */
    void *context;
    void (*warn)(void *context, const char *line); /* NULL: warnings are dropped */
} CheckpointOptions;

/* `source` is a directory. `directory` must not exist and appears only when whole. */
NODISCARD bool checkpoint_convert(
    const char *source, const char *directory, const CheckpointOptions *options, Error *error);
