/* The table of operations that a model runs on, and what it works with.
 *
 * Immediate mode: the decoder calls operations in order; each sees f32 activations in backend memory, row-major
 * [rows, width], and hides dtype and quantisation behind Weight. cpu/ref.c is the specification of every operation; the
 * other backends must equal it within the tolerances of tests/backend. plan.c computes nothing: it checks shapes and
 * counts scratch.
 *
 * Shapes are checked by plan before the first real step, so inside an operation a wrong shape is a bug (CHECK).
 * Operations return nothing; a device fault is sticky and surfaces in sync(). Threads: all calls come from the engine
 * thread.
 *
 * Determinism: on the CPU a row's result depends on nothing but that row, its sequence's cache and the chosen
 * instruction set: not on how many rows share the step, nor on the number of threads. Bit for bit. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "tensor/tensor.h"

/* What every backend computes; plan refuses more. */
enum {
    MATRIX_COLS_MAX = 1 << 18,
    NORM_WIDTH_MAX = 1 << 17,
};

typedef struct Backend Backend;

/* ---- caches ---- */

enum {
    KV_PAGE_TOKENS = 128,
    ATTENTION_HEAD_MAX = 1024, /* largest head_dim and value_dim */
};

/* One attention layer's cache as pages. A page holds KV_PAGE_TOKENS positions of K and V for all kv heads of the layer,
 * at base + table[position / KV_PAGE_TOKENS] · page_stride + layer_offset; its inside belongs to the backend, its size
 * is ops->kv_layer_bytes(). table entries of pages that a window has left are −1 and never read. */
typedef struct KvLayout {
    int kv_heads;
    int head_dim;  /* of K */
    int value_dim; /* of V */
    DType dtype;   /* F16 or BF16; F32 in the exact mode */
} KvLayout;

typedef struct KvLayer {
    KvLayout layout;
    uint8_t *base;
    size_t page_stride;
    size_t layer_offset;
    int group; /* which page table of a run: layers that keep pages alike share one */
} KvLayer;

/* Consecutive rows of a step that belong to one sequence. */
typedef struct Run {
    int row, rows;                /* which rows of the step */
    int position;                 /* of the first row in its sequence */
    const int32_t *const *tables; /* [group][page]: page tables of the sequence, covering position + rows tokens */
} Run;

/* A step: a ragged batch. rows ≤ the backend's rows_max. No padding anywhere. */
typedef struct Step {
    int rows;
    const int32_t *tokens;    /* [rows] */
    const int32_t *positions; /* [rows] */
    int run_count;
    const Run *runs; /* in row order, covering all rows */
} Step;

/* ---- parameters of operations ---- */

typedef enum NormKind { NORM_RMS, NORM_LAYER } NormKind;
typedef struct Norm {
    NormKind kind;
    int64_t width;
    float eps;           /* inside the square root */
    const float *weight; /* [width] f32; NULL: ones. Families that store w−1 have the 1 added at load */
    const float *bias;   /* LAYER only; may be NULL */
} Norm;

typedef enum Activation { ACT_SILU, ACT_GELU, ACT_GELU_TANH, ACT_RELU2, ACT_NONE } Activation;

/* Rotary position embedding. frequencies[i] is the angle per position of pair i; 0 leaves the pair alone. Angles are
 * computed as (float)position × frequency in f32, as mlx does. Only the first dims of a head rotate. */
typedef struct Rope {
    int dims;
    bool interleaved;         /* pairs (2i, 2i+1); otherwise (i, i + dims/2) */
    const float *frequencies; /* [dims/2] */
    float scale;              /* multiplies the rotated values of q and k (yarn, longrope: mscale); 1 otherwise */
} Rope;

enum { MATMUL_MAX = 4 };

/* Several matrices with one input: out[i] = W[i] · norm(x) + bias[i]. Every W[i] has cols = width of x. */
typedef struct Matmul {
    int rows;
    const float *x;   /* [rows, cols] */
    const Norm *norm; /* applied to each row first; NULL: none */
    int count;
    const Weight *weight[MATMUL_MAX];
    float *out[MATMUL_MAX]; /* [rows, weight[i]->rows] */
    bool coarse;            /* 8-bit activations will do, even of a precise backend */
} Matmul;

/* out = act(gate · norm(x)) ∘ (up · norm(x)) */
typedef struct Glu {
    int rows;
    const float *x;
    const Norm *norm;
    const Weight *gate, *up;
    Activation activation;
    float *out; /* [rows, gate->rows] */
} Glu;

/* residual += scale · norm(W · x + bias). norm: of sandwich and post-norm models; NULL: none. */
typedef struct MatmulAdd {
    int rows;
    const float *x;
    const Weight *weight;
    const Norm *norm;
    float scale;
    float *residual; /* [rows, weight->rows] */
} MatmulAdd;

/* For each row: normalise and rotate q and k per head, append k and v to the cache, attend causally.
 * Key j is visible to position i iff j ≤ i and (window == 0 or j > i − window). */
typedef struct Attention {
    int heads; /* of q; a multiple of kv.layout.kv_heads */
    KvLayer kv;
    float scale;                 /* multiplies q·k */
    float softcap;               /* s = cap·tanh(s/cap) before the mask; 0: none */
    int window;                  /* 0: full */
    const Norm *q_norm, *k_norm; /* per head, width = head_dim; NULL: none */
    bool norm_full;              /* the norms run over the whole projection (width = heads·head_dim) instead */
    const Rope *rope;            /* NULL: none */
    const float *sinks;          /* [heads] extra logit in the denominator; NULL: none */
    float *q, *k;                /* [rows, heads·head_dim], [rows, kv_heads·head_dim]; both may be overwritten */
    const float *v;              /* [rows, kv_heads·value_dim] */
    float *out;                  /* [rows, heads·value_dim] */
} Attention;

/* ---- the table ---- */

typedef struct BackendOps {
    const char *name; /* "ref", "avx2", "avx512", "amx", "neon", "plan" */

    /* Memory the backend computes on (zeroed). Only at load, never in a step. */
    void *(*alloc)(Backend *, size_t bytes, Error *);
    void (*release)(Backend *, void *memory);
    /* Bytes that one page of one layer takes. */
    size_t (*kv_layer_bytes)(Backend *, const KvLayout *);
    /* Page tables, positions and row counts of the step that follows. Not reentrant. */
    void (*begin)(Backend *, const Step *);
    /* Waits for the step; false when the device or a mapped file failed in it. */
    bool (*sync)(Backend *, Error *);
    /* Scratch of the current step, released all at once by begin(). plan counts it; the others carve it from one block.
     */
    float *(*scratch)(Backend *, int64_t count);

    /* out[r] = scale · table[tokens[r]] */
    void (*embed)(Backend *, int rows, const int32_t *tokens, const Weight *table, float scale, float *out);
    void (*norm)(Backend *, int rows, const float *x, const Norm *norm, float *out); /* out may be x */
    void (*matmul)(Backend *, const Matmul *);
    void (*glu)(Backend *, const Glu *);
    void (*matmul_add)(Backend *, const MatmulAdd *);
    void (*attention)(Backend *, const Attention *);
    /* out = act(x), elementwise; MLPs without a gate. out may be x */
    void (*activate)(Backend *, int64_t count, const float *x, Activation activation, float *out);
    /* out[i] = x[index[i]] for rows of width floats: the rows whose logits are wanted */
    void (*gather)(Backend *, int count, const int32_t *index, const float *x, int64_t width, float *out);
    /* x = cap·tanh(scale·x/cap); cap 0: x = scale·x */
    void (*logits)(Backend *, int64_t count, float *x, float scale, float cap);
    /* residual += scale · norm(y) */
    void (*add)(Backend *, int rows, int64_t width, float *residual, const float *y, float scale, const Norm *norm);
    void (*close)(Backend *);
} BackendOps;

enum { BACKEND_DESCRIPTION_MAX = 96 };

struct Backend { /* first member of every backend's own struct */
    const BackendOps *ops;
    int rows_max; /* largest step */
    bool exact;   /* f32 throughout: activations are not rounded, KV pages are f32 */
    char description[BACKEND_DESCRIPTION_MAX];
};

typedef struct BackendOptions {
    /* "auto", "ref", "avx2", "avx512", "amx", "neon": one that the machine lacks is an error that says what it has */
    const char *cpu;
    int threads;  /* 0: one per core that this process may use */
    bool precise; /* activations of quantised products as 16 bits instead of 8: slower prompts, errors 250 times smaller
                   */
    bool trace;   /* wrapped by trace.h, to see where the time goes */
    int rows_max;
    size_t scratch_bytes; /* counted by plan */
} BackendOptions;

NODISCARD Backend *backend_open(const BackendOptions *options, Error *error);
NODISCARD Backend *plan_open(int rows_max, Error *error);
/* After a walk of the decoder on plan: bytes of scratch, or false with the first shape error met. */
NODISCARD bool plan_result(Backend *plan, size_t *scratch_bytes, Error *error);
void backend_close(Backend *backend); /* NULL is fine */
/* One line for people: "avx512 (vnni, vbmi), int8 activations, 2 threads". */
const char *backend_describe(const Backend *backend);
