/* backend/cuda/gemm/: products with weights. dispatch.h has the table of their kernels; gemm.cu prepares the inputs and
 * calls one. This header: functions that host code and the other folders call, as runtime/runtime.h says. */
#pragma once
#include <cuda_runtime_api.h>
#include <stdint.h>

#include "backend/cuda/dispatch.h"
#include "backend/cuda/runtime/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- weights as tiles ----
 * A tile is 16 rows × 64 columns in the lane order of mma.m16n8k16: lane 4g + t holds rows g and g + 8 of columns 16t …
 * 16t + 15. The weight codes come first, as planes of 8, 4, 2 or 1 bits for the whole tile, then f16 pairs {scale,
 * bias} for each row and group of columns. A matrix is [rows/16][cols/64] tiles; elements beyond its edges are zero.
 * The numbers of a tile row are stored times a power of two, so that they use the range of f16; `factors` undoes it. */
enum { TILE_ROWS = 16, TILE_COLS = 64 };
struct Tiles {
    const uint8_t *data;
    const float *factors; /* [rows/16] factor of a sum */
    const float *bias;    /* [rows] the layer's bias; NULL: none */
    int rows, cols;       /* elements */
    int groups;           /* tiles of a tile row */
    int kind;             /* TileKind */
    int subs;             /* groups of scales in 64 columns: 1, 2 or 4; 0: no scales */
    int bytes;            /* bytes of a tile */
};

/* Rows of a weight in the file's layout; the integers are those of Weight. */
typedef struct RawRows {
    const uint8_t *data, *scales, *biases;
    int64_t row_bytes, scale_bytes;
    int rows, cols, quant, bits, group, dtype;
} RawRows;

/* Bytes of the weight codes of a tile, without scales. */
int tile_code_bytes(int kind);
/* data, factors: destination of the first row. rows: a multiple of TILE_ROWS, except at the end of the matrix. */
cudaError_t tiles_pack(cudaStream_t stream, const RawRows *raw, const Tiles *tiles, uint8_t *data, float *factors);

/* ---- products ---- */

enum { PRODUCTS_MAX = 6, GEMV_ROWS_MAX = 8, DECODE_ROWS_MAX = 32, PRODUCT_PARTIAL_BYTES = 32 << 20 };
/* Widths of gated products that can leave their result as f16 inputs of the next product: multiples of HANDED_COLS, at
 * most HANDED_COLS_MAX. */
enum { HANDED_COLS = 64, HANDED_COLS_MAX = 16384 };

typedef enum ProductMode { PRODUCT_STORE, PRODUCT_ADD, PRODUCT_GLU } ProductMode;

/* What other kernels need beside a gemv. */
typedef enum ProductRoom {
    ROOM_ANY,
    ROOM_APART, /* the kernel that follows has few blocks, which need room beside the blocks of this one */
    ROOM_HALF,  /* another stream's kernels need half of each multiprocessor */
} ProductRoom;

/* A product of up to PRODUCTS_MAX weights with one input. Fields marked "in, out" are changed by product_run(). */
typedef struct Product {
    int rows, cols;
    int decode_rows;     /* 1: every row is a decode row, at most DECODE_ROWS_MAX (gemm_int.cuh); 0: none is */
    int sliced;          /* 1: sums in the uniform order: rows of one expert, or Step.uniform_matmul */
    const float *x;      /* [rows, cols] */
    const RowNorm *norm; /* applied to x; NULL: none */
    int mode;  /* ProductMode. GLU: weight 0 is the gate, weight 1 is up, out[0] the result. ADD: one weight */
    int count; /* weights */
    Tiles weight[PRODUCTS_MAX];
    float *out[PRODUCTS_MAX];
    float scale;           /* ADD: out += scale · product */
    Activation activation; /* GLU */
    void *inputs;          /* work space of product_input_bytes(rows_max, cols) */
    int room;              /* ProductRoom */
    int has_moe;           /* 1: the model has MoE blocks (fused_moe_row.cuh) */
    float *copy;           /* in, out; a second destination of the result; NULL afterwards: it was not written */
    RankPlace rank;    /* in, out; STORE, ADD: exchange with the other GPU; theirs NULL afterwards: it was not done */
    int handed;        /* in, out; 1: `inputs` holds x already, as the gated product before left it */
    int hands;         /* in, out; GLU, 1: leave the result in `inputs` as well; 0 afterwards: it was not left */
    const Tiles *then; /* GLU: weight of the product that alone reads the result; NULL: any operation may */
    int passed;        /* out of GLU: the result is the inputs of that product, not floats; in of ADD and STORE: x is */
    int multiprocessors;
    int shared_bytes; /* shared memory that a block may use */
    int sm90a;        /* 1: the device is ARCH_SM90A */
    float *partials;  /* sm90a: work space of PRODUCT_PARTIAL_BYTES */
} Product;

size_t product_input_bytes(int rows, int64_t cols);
cudaError_t product_run(cudaStream_t stream, Product *product);
/* Whether a gemv kernel takes the product in one launch: only then `copy` and `rank` are heeded. */
int product_is_gemv(const Product *product);

/* Whether the library was compiled with kernels for sm_90a. */
int kernels_have_sm90a(void);

#ifdef __cplusplus
}
#endif
