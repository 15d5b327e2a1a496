/* backend/cpu/linear/: products of weights with activation rows: the order of the arithmetic, and the kernels that
 * follow it.
 *
 * The result for one row of weights and one row of activations is the same, bit for bit, whichever kernel computes it,
 * with however many other rows and threads: so this is the definition, and linear_spec_*() is it in plain C.
 *
 * Quantised weights (all but mxfp8) are codes c ≥ 0 with w = s·c + b per group. Activations are quantised to
 * int8 per activation group of linear_group(w) values: d = max|x| / 127, q = round(x · (127 / max|x|)), z = d · Σq.
 * Groups g = 0, 1, … of a row: lane j of 16 takes those with g mod 16 = j, in increasing order, each as
 *     I = Σ c·q (an exact integer);   acc[j] = fma(s·d, (float)I, acc[j]);   acc[j] = fma(b, z, acc[j])
 * and the lanes are added as a tree of halves: j + (j+8), then j + (j+4), j + (j+2), j + (j+1). b·z uses the sum of the
 * quantised values, so the result is the exact weights times the rounded activations.
 *
 * Ternary weights are w = s·(c − 1) with one s: no weight is multiplied. I adds each activation no time, once or twice,
 * as the dot products of bytes do that (VPDPBUSD, VPMADDUBSW, SDOT), and b·z = −s·z takes the sum of all once. A row of
 * weights is 2 bits a column and its scale.
 *
 * Plain weights and mxfp8: f32 activations; lane j of 16 takes the columns with k mod 16 = j, acc[j] = fma(w, x,
 * acc[j]) with w exact in f32; the same tree. mxfp8 scales its groups of 32, two columns of a lane, as a whole: with h
 * = element / 256, acc[j] = fma(256 · scale, fma(h', x', h · x), acc[j]). */
#pragma once
#include "tensor/tensor.h"

enum {
    LINEAR_LANES = 16,
    LINEAR_FEW = 24,        /* most activation rows of one call of any few() */
    LINEAR_PANEL_ROWS = 32, /* most weight rows of a panel */
    LINEAR_TILE_ROWS = 6,   /* most activation rows of a tile in registers */
};

/* Memory layout of a row of int8 activations. Kernels choose the layout that matches the bits of their weights. */
typedef enum LinearLayout {
    LAYOUT_NATURAL, /* in order */
    LAYOUT_PLANES2, /* per 2 vectors of elements: the even ones, then the odd ones */
    LAYOUT_PLANES4, /* per 4 vectors: elements 4i, 4i+1, 4i+2, 4i+3 */
    LAYOUT_EIGHTS2, /* per 2 vectors: of each 16 elements the first 8, then the others */
    LAYOUT_PAIRS4,  /* per 4 vectors: of each 32 elements the even, the odd ones of the first 16, of the others */
    LAYOUT_GROUPS1, /* as the codes of a few groups lie after transpose_groups(), dword 0 of each first */
    LAYOUT_GROUPS2, /* the same where a dword of the weights holds two planes of codes: the even ones of the 8, the odd
                       ones */
    LAYOUT_GROUPS4, /* four planes */
    LAYOUT_PANEL,   /* groups in the order of the tree's leaves; in each 8 elements the even, then the odd ones; rows
                       together in tiles: [row / tile_rows][element / 4][row % tile_rows][4], with row_groups
                       [row / tile_rows][group][row % tile_rows][element] */
    LAYOUT_COUNT
} LinearLayout;

/* Quantised activation rows. Every row is padded with zeros to a multiple of 16 groups, scales and sums too. */
typedef struct LinearInput {
    int64_t cols;                  /* without the padding */
    int group;                     /* activation group: 16, 32, 64 */
    int64_t stride;                /* values from row to row in q: cols rounded up to 16 groups, or more */
    const int8_t *q[LAYOUT_COUNT]; /* NULL: not made */
    const float *scales, *sums;    /* d and z, [rows][stride / group]; with q[LAYOUT_PANEL] in the order of the groups
                                      there,    [row / tile_rows][group][row % tile_rows] */
} LinearInput;

/* Some rows of weights unpacked: bytes [group][group/4][rows][4], scales and biases [group][rows], groups in panel
 * order. */
typedef struct LinearPanel {
    int64_t groups;
    int group;
    int code_max; /* linear_code_max() of the weight */
    uint8_t *codes;
    float *scales, *biases;
} LinearPanel;

typedef struct LinearKernels {
    /* One row: q in natural order, scales, sums; the padding too. */
    void (*quantise)(const float *x, int64_t cols, int group, int8_t *q, float *scales, float *sums);
    /* A row from natural to another order. LAYOUT_PANEL: out is where the row begins in its tile. */
    void (*arrange)(LinearLayout layout, const int8_t *q, int64_t cols, int group, int8_t *out);
    /* y[t·stride + r] = product of weight row first+r (r < count) with activation row t < rows ≤ LINEAR_FEW. */
    /* ≤ LINEAR_FEW; up to so many rows few() is at least as fast as panels, for activation groups of 64, and for
     * narrower ones, whose panels take longer to unpack. */
    int few_rows, few_rows_narrow;
    void (*few)(
        const Weight *w, int64_t first, int64_t count, const LinearInput *x, int rows, float *y, int64_t stride);
    LinearLayout (*layout)(const Weight *w, int rows); /* layout that few() reads */
    int panel_rows, tile_rows;                         /* panel_rows ≤ LINEAR_PANEL_ROWS */
    bool row_groups;                                   /* LAYOUT_PANEL has row_groups */
    bool many_tiles;                                   /* tile() takes any number of rows from the first of a tile */
    int64_t chunk_bytes; /* bytes of activations per panel, which stay in cache as well; 0: no limit */
    /* Unpacks panel_rows weight rows from first; past the last row of w, copies of that one. */
    void (*unpack)(const Weight *w, int64_t first, LinearPanel *panel);
    /* y[t·panel_rows + r] for activation rows first … first+rows−1 of a tile; or of several, see many_tiles. */
    void (*tile)(const LinearPanel *panel, const LinearInput *x, int64_t first, int rows, float *y);
    /* Plain weights and mxfp8, any number of activation rows: y[t·stride + r]. */
    void (*plain)(const Weight *w, int64_t first, int64_t count, const float *x, int64_t x_stride, int64_t rows,
        float *y, int64_t stride);
} LinearKernels;

extern const LinearKernels linear_kernels_avx2, linear_kernels_avx512, linear_kernels_amx, linear_kernels_neon;

/* True if products with w use int8 activations. */
static inline bool linear_is_integer(const Weight *w) { return w->quant != QUANT_NONE && w->quant != QUANT_MXFP8; }
/* The activation group of an integer weight: 16, 32 or 64. */
static inline int linear_group(const Weight *w) { return w->group > 64 ? 64 : w->group; }
static inline int64_t linear_stride(int64_t cols, int group) {
    int64_t block = (int64_t)group * LINEAR_LANES;
    return (cols + block - 1) / block * block;
}
/* Where group g of count stands in panel order: groups of lane 0, then of 8, 4, 12, 2, …; linear_leaf: a lane's turn.
 */
static inline int linear_leaf(int lane) {
    return (lane & 1) << 3 | (lane & 2) << 1 | (lane & 4) >> 1 | (lane & 8) >> 3;
}
int64_t linear_panel_place(int64_t group, int64_t count);
/* Scale and bias of an activation group of a row, as f32: affine as weight_scale() says; mxfp4 and nvfp4 with codes
 * 2·value + 12. */
void linear_scale(const Weight *w, int64_t row, int64_t group, float *scale, float *bias);
int linear_code_max(const Weight *w);

/* The definition in plain C. */
void linear_spec_quantise(const float *x, int64_t cols, int group, int8_t *q, float *scales, float *sums);
float linear_spec_integer(const Weight *w, int64_t row, const int8_t *q, const float *scales, const float *sums);
float linear_spec_plain(const Weight *w, int64_t row, const float *x);
