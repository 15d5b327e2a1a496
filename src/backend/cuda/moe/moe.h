/* backend/cuda/moe/: routers, experts, and the MoE block of decode rows as one. This header: functions that host code
 * calls, as runtime/runtime.h says. */
#pragma once
#include <cuda_runtime_api.h>
#include <stdint.h>

#include "backend/cuda/gemm/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- routers ---- */

/* Routing (backend.h). */
typedef struct Router {
    int rows, experts, top_k;
    const float *logits;
    int score; /* RouteScore */
    const float *bias;
    int groups, topk_group, group_best, norm_topk_prob;
    float jitter_eps, epsilon, scale;
    int shared;
    const float *shared_logits;
    int shared_pair;
    const float *expert_scale; /* NULL: none */
    const float *table;        /* NULL: the scores decide; rows_route() alone */
    const int32_t *tokens;     /* [rows]; with `table`: as those of rows_embed() */
    const int32_t *sampled;
    int32_t *index;
    float *weight;
} Router;
cudaError_t rows_route(cudaStream_t stream, const Router *router);
/* out[r] = Σ weight[r, i] · y[place[r, i]] in the order of i. place NULL: r · top_k + i; weight NULL: ones. */
cudaError_t rows_combine(cudaStream_t stream, int rows, int top_k, int64_t width, const float *y, const int32_t *place,
    const float *weight, float *out);
/* y[place[p]] = weight[p] · x[p / top_k] for each pair p of a row and one of its experts. place NULL: p; weight NULL:
 * ones. */
cudaError_t rows_weigh(cudaStream_t stream, int pairs, int top_k, int64_t width, const float *x, const int32_t *place,
    const float *weight, float *y);

/* ---- experts ----
 * A pair is a row and one of its experts. A bank is one of the matrices gate, up or down of all experts. */

/* Pairs, at most, that moe_gemv takes; it reads the choice on the device. */
enum { EXPERT_PAIRS_MAX = 512 };

/* out[pair] = W · x[pair / each], W the matrix of the pair's expert; two banks: act(gate · x) ∘ (up · x); twice: the
 * same of one bank. All matrices of a bank are packed alike and may differ in rows and columns. */
typedef struct ExpertProduct {
    int pairs, each, kind;
    int tile_rows, groups; /* tile rows and groups of the largest matrix */
    const Tiles *bank[2];  /* [experts] device memory; bank[1] NULL: one bank */
    int experts;           /* pairs with larger numbers have no matrix and are left out */
    const int32_t *index;  /* [pairs] experts */
    const int32_t *chunks; /* from experts_sort(); NULL: each pair alone */
    const float *x;
    float *out;
    int64_t x_width, out_width; /* floats from one row of x, one pair of out, to the next */
    bool twice;                 /* the bank is gate and up */
    Activation activation;
    int multiprocessors, shared_bytes;
} ExpertProduct;
/* Sorted pairs: the count of chunks; from CHUNKS_AT on {expert, first, count} for each chunk; then the pairs in order.
 */
enum { CHUNKS_AT = 4, CHUNK_INTS = 3 };
size_t experts_chunk_ints(int pairs);
cudaError_t experts_sort(cudaStream_t stream, int pairs, int experts, const int32_t *index, int32_t *chunks);
cudaError_t experts_product(cudaStream_t stream, const ExpertProduct *product);
/* True if experts_product() takes matrices of `groups` groups of columns. */
int experts_fit(int groups, int shared_bytes);

/* ---- the MoE block of decode rows (fused_moe.cu) ----
 * The inputs of a row travel between these kernels as the integers of gemm_int.cuh. */

/* Bytes of a row's inputs. */
size_t moe_input_bytes(int64_t cols);
/* Whether moe_product() takes banks packed like `most`. gated: the product of gate and up. */
int moe_fits(const Tiles *most, int gated, int shared_bytes);
/* Tiles of a tile row that are in shared memory together. Not monotonic in the width. */
int moe_round(int groups);

typedef struct MoeRouter {
    int rows, width;
    const float *x;       /* [rows, width] */
    RowNorm norm;         /* applied to x; width 0: none */
    const float *weights; /* weights of the router's own norm, an RMS norm like `norm`; NULL: `norm`'s */
    Tiles weight, shared; /* the router, and that of the shared expert; shared.rows 0: none */
    Router route;         /* shared_logits: not NULL where there are such; logits are not read */
    uint8_t *inputs;      /* [rows] result: inputs of the expert products */
    float *found;         /* [rows, moe_router_floats()] result: partial sums of the logits */
    float *factors;       /* [rows] result of moe_choose(): the norm's factor, applied behind the products */
} MoeRouter;
size_t moe_router_floats(const MoeRouter *router);
cudaError_t moe_route(cudaStream_t stream, const MoeRouter *router);
/* Chooses the experts of more rows than fused_moe_row takes, which chooses by itself. Followed by experts_sort(). */
cudaError_t moe_choose(cudaStream_t stream, const MoeRouter *router);

/* As ExpertProduct; bank[1] may be bank[0], which is read once. `most`: the packing of the banks, with the most rows
 * and columns of any matrix. */
typedef struct MoeProduct {
    int pairs, each, experts;
    Tiles most;
    const Tiles *bank[2];
    const int32_t *chunks; /* NULL: fused_moe_row, which chooses the experts by itself */
    MoeRouter router;      /* fused_moe_row */
    const float *factors;  /* fused_moe: [pairs / each] factors of the inputs; NULL: 1 */
    const uint8_t *x;      /* [pairs / each] inputs */
    uint8_t *inputs;       /* gated: [pairs] result: inputs of the next product */
    float *out;            /* not gated: [pairs, rows] result */
    Activation activation;
    int multiprocessors, shared_bytes;
    int rows_each; /* fused_moe_row: most rows of any matrix but that of the shared expert */
    int leaves;    /* bytes of a multiprocessor's shared memory that the next kernel needs */
} MoeProduct;
cudaError_t moe_product(cudaStream_t stream, const MoeProduct *product);

/* out[r] = Σ weight[r, i] · (matrix of expert index[r, i] · x[r, i]) in the order of i, or residual += scale · that
 * sum. Runs behind moe_product(), which runs behind moe_route(). */
typedef struct MoeSum {
    int rows, top_k, experts;
    Tiles most;
    const Tiles *bank;
    MoeRouter router;
    const uint8_t *x;      /* [rows, top_k] inputs */
    float *out, *residual; /* one of the two; the other is NULL */
    float scale;
    int shared_bytes;
} MoeSum;
/* Bytes of shared memory that a block takes; 0: moe_sum() does not take it. */
int moe_sum_bytes(const MoeSum *sum);
cudaError_t moe_sum(cudaStream_t stream, const MoeSum *sum);
/* The same sum over products y [rows, top_k, width] that have been computed. */
cudaError_t moe_combine(cudaStream_t stream, int rows, int top_k, int64_t width, const float *y, const float *weight,
    float *out, float *residual, float scale);

#ifdef __cplusplus
}
#endif
