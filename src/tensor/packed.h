/* Matrices as quantising programs pack them, other than MLX: AutoAWQ, GPTQ, AutoRound, compressed-tensors, NVIDIA's
 * ModelOpt, blocks of FP8, MXFP8, MXFP4 and NVFP4. Each becomes a form that a Weight has, without loss: w = scale ·
 * (code − zero) are affine groups, whose biases −zero · scale are exact in f32, if not in the type of the scales;
 * ternary matrices and MX formats stay that; NVFP4 does where the factor of the whole matrix can go into its scales.
 * FP8, other NVFP4, groups of odd sizes and columns in another order (act-order) become plain numbers, rounded once, as
 * the programs themselves compute them. Sources: AutoAWQ (awq/utils/packing_utils.py), GPTQModel (nn_modules/qlinear),
 * compressed-tensors (compressors), ModelOpt (torch/quantization/qtensor/nvfp4_tensor.py), AutoRound
 * (export/export_to_autoround), transformers (integrations/finegrained_fp8.py, mxfp4.py, bitnet.py). Threads: any. */
#pragma once
#include "tensor/tensor.h"

typedef enum PackedKind {
    PACKED_AWQ,     /* codes [cols, rows · 4 / 32], scales [groups, rows], zeros packed as the codes */
    PACKED_GPTQ,    /* codes [cols · bits / 32, rows], scales [groups, rows], zeros [groups, rows · bits / 32] */
    PACKED_WORDS,   /* compressed-tensors: codes [rows, cols · bits / 32], scales [rows, groups] */
    PACKED_BYTES,   /* signed bytes [rows, cols], scales [rows, groups] */
    PACKED_TERNARY, /* BitNet: −1, 0 and 1 as 0 … 2, [rows / 4, cols]: bits 2i of byte r are row r + i · rows / 4 */
    PACKED_FP8,     /* E4M3 [rows, cols], one scale for each block of rows and columns, a float or E8M0 */
    PACKED_MXFP4, /* E2M1 [rows, cols / 32, 16 bytes] or [rows, cols / 2], E8M0 [rows, cols / 32]: rows as they are, or
                     every other one */
    PACKED_NVFP4, /* E2M1 [rows, cols / 2], E4M3 [rows, cols / 16], and a factor of the whole matrix */
} PackedKind;

typedef struct PackedMatrix {
    PackedKind kind;
    int64_t rows, cols;
    int bits;            /* integers only */
    int64_t group;       /* columns that share a scale; cols: all of a row */
    int64_t block_rows;  /* FP8: rows that share a scale */
    bool zeros_less_one; /* GPTQ: zeros are stored minus 1 */
    bool inverse_scale;  /* ternary: the scale divides; NVFP4: the factor does */
    bool for_file;       /* the form must be one of MLX's, since it is written to a file */
    int64_t first_row;   /* row i of the form is row first_row + i of the tensors; MXFP4: first_row + i · row_step */
    int64_t row_step;    /* MXFP4 only */
    Tensor data, scales;
    Tensor factor;   /* NVFP4: one number */
    Tensor zeros;    /* rank 0: all zeros are 2^(bits − 1) */
    Tensor group_of; /* I32 [cols]: the group of each column; rank 0: they lie in order */
    Weight form;     /* what it becomes; without data */
} PackedMatrix;

/* Checks the tensors' shapes and types and chooses the form. False: the error says what is wrong, without a name. */
NODISCARD bool packed_check(PackedMatrix *packed, Error *error);
/* A copy that has only these rows. */
PackedMatrix packed_rows(const PackedMatrix *packed, int64_t first, int64_t count);
/* Rows [first, first + count) of the form: codes or plain numbers, scales and biases, each as the form has them. scales
 * and biases: NULL where the form has none. */
NODISCARD bool packed_read(const PackedMatrix *packed, int64_t first, int64_t count, uint8_t *data, uint8_t *scales,
    uint8_t *biases, Error *error);
