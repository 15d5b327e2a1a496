/* What the host side of this folder asks of its kernels. Each function enqueues work on a stream and gives what CUDA
 * said to that; pointers are the device's unless named otherwise. The meaning of every operation is cpu/ref.c's. */
#pragma once
#include <cuda_runtime_api.h>
#include <stdint.h>

#include "backend/cuda/dispatch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- weights as tiles ----
 * A tile is 16 rows × 64 columns in the order in which a warp's lanes feed mma.m16n8k16: lane 4g + t holds rows g and
 * g + 8 of columns 16t … 16t + 15. Its codes come first, as planes of 8, 4, 2 or 1 bits for the whole tile, then f16
 * pairs {scale, bias} of each row and group of columns. A matrix is [rows/16][cols/64] of them; what lies beyond its
 * edges is zero. A tile row's numbers are kept times a power of two, `factors`, that uses the range of f16. */
enum { TILE_ROWS = 16, TILE_COLS = 64 };
typedef struct Tiles {
    const uint8_t *data;
    const float *factors; /* [rows/16] what a sum is multiplied by */
    const float *bias;    /* [rows] of the layer, or NULL */
    int rows, cols, groups, kind;
    int subs;  /* groups of scales in the 64 columns: 1, 2 or 4; 0: plain */
    int bytes; /* of a tile */
} Tiles;

/* Rows of a weight as the file has them, on the device. */
typedef struct RawRows {
    const uint8_t *data, *scales, *biases;
    int64_t row_bytes, scale_bytes;
    int rows, cols, quant, bits, group, dtype; /* as in Weight */
} RawRows;

/* Code bytes of a tile of this kind, without scales. */
int tile_code_bytes(int kind);
/* tiles: where the first of these rows lies; a whole tile's rows but at the matrix's end. */
cudaError_t tiles_pack(cudaStream_t stream, const RawRows *raw, const Tiles *tiles, uint8_t *data, float *factors);

/* ---- a step's numbers ---- */

/* From host[*turn % 2], pinned, to the device, and *turn + 1. The first number says how many there are, a multiple of
 * four; there is room for STEP_INTS_LEAST. */
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
/* norm NULL: none */
cudaError_t rows_add(
    cudaStream_t stream, int rows, int64_t width, float *residual, const float *y, float scale, const RowNorm *norm);
cudaError_t rows_activate(cudaStream_t stream, int64_t count, const float *x, int activation, float *out);
/* gate = act(gate) ∘ up */
cudaError_t rows_gate(cudaStream_t stream, int64_t count, float *gate, const float *up, int activation);
/* x /= 1 + e^−gate */
cudaError_t rows_sigmoid(cudaStream_t stream, int64_t count, float *x, const float *gate);
/* count floats of every row, rows from_width and to_width apart */
cudaError_t rows_copy(
    cudaStream_t stream, int rows, const float *from, int64_t from_width, float *to, int64_t to_width, int64_t count);
cudaError_t rows_logits(cudaStream_t stream, int64_t count, float *x, float scale, float cap);
cudaError_t rows_gather(
    cudaStream_t stream, int count, const int32_t *index, const float *x, int64_t width, float *out);
/* a token of −1 is left to others, −2 − i is drawn[i] */
cudaError_t rows_embed(cudaStream_t stream, int rows, const int32_t *tokens, const int32_t *sampled, const Tiles *table,
    float scale, float *out);

typedef struct Router { /* Routing */
    int rows, experts, used;
    const float *logits;
    int score; /* RouteScore */
    const float *bias;
    int groups, topk_group, group_best, norm_topk_prob;
    float jitter_eps, epsilon, scale;
    int shared;
    const float *shared_logits;
    int shared_pair;
    int32_t *index;
    float *weight;
} Router;
cudaError_t rows_route(cudaStream_t stream, const Router *router);
/* out[r] = Σ weight[r, i] · y[place[r, i]] in the order of i; place NULL: r · used + i */
cudaError_t rows_combine(cudaStream_t stream, int rows, int used, int64_t width, const float *y, const int32_t *place,
    const float *weight, float *out);

/* ---- products ---- */

enum { PRODUCTS_MAX = 4, FEW_ROWS_MAX = 8, GENERATED_MAX = 32, PRODUCT_PARTIAL_BYTES = 32 << 20 };
/* A gated product can leave its result as f16 for the next one to begin with: widths that are multiples, at most so
 * many. */
enum { HANDED_COLS = 64, HANDED_COLS_MAX = 16384 };
/* Where two GPUs exchange the terms of a sum (tensor_parallel.cu). */
enum { PART_WORD_ROWS = 8, PART_SUMS_MAX = 1024 /* in a step */ };
typedef struct PartPlace {
    uint8_t *mine, *theirs; /* what the other writes, and where it reads; NULL: there is no other */
    int64_t slot_bytes;     /* of one of the places there */
    const int32_t *ticket;  /* the step's number, the same on both */
    int number, index;      /* which sum of the step, which of the two this is */
    int *lost, *lost_host;  /* set, for good, when the other did not answer */
} PartPlace;
typedef enum ProductMode { PRODUCT_STORE, PRODUCT_ADD, PRODUCT_GLU } ProductMode;

typedef struct Product {
    int rows, cols;
    int decode_rows; /* 1: these rows lie behind their prompts' ends (gemm_int.cuh), at most GENERATED_MAX; 0: none does
                      */
    int sliced;      /* the order of sums is moe_gemv.cu's, whatever the rows: an expert's, or of Step.many */
    const float *x;  /* [rows, cols] */
    const RowNorm *norm;
    int mode, count; /* GLU: weight 0 is the gate, 1 is up, out[0] takes the result. ADD: one weight */
    Tiles weight[PRODUCTS_MAX];
    float *out[PRODUCTS_MAX];
    float scale; /* ADD: out += scale · product */
    int activation;
    void *inputs;      /* room for product_input_bytes(rows_max, cols) */
    const float *soon; /* the weights of the norm that reads the result next, so many; NULL: not known */
    int soon_count;
    int apart;      /* few rows, several weights: what comes next has few blocks, which shall find room beside these */
    int mixed;      /* a row of a model that has mixtures (fused_moe_row.cuh) */
    float *copy;    /* few rows: where the result goes as well; NULL: nowhere, or afterwards: it did not */
    PartPlace part; /* STORE and ADD, few rows, one weight: the product is one of two GPUs' terms; theirs NULL: it is
                       whole, or afterwards: it was not summed */
    int handed;     /* inputs has x as f16 already, as a gated product left it */
    int hands;      /* GLU: it shall; 0 afterwards if it did not */
    const Tiles *then; /* GLU: of the product that alone reads the result; NULL: others may */
    int passed; /* GLU, afterwards: the result is there as that product's inputs, not as floats. ADD, STORE: x is */
    int multiprocessors;
    int shared_bytes; /* that a block may have */
    int wide;         /* whether the device is one that gemm_wgmma.cu is for */
    float *partials;  /* wide: PRODUCT_PARTIAL_BYTES */
} Product;

size_t product_input_bytes(int rows, int64_t cols);
cudaError_t product_run(cudaStream_t stream, Product *product);
/* Whether so many rows go the way of a few. */
int product_is_few(const Product *product);

/* ---- sums over two GPUs (tensor_parallel.cu) ---- */

typedef struct RankExchange {
    float *terms;    /* this one's; become the sum where there is no residual */
    float *residual; /* += scale · sum */
    float scale;
    int64_t count;
    PartPlace place;
    int64_t marks_offset, data_offset;
} RankExchange;
/* Of one of the places in `mine`; fills in the offsets. */
int64_t parts_slot_bytes(int rows_max, int64_t width, RankExchange *places);
cudaError_t parts_sum(cudaStream_t stream, int rows, const RankExchange *exchange);

/* ---- experts ---- */

/* Pairs of a row and one of its experts that go through kernels which read the choice themselves. */
enum { EXPERT_PAIRS_MAX = 512 };

/* out[pair] = matrix of the pair's expert · x[pair / each]; of two banks: act(gate · x) ∘ (up · x). Matrices of a bank
 * are packed alike and may differ in rows and columns. */
typedef struct ExpertProduct {
    int pairs, each, kind;
    int tile_rows, groups; /* of the largest */
    const Tiles *bank[2];  /* [experts], on the device; 1: up, or NULL */
    const int32_t *index;  /* [pairs] */
    const int32_t *chunks; /* as experts_sort() left it; NULL: each pair alone */
    const float *x;
    float *out;
    int64_t x_width, out_width; /* of a row of x, of a pair in out */
    int activation;
    int multiprocessors, shared_bytes;
} ExpertProduct;
/* What sorting leaves: how many chunks; from CHUNKS_AT on expert, first and count of each; then pairs in that order. */
enum { CHUNKS_AT = 4, CHUNK_INTS = 3 };
size_t experts_chunk_ints(int pairs);
cudaError_t experts_sort(cudaStream_t stream, int pairs, int experts, const int32_t *index, int32_t *chunks);
cudaError_t experts_product(cudaStream_t stream, const ExpertProduct *product);
/* Whether matrices of so many groups of columns can go that way. */
int experts_fit(int groups, int shared_bytes);

/* ---- mixtures of generated rows (fused_moe.cu) ----
 * A row's inputs pass between these as the whole numbers that gemm_int.cuh makes of them. */

size_t moe_input_bytes(int64_t cols); /* of a row */
/* Whether banks packed like this go this way; gated: of the first product. */
int moe_fits(const Tiles *most, int gated, int shared_bytes);
/* Tiles of a tile row that lie in shared memory together; not the more the wider the matrix is. */
int moe_round(int groups);

/* What rows' experts are chosen by, and what these read. */
typedef struct MoeRouter {
    int rows, width;
    const float *x;
    RowNorm norm;         /* width 0: none */
    Tiles weight, shared; /* shared.rows 0: there is none */
    Router route;         /* no logits are read; shared_logits: whether there are any */
    uint8_t *inputs;      /* [rows] */
    float *found;         /* [rows] of moe_router_floats(): sums that logits are made of */
    float *factors;       /* [rows], many rows: of the norm, which comes behind products */
} MoeRouter;
size_t moe_router_floats(const MoeRouter *router);
cudaError_t moe_route(cudaStream_t stream, const MoeRouter *router);
/* The choice, of many rows, before these are sorted. Few rows' products make it by themselves. */
cudaError_t moe_choose(cudaStream_t stream, const MoeRouter *router);

/* As ExpertProduct, of banks that are packed like `most`, which has the most rows and columns of them. */
typedef struct MoeProduct {
    int pairs, each, experts;
    Tiles most;
    const Tiles *bank[2];
    const int32_t *chunks; /* NULL: few rows, whose choice is made here */
    MoeRouter router;      /* few rows */
    const float *factors;  /* many rows: of [pairs / each] inputs; NULL: 1 */
    const uint8_t *x;      /* [pairs / each] inputs */
    uint8_t *inputs;       /* gated: [pairs] for the next product */
    float *out;            /* otherwise: [pairs, rows] */
    int activation;
    int multiprocessors, shared_bytes;
    int leaves; /* so much of the latter to the next kernel */
} MoeProduct;
cudaError_t moe_product(cudaStream_t stream, const MoeProduct *product);

/* out[r] = Σ weight[r, i] · (matrix of expert index[r, i] · x[r, i]) in the order of i, or residual += scale · that. Of
 * few rows: each reads its experts' matrices by itself. The kernel before is moe_product()'s, the one before that
 * moe_route()'s. */
typedef struct MoeSum {
    int rows, used, experts;
    Tiles most;
    const Tiles *bank;
    MoeRouter router;
    const uint8_t *x;      /* [rows, used] inputs */
    float *out, *residual; /* one of them */
    float scale;
    int shared_bytes;
} MoeSum;
/* Of shared memory that a block takes; 0: it does not fit. */
int moe_sum_bytes(const MoeSum *sum);
cudaError_t moe_sum(cudaStream_t stream, const MoeSum *sum);
/* The same of results that are there, y[r, i]. */
cudaError_t moe_combine(cudaStream_t stream, int rows, int used, int64_t width, const float *y, const float *weight,
    float *out, float *residual, float scale);

/* ---- attention ---- */

/* Of a step, one entry per row. */
typedef struct StepRows {
    const int32_t *positions; /* [axes][rows] */
    const int32_t *places;    /* [rows] in the cache */
    const int32_t *chunks;    /* [rows] whose page table */
    const int32_t *span_begins, *span_ends;
    const int32_t *run_rows, *run_offsets; /* how long the row's run is, how many of its rows are before */
    int rows, position_dims;
} StepRows;

typedef struct RopeParams { /* Rope */
    int dims;               /* 0: none */
    int interleaved;
    const float *frequencies;
    float scale;
    int mrope_section[3];
    int dynamic_positions;
    float dynamic_theta, dynamic_factor;
} RopeParams;

typedef struct Attend {
    StepRows step;
    int first_row, rows; /* which of the step */
    int decode_rows;     /* so many rows of the step have kernels of their own */
    int heads, kv_heads, head_dim, value_dim, dtype;
    float scale, softcap;
    int window;
    RowNorm q_norm, k_norm; /* width 0: none */
    int norm_full, norm_last;
    float *whole; /* [rows][4] norm_full: mean and factor of q's and of k's norm; NULL: both are RMS, kernels of
                     generated rows that come alone find their factors out */
    RopeParams rope;
    const float *sinks;
    float *q;
    const float *k, *v;    /* NULL: appended already */
    const float *q_latent; /* NULL: scores are q·k alone */
    float *out;
    uint8_t *pages;
    int64_t page_stride;   /* pages includes the layer's offset */
    const int32_t *tables; /* [runs][table_stride] */
    int table_stride;
    int spans, slices;  /* of ATTENTION_SPAN and ATTENTION_SLICE tokens that the longest row may see */
    int short_runs;     /* whether the step may have such */
    int long_runs;      /* how many it has */
    int chunks;         /* of the step, at most */
    int single_rows;    /* every run is one row, which sees no later ones */
    int shared_bytes;   /* that a block may have */
    int wide;           /* whether the device is one that flash_prefill_wgmma.cu is for */
    float *partials;    /* [rows] of attention_part_floats() a head */
    int prepared;       /* for generated rows: attention_prepare() was before; else every run is one row */
    unsigned *arrivals; /* for generated rows: GENERATED_ARRIVALS zeros, which are so again afterwards */
} Attend;

enum { ATTENTION_SPAN = 256, ATTENTION_SLICE = 64, ATTENTION_LONG_RUN = 4 };
/* Of norm_full: `whole`. Before what follows. */
cudaError_t attention_norms(cudaStream_t stream, const Attend *attend);
/* Steps of one row for each sequence: whether one kernel prepares, appends and attends, and that kernel. */
int attention_rows_fit(const Attend *attend);
cudaError_t attention_rows(cudaStream_t stream, const Attend *attend);
int attention_cluster_fits(const Attend *attend);
cudaError_t attention_cluster(cudaStream_t stream, const Attend *attend);
/* q and k normed and turned, k and v in their pages. */
cudaError_t attention_prepare(cudaStream_t stream, const Attend *attend);
/* Prepared rows first_row … of the step, those that are generated left out; floats of partial results that a row needs
 * for each head. Tiles: short runs by flash_decode_split, long ones by flash_prefill_mma. Generic: any type and width.
 */
int attention_tiles_fit(const Attend *attend);
int attention_tile_floats(const Attend *attend);
cudaError_t attention_tiles(cudaStream_t stream, const Attend *attend);
int attention_generic_floats(const Attend *attend);
cudaError_t attention_generic(cudaStream_t stream, const Attend *attend);

/* Generated rows, first_row … first_row + rows − 1 of the step, at most ATTENTION_GENERATED_ROWS, whatever else is in
 * it: whether there are kernels of their own for the layer; floats of partials that a row needs; those. */
enum { ATTENTION_GENERATED_ROWS = 64, GENERATED_ARRIVALS = 1 << 16 };
/* Up to so many pages of one row it has few blocks, which are there before their queries are. */
enum { ATTENTION_FEW_PAGES = 16 };
int attention_generated_fits(const Attend *attend);
size_t attention_generated_floats(const Attend *attend);
cudaError_t attention_generated(cudaStream_t stream, const Attend *attend);

/* All rows behind those, of layers that attention_generated_fits(): bytes of partials that the step needs; the kernel.
 */
size_t attention_prompt_bytes(const Attend *attend);
cudaError_t attention_prompt(cudaStream_t stream, const Attend *attend);

/* ---- coded pages ---- */

enum { CODE_FORMS = 6 /* KV_FORMS */, CODE_DIM_MAX = 256, CODE_JOBS_MAX = 64 };

/* Levels of every form, four to a word, and what lies between those of its positive half. CODE8 counts itself. */
typedef struct CodeBooks {
    uint32_t words[CODE_FORMS][16];
} CodeBooks;
typedef struct CodeEdges {
    float edge[CODE_FORMS][31];
} CodeEdges;

/* R of kv_quant.h: signs as bits, or the matrix itself where d is no power of two. */
typedef struct Rotation {
    int d;
    const float *matrix; /* [d][d] */
    uint32_t signs[2][CODE_DIM_MAX / 32];
} Rotation;

/* Of a layer, what coding and a survey need. */
typedef struct CodeLayer {
    int kv_heads, head_dim, value_dim, dtype;
    int k_group, v_group; /* dims that share a scale */
    const float *bias;    /* [kv_heads · head_dim] or NULL */
    RopeParams rope;
} CodeLayer;

typedef struct CodeJob {
    CodeLayer layer;
    const uint8_t *from; /* the exact page of the layer */
    int position;        /* of its first token */
    /* Coding: */
    uint8_t *k_to, *v_to;
    int k_form, v_form;
    int rotation_k, rotation_v; /* which */
    const uint64_t *pairs;      /* [kv_heads] */
} CodeJob;

size_t code_head_bytes(int d, int group, int form, int values);
/* jobs and rotations: on the device. heads: of any layer. */
cudaError_t codes_encode(cudaStream_t stream, const CodeJob *jobs, int count, int heads, int dims,
    const Rotation *rotations, const CodeBooks *books, const CodeEdges *edges);
/* out [count][heads][3]: of a page, the sums of |k − its page's mean|², of |k|², and of the queries' energies, after
 * every pair of a bias is out. */
cudaError_t codes_survey(cudaStream_t stream, const CodeJob *jobs, int count, int heads, double *out);

/* What attention needs beside Attend where rows see codes. */
typedef struct AttendCodes {
    const int32_t *ends, *sinks; /* [rows] of the step: tokens from sink to end are seen as codes; end 0: none */
    const int32_t *records; /* [runs][record_ints] of the layer: forms of k and v, pairs of each head, page tables */
    int record_ints, heads, table_stride;
    int four; /* every form is CODE4 */
    int k_group, v_group;
    const uint8_t *k_base[CODE_FORMS], *v_base[CODE_FORMS];
    int64_t k_stride[CODE_FORMS], v_stride[CODE_FORMS];
    const float *bias;
    RopeParams rope; /* of the bias */
    Rotation k_rotation, v_rotation;
    CodeBooks books;
    int exact;        /* slices that a row sees exactly, at most */
    int pages;        /* coded ones of rows in short runs, at most */
    uint8_t *queries; /* [rows][heads] of code_query_bytes() */
    float *folded;    /* [rows][heads][value_dim + 2] of long runs */
} AttendCodes;
/* Whether codes are scanned as integers; otherwise by kernels that take any shape. */
int attention_codes_fast(const Attend *attend);
size_t code_query_bytes(const Attend *attend);
/* Floats that a row needs for each head in Attend.partials. */
size_t code_part_floats(const Attend *attend, const AttendCodes *codes);
/* Once; then long runs as a whole; then rows first_row … of the step. */
cudaError_t attention_codes_queries(cudaStream_t stream, const Attend *attend, const AttendCodes *codes);
cudaError_t attention_codes_runs(cudaStream_t stream, const Attend *attend, const AttendCodes *codes);
cudaError_t attention_codes_rows(cudaStream_t stream, const Attend *attend, const AttendCodes *codes);

/* Generated rows that see codes, as attention_generated(): those whose codes have four bits, others stay as they are.
 */
int attention_generated_codes_fits(const Attend *attend, const AttendCodes *codes);
size_t attention_generated_codes_floats(const Attend *attend, const AttendCodes *codes);
cudaError_t attention_generated_codes(cudaStream_t stream, const Attend *attend, const AttendCodes *codes);

/* A page's tokens to or from canonical order. */
cudaError_t page_transfer(cudaStream_t stream, uint8_t *page, uint8_t *canonical, int tokens, int kv_heads,
    int head_dim, int value_dim, int bytes, int in);

/* Reads all of it, zeros, at most 16 bytes left out. */
cudaError_t limits_read(cudaStream_t stream, void *memory, size_t bytes, int multiprocessors);

/* Whether gemm_wgmma.cu was compiled for what it needs, compute capability 9.0 and nothing else. */
int kernels_have_wide(void);
/* Once per device, before all else: whether kernels may begin before their predecessor has ended. */
void kernels_begin_early(int yes);

#ifdef __cplusplus
}
#endif
