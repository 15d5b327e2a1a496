/* The kernels of backend/cuda as the host side calls them. Each function enqueues work on a stream and returns CUDA's
 * error code for that. Pointers are device memory unless named otherwise, borrowed until the work has ended. The
 * operations are specified in cpu/ref. Thread: that of the backend. */
#pragma once
#include <cuda_runtime_api.h>
#include <stdint.h>

#include "backend/backend.h"
#include "backend/cuda/dispatch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- weights as tiles ----
 * A tile is 16 rows × 64 columns in the lane order of mma.m16n8k16: lane 4g + t holds rows g and g + 8 of columns 16t …
 * 16t + 15. The weight codes come first, as planes of 8, 4, 2 or 1 bits for the whole tile, then f16 pairs {scale,
 * bias} for each row and group of columns. A matrix is [rows/16][cols/64] tiles; elements beyond its edges are zero.
 * The numbers of a tile row are stored times a power of two, so that they use the range of f16; `factors` undoes it. */
enum { TILE_ROWS = 16, TILE_COLS = 64 };
typedef struct Tiles {
    const uint8_t *data;
    const float *factors; /* [rows/16] factor of a sum */
    const float *bias;    /* [rows] the layer's bias; NULL: none */
    int rows, cols;       /* elements */
    int groups;           /* tiles of a tile row */
    int kind;             /* TileKind */
    int subs;             /* groups of scales in 64 columns: 1, 2 or 4; 0: no scales */
    int bytes;            /* bytes of a tile */
} Tiles;

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

/* ---- the numbers of a step ---- */

/* Copies host[*turn % 2], which is pinned host memory, to `device` and increments *turn. The first integer is the
 * count, a multiple of four. device: at least STEP_INTS_LEAST integers. */
enum { STEP_INTS_LEAST = 1 << 14 };
cudaError_t step_bring(cudaStream_t stream, int32_t *const host[2], int32_t *device, int32_t *turn);

/* ---- rows ---- */

typedef struct RowNorm {
    int kind; /* NormKind */
    int64_t width;
    float eps;
    const float *weight, *bias;
} RowNorm;

cudaError_t rows_norm(cudaStream_t stream, int rows, const float *x, const RowNorm *norm, float *out);
/* residual += scale · norm(y); norm NULL: none. */
cudaError_t rows_add(
    cudaStream_t stream, int rows, int64_t width, float *residual, const float *y, float scale, const RowNorm *norm);
cudaError_t rows_activate(cudaStream_t stream, int64_t count, const float *x, const Activation *activation, float *out);
cudaError_t rows_multiply(cudaStream_t stream, const Multiply *op);
/* positions: on the device, of the rows. */
cudaError_t rows_scale_queries(
    cudaStream_t stream, int rows, int64_t width, const QueryScaling *scaling, const int32_t *positions, float *x);
/* gate = act(gate) ∘ up. */
cudaError_t rows_gate(cudaStream_t stream, int64_t count, float *gate, const float *up, int activation);
/* x = x · sigmoid(gate). */
cudaError_t rows_sigmoid(cudaStream_t stream, int64_t count, float *x, const float *gate);
/* Copies `count` floats of each row; the rows begin from_width and to_width floats apart. */
cudaError_t rows_copy(
    cudaStream_t stream, int rows, const float *from, int64_t from_width, float *to, int64_t to_width, int64_t count);
cudaError_t rows_logits(cudaStream_t stream, int64_t count, float *x, float scale, float cap);
cudaError_t rows_gather(
    cudaStream_t stream, int count, const int32_t *index, const float *x, int64_t width, float *out);
/* Token −1: the row of `out` stays as it is. Token −2 − i: sampled[i]. placeholder: Embed. */
cudaError_t rows_embed(cudaStream_t stream, int rows, const int32_t *tokens, const int32_t *sampled, const Tiles *table,
    float scale, bool placeholder, float *out);

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
    int32_t *index;
    float *weight;
} Router;
cudaError_t rows_route(cudaStream_t stream, const Router *router);
/* out[r] = Σ weight[r, i] · y[place[r, i]] in the order of i. place NULL: r · used + i. */
cudaError_t rows_combine(cudaStream_t stream, int rows, int top_k, int64_t width, const float *y, const int32_t *place,
    const float *weight, float *out);

/* ---- products ---- */

enum { PRODUCTS_MAX = 4, FEW_ROWS_MAX = 8, GENERATED_MAX = 32, PRODUCT_PARTIAL_BYTES = 32 << 20 };
/* Widths of gated products that can leave their result as f16 inputs of the next product: multiples of HANDED_COLS, at
 * most HANDED_COLS_MAX. */
enum { HANDED_COLS = 64, HANDED_COLS_MAX = 16384 };
/* Tensor parallelism: where two GPUs exchange the terms of a sum (tensor_parallel.cu). */
enum {
    PART_WORD_ROWS = 8,   /* rows of a sum, at most, that travel as words with a mark in each */
    PART_SUMS_MAX = 1024, /* sums of a step, at most */
};
typedef struct PartPlace {
    uint8_t *mine;         /* memory here that the other GPU writes */
    uint8_t *theirs;       /* memory there that this GPU writes; NULL: there is no other GPU */
    int64_t slot_bytes;    /* bytes of one of the slots in either */
    const int32_t *ticket; /* number of the step, the same on both GPUs */
    int number;            /* number of the sum in the step */
    int index;             /* rank of this GPU: 0 or 1 */
    int *lost, *lost_host; /* set to 1, for good, when the other GPU does not answer: on the device, and pinned */
} PartPlace;
typedef enum ProductMode { PRODUCT_STORE, PRODUCT_ADD, PRODUCT_GLU } ProductMode;

/* A product of up to PRODUCTS_MAX weights with one input. Fields marked "in, out" are changed by product_run(). */
typedef struct Product {
    int rows, cols;
    int decode_rows;     /* 1: every row is a decode row, at most GENERATED_MAX (gemm_int.cuh); 0: none is */
    int sliced;          /* 1: sums in the uniform order: rows of one expert, or Step.uniform_matmul */
    const float *x;      /* [rows, cols] */
    const RowNorm *norm; /* applied to x; NULL: none */
    int mode;  /* ProductMode. GLU: weight 0 is the gate, weight 1 is up, out[0] the result. ADD: one weight */
    int count; /* weights */
    Tiles weight[PRODUCTS_MAX];
    float *out[PRODUCTS_MAX];
    float scale;       /* ADD: out += scale · product */
    int activation;    /* GLU: Activation */
    void *inputs;      /* work space of product_input_bytes(rows_max, cols) */
    int apart;         /* 1: the kernel that follows has few blocks, which need room beside the blocks of this one */
    int mixed;         /* 1: the model has MoE blocks (fused_moe_row.cuh) */
    float *copy;       /* in, out; a second destination of the result; NULL afterwards: it was not written */
    PartPlace part;    /* in, out; STORE, ADD: exchange with the other GPU; theirs NULL afterwards: it was not done */
    int handed;        /* in, out; 1: `inputs` holds x already, as the gated product before left it */
    int hands;         /* in, out; GLU, 1: leave the result in `inputs` as well; 0 afterwards: it was not left */
    const Tiles *then; /* GLU: weight of the product that alone reads the result; NULL: any operation may */
    int passed;        /* out of GLU: the result is the inputs of that product, not floats; in of ADD and STORE: x is */
    int multiprocessors;
    int shared_bytes; /* shared memory that a block may use */
    int wide;         /* 1: the device is ARCH_SM90A */
    float *partials;  /* wide: work space of PRODUCT_PARTIAL_BYTES */
} Product;

size_t product_input_bytes(int rows, int64_t cols);
cudaError_t product_run(cudaStream_t stream, Product *product);
/* Whether a gemv kernel takes the product in one launch: only then `copy` and `part` are heeded. */
int product_is_few(const Product *product);

/* ---- sums over two GPUs (tensor_parallel.cu) ---- */

typedef struct RankExchange {
    float *terms;    /* the terms of this GPU; replaced by the sum where residual is NULL */
    float *residual; /* += scale · sum; NULL: none */
    float scale;
    int64_t count; /* floats */
    PartPlace place;
    int64_t marks_offset, data_offset; /* in a slot */
} RankExchange;
/* Bytes of a slot in PartPlace.mine; fills in the offsets of `places`. */
int64_t parts_slot_bytes(int rows_max, int64_t width, RankExchange *places);
cudaError_t parts_sum(cudaStream_t stream, int rows, const RankExchange *exchange);

/* ---- experts ----
 * A pair is a row and one of its experts. A bank is one of the matrices gate, up or down of all experts. */

/* Pairs, at most, that moe_gemv takes; it reads the choice on the device. */
enum { EXPERT_PAIRS_MAX = 512 };

/* out[pair] = W · x[pair / each], W the matrix of the pair's expert; two banks: act(gate · x) ∘ (up · x). All matrices
 * of a bank are packed alike and may differ in rows and columns. */
typedef struct ExpertProduct {
    int pairs, each, kind;
    int tile_rows, groups; /* tile rows and groups of the largest matrix */
    const Tiles *bank[2];  /* [experts] device memory; bank[1] NULL: one bank */
    const int32_t *index;  /* [pairs] experts */
    const int32_t *chunks; /* from experts_sort(); NULL: each pair alone */
    const float *x;
    float *out;
    int64_t x_width, out_width; /* floats from one row of x, one pair of out, to the next */
    int activation;
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

/* As ExpertProduct. `most`: the packing of the banks, with the most rows and columns of any matrix. */
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
    int activation;
    int multiprocessors, shared_bytes;
    int leaves; /* bytes of a multiprocessor's shared memory that the next kernel needs */
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

/* ---- attention ----
 * A run is the rows of one sequence in the step; a short run has less than ATTENTION_LONG_RUN rows. */

/* The rows of a step, in device memory. */
typedef struct StepRows {
    const int32_t *positions;               /* [position_dims][rows] RoPE positions */
    const int32_t *places;                  /* [rows] position in the cache */
    const int32_t *chunks;                  /* [rows] number of the run, which is that of its page table */
    const int32_t *span_begins, *span_ends; /* [rows] bidirectional span of the row; begin ≥ end: none */
    const int32_t *run_rows, *run_offsets;  /* [rows] rows of the run; rows of it before this one */
    int rows, position_dims;
} StepRows;

/* Rope (backend.h). */
typedef struct RopeParams {
    int dims; /* 0: no RoPE */
    int interleaved;
    const float *frequencies;
    float scale;
    int mrope_section[3];
    int mrope_interleaved;
    int dynamic_positions;
    float dynamic_theta, dynamic_factor;
} RopeParams;

/* Attention (backend.h), and the part of the step that a call computes. */
typedef struct Attend {
    StepRows step;
    int first_row, rows; /* rows of the step that the call computes */
    int decode_rows;     /* rows of the step, the first ones, that flash_decode takes */
    int heads, kv_heads, head_dim, value_dim, dtype;
    float scale, softcap;
    int window;
    RowNorm q_norm, k_norm; /* width 0: none */
    int norm_full, norm_last;
    float *whole; /* norm_full: [rows][4] mean and factor of the norms of q and k, from attention_norms(); NULL: the
                     kernel computes the factors of its single row, both norms being RMS */
    RopeParams rope;
    const float *sinks; /* [heads] logit of the sink; NULL: none */
    float *q;
    const float *k, *v;    /* NULL: in the pages already */
    const float *q_latent; /* MLA; NULL: scores are q·k alone */
    float *out;
    uint8_t *pages;        /* with the layer's offset */
    int64_t page_stride;   /* bytes */
    const int32_t *tables; /* [runs][table_stride] page tables */
    int table_stride;
    int spans, slices;  /* spans of ATTENTION_SPAN and slices of ATTENTION_SLICE tokens that the longest row sees */
    int short_runs;     /* 1: the step may have short runs */
    int long_runs;      /* number of long runs in the step */
    int chunks;         /* runs of the step, at most */
    int single_rows;    /* 1: every run is one row that sees no later one */
    int shared_bytes;   /* shared memory that a block may use */
    int wide;           /* 1: the device is ARCH_SM90A */
    float *partials;    /* work space, as the *_floats() and *_bytes() of a kernel say */
    int prepared;       /* 1: attention_prepare() has run; 0: every run is one decode row, which the kernel prepares */
    unsigned *arrivals; /* decode rows: GENERATED_ARRIVALS counters; zero before and after the call */
} Attend;

enum { ATTENTION_SPAN = 256, ATTENTION_SLICE = 64, ATTENTION_LONG_RUN = 4 };
/* norm_full: fills Attend.whole; before all other kernels of the layer. */
cudaError_t attention_norms(cudaStream_t stream, const Attend *attend);
/* Steps of one row for each sequence: whether one kernel prepares, appends and attends, and that kernel. */
int attention_rows_fit(const Attend *attend);
cudaError_t attention_rows(cudaStream_t stream, const Attend *attend);
int attention_cluster_fits(const Attend *attend);
cudaError_t attention_cluster(cudaStream_t stream, const Attend *attend);
/* Applies norms and RoPE to q and k, and appends k and v to the pages. */
cudaError_t attention_prepare(cudaStream_t stream, const Attend *attend);
/* Prepared rows first_row … first_row + rows − 1. Tiles: short runs by flash_decode_split, long ones by
 * flash_prefill_mma. Generic: any type and width. *_floats(): floats of `partials` per row and head. */
int attention_tiles_fit(const Attend *attend);
int attention_tile_floats(const Attend *attend);
cudaError_t attention_tiles(cudaStream_t stream, const Attend *attend);
int attention_generic_floats(const Attend *attend);
cudaError_t attention_generic(cudaStream_t stream, const Attend *attend);

/* flash_decode: decode rows first_row … first_row + rows − 1, at most ATTENTION_GENERATED_ROWS. Whether it takes the
 * layer; floats of `partials` for a row. */
enum { ATTENTION_GENERATED_ROWS = 64, GENERATED_ARRIVALS = 1 << 16 };
/* Pages of one row up to which flash_decode has so few blocks that all are resident before their queries are computed.
 */
enum { ATTENTION_FEW_PAGES = 16 };
int attention_generated_fits(const Attend *attend);
size_t attention_generated_floats(const Attend *attend);
cudaError_t attention_generated(cudaStream_t stream, const Attend *attend);

/* flash_prefill_wgmma: all rows behind the decode rows, of layers that attention_generated_fits(). Bytes of `partials`.
 */
size_t attention_prompt_bytes(const Attend *attend);
cudaError_t attention_prompt(cudaStream_t stream, const Attend *attend);

/* ---- quantised pages ---- */

enum { CODE_FORMS = 6 /* KV_FORMS */, CODE_DIM_MAX = 256, CODE_JOBS_MAX = 64 };

/* Levels of every form, four to a word. KV_Q8 has none: its codes are the levels. */
typedef struct CodeBooks {
    uint32_t words[CODE_FORMS][16];
} CodeBooks;
/* Boundaries between the non-negative levels of every form. */
typedef struct CodeEdges {
    float edge[CODE_FORMS][31];
} CodeEdges;

/* The rotation R of kv_quant.h. */
typedef struct Rotation {
    int d;
    const float *matrix; /* [d][d]; NULL where d is a power of two: signs and a Hadamard transform */
    uint32_t signs[2][CODE_DIM_MAX / 32];
} Rotation;

/* A layer, for quantisation and calibration. */
typedef struct CodeLayer {
    int kv_heads, head_dim, value_dim, dtype;
    int k_group, v_group; /* dims that share a scale */
    const float *bias;    /* [kv_heads · head_dim]; NULL: none */
    RopeParams rope;
} CodeLayer;

/* A page to quantise or to calibrate with. The fields behind `position` are for quantisation. */
typedef struct CodeJob {
    CodeLayer layer;
    const uint8_t *from;        /* the full-precision page of the layer */
    int position;               /* position of the page's first token */
    uint8_t *k_to, *v_to;       /* quantised pages */
    int k_form, v_form;         /* KvForm */
    int rotation_k, rotation_v; /* indices into `rotations` */
    const uint64_t *pairs;      /* [kv_heads] RoPE pairs whose bias is taken out */
} CodeJob;

/* Bytes of a head's keys or values in a quantised page. */
size_t code_head_bytes(int d, int group, int form, int values);
/* jobs, rotations: device memory. heads: the largest number of kv heads of any job. */
cudaError_t codes_encode(cudaStream_t stream, const CodeJob *jobs, int count, int heads, int dims,
    const Rotation *rotations, const CodeBooks *books, const CodeEdges *edges);
/* out [count][heads][3]: for a page, Σ |k − mean k|², Σ |k|² and Σ of the queries' energies, with biases taken out. */
cudaError_t codes_survey(cudaStream_t stream, const CodeJob *jobs, int count, int heads, double *out);

/* Rows that see quantised pages, beside Attend. */
typedef struct AttendCodes {
    const int32_t *ends, *sinks; /* [rows] of the step: tokens sink … end − 1 are seen quantised; end 0: none */
    const int32_t *records; /* [runs][record_ints] of the layer: forms of k and v, pairs of each head, page tables */
    int record_ints, heads, table_stride;
    int four;             /* 1: every form is KV_Q4 */
    int k_group, v_group; /* dims that share a scale */
    const uint8_t *k_base[CODE_FORMS], *v_base[CODE_FORMS];
    int64_t k_stride[CODE_FORMS], v_stride[CODE_FORMS];
    const float *bias; /* [kv_heads · head_dim] key biases that were taken out; NULL: none */
    RopeParams rope;   /* RoPE of the bias */
    Rotation k_rotation, v_rotation;
    CodeBooks books;
    int exact;        /* full-precision slices that a row sees, at most */
    int pages;        /* quantised pages that a row of a short run sees, at most */
    uint8_t *queries; /* [rows][heads] of code_query_bytes(): rotated and quantised queries */
    float *folded;    /* [rows][heads][value_dim + 2] partial results of long runs */
} AttendCodes;
/* Whether kvq_decode and kvq_prefill, which multiply integers, take the layer; otherwise kvq_generic does. */
int attention_codes_fast(const Attend *attend);
size_t code_query_bytes(const Attend *attend);
/* Floats of Attend.partials for a row and head. */
size_t code_part_floats(const Attend *attend, const AttendCodes *codes);
/* In this order: queries once; long runs as a whole; rows first_row … first_row + rows − 1. */
cudaError_t attention_codes_queries(cudaStream_t stream, const Attend *attend, const AttendCodes *codes);
cudaError_t attention_codes_runs(cudaStream_t stream, const Attend *attend, const AttendCodes *codes);
cudaError_t attention_codes_rows(cudaStream_t stream, const Attend *attend, const AttendCodes *codes);

/* flash_decode_kvq4: as flash_decode, for decode rows whose pages are all KV_Q4; other rows stay as they are. */
int attention_generated_codes_fits(const Attend *attend, const AttendCodes *codes);
size_t attention_generated_codes_floats(const Attend *attend, const AttendCodes *codes);
cudaError_t attention_generated_codes(cudaStream_t stream, const Attend *attend, const AttendCodes *codes);

/* ---- the rest ---- */

/* Copies tokens of a page to (in 0) or from (in 1) canonical order. bytes: of an element. */
cudaError_t page_transfer(cudaStream_t stream, uint8_t *page, uint8_t *canonical, int tokens, int kv_heads,
    int head_dim, int value_dim, int bytes, int in);

/* Reads zeroed memory, for a measurement; up to 16 bytes at its end are left out. */
cudaError_t limits_read(cudaStream_t stream, void *memory, size_t bytes, int multiprocessors);

/* Whether the library was compiled with kernels for sm_90a. */
int kernels_have_wide(void);
/* Once per device, before other kernels. yes: kernels may begin before their predecessor has ended. */
void kernels_begin_early(int yes);

#ifdef __cplusplus
}
#endif
