/* Internals of a product (vector_linear.c): prepared activation rows, and pieces of work that threads share. Several
 * products can thus be computed together in one run of the pool (experts_vector.c). */
#pragma once
#include "backend/cpu/cpu.h"

enum {
    PRODUCT_SPACE_BYTES = 96 << 20, /* for prepared rows, at the beginning of CpuBackend.work */
    GROUP_KINDS = 3,                /* activation groups of 16, 32, 64 */
    PRODUCT_WEIGHTS_MAX = 2 * MATMUL_MAX,
};

typedef enum Finish { FINISH_STORE, FINISH_GLU, FINISH_ADD } Finish;

/* An update of low rank, added behind the weight's bias: scale · B · x. */
typedef struct ProductUpdate {
    const Weight *b; /* [rows, rank] in plain values; NULL: the weight has no update */
    const float *x;  /* [rows, rank] */
    float scale;
} ProductUpdate;

/* One operation on some of its activation rows. */
typedef struct Product {
    CpuBackend *cpu;
    const LinearKernels *kernels;
    int rows;
    int64_t cols;
    const float *x;
    int64_t x_stride;    /* floats from row to row of x; 0: cols */
    const int32_t *from; /* [rows] indices of rows of x; NULL: all in order */
    const Norm *norm;    /* applied to each row first; NULL: none */
    int count;           /* weights; GLU: gate and up, or one that is both */
    const Weight *weight[PRODUCT_WEIGHTS_MAX];
    float *out[PRODUCT_WEIGHTS_MAX];
    const ProductUpdate *updates; /* [count] of the weights; NULL: none */
    int64_t out_stride;           /* floats from row to row of out; 0: rows of the weight */
    bool coarse, fine;            /* one line of activations, or two, whatever the backend's precision */
    int one_line;                 /* with two: the first so many weights meet the first line only; of single rows */
    Finish finish;
    Activation activation;
    float scale;            /* ADD */
    const Norm *norm_after; /* ADD */
    float *residual;        /* ADD: out[0] holds the product while a norm is due */
    /* prepared activations: `planes` lines of int8 per row. With two, the second holds the rounding error of the first,
     * which makes the error some 250 times smaller; the results of a row's lines are added. Plain weights know no
     * planes. */
    int planes;
    bool few;
    LinearInput input[GROUP_KINDS];
    int8_t *q[GROUP_KINDS][LAYOUT_COUNT];
    float *scales[GROUP_KINDS], *sums[GROUP_KINDS];
    bool wanted[GROUP_KINDS][LAYOUT_COUNT];
    bool plain_wanted;
    float *plain; /* normalised or gathered rows for plain weights; NULL: x itself */
} Product;

/* Chooses the method for `rows` rows of a product whose operands are set. Returns how many of them can be prepared
 * together.
 */
int product_begin(Product *p, CpuBackend *cpu, int rows);
/* Places the prepared rows at `space` and returns their bytes; NULL: only counts. */
size_t product_place(Product *p, int rows, uint8_t *space);
/* Inside a run of the pool: thread `index` prepares its share of the rows, share number `turn` of count. */
void product_prepare(const Product *p, int index, int turn, int count);
/* Pieces of the product, and how many a thread takes at a time; once all rows are prepared, each can be run. */
int64_t product_items(const Product *p);
int64_t product_grain(const Product *p);
void product_run(const Product *p, int index, int64_t first, int64_t count);
