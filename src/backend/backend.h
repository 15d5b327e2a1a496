/* backend/: the table of operations, its checker (plan.c), a wrapper that measures (trace.c), and a folder for each
 * kind of device. Nothing here knows layers, families or files.
 *
 * This header: the table of operations that a model runs on, and the types of its parameters.
 *
 * Immediate mode: the decoder calls operations in order; each takes f32 activations in backend memory, row-major
 * [rows, width]; Weight hides the dtype and quantisation of weights. cpu/ref/ is the specification of every operation;
 * the other backends must equal it within the tolerances of tests/backend. plan.c computes nothing: it checks shapes
 * and counts scratch.
 *
 * Memory: operations read and write backend memory only: bound weights, pages and scratch. Only the backend reads or
 * writes through such an address (address arithmetic is fine elsewhere); upload, download, copy, page_read, page_write
 * and read_logits move data in and out. tests/backend/fence.h proves it. Parameter structs, tokens, positions, chunks
 * and their tables are borrowed host memory, valid for the call (chunks: until wait() of the step).
 *
 * Shapes are checked by plan before the first real step, so inside an operation a wrong shape is a bug (CHECK).
 * Operations return nothing; a fault of the device is sticky and surfaces in wait(). Threads: one at a time.
 *
 * Determinism: on the CPU a row's result depends on that row, its sequence's cache and the chosen instruction set
 * alone, bit for bit: not on the number of rows in the step, nor on the number of threads. On a device the same holds,
 * but decode rows and prefill rows may be computed with different arithmetic: where Backend.decode_rows_max is not 0,
 * the caller says which rows are decode rows (decode_rows of Step and of the operations), always the same for a token,
 * and sets Step.uniform_matmul for all steps of a cache or for none. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/token.h"
#include "base/error.h"
#include "tensor/expert_provider.h"

/* Limits that every backend supports; plan refuses larger matrices and norms. */
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
 * at base + table[position / KV_PAGE_TOKENS] · page_stride + layer_offset; its inner layout is private to the backend,
 * its size is ops->kv_layer_bytes(). Table entries of pages that a window has left are −1 and never read. */
typedef struct KvLayout {
    int kv_heads;
    int head_dim;  /* elements of a key head */
    int value_dim; /* elements of a value head */
    DType dtype;   /* F16 or BF16; F32 on backends with `exact` */
    bool latent;   /* MLA: scores read values, too (Attention.q_latent) */
    /* A recurrent state instead, or plain rows, in f32 (cache/cache_spec.h); kv_heads is 0. */
    size_t anchor_bytes; /* bytes of the state before the first position of a page; plain rows: 0 */
    size_t row_bytes;    /* bytes of state per position */
} KvLayout;

/* Bytes of the first `tokens` tokens of a page in canonical order (page_read). */
size_t kv_canonical_bytes(const KvLayout *layout, int tokens);

/* Format of one half of a page, its keys or its values: full precision, or quantised to 3 … 8 bits. */
typedef enum KvForm { KV_FULL, KV_Q3, KV_Q4, KV_Q5, KV_Q6, KV_Q8, KV_FORMS } KvForm;

/* Quantised pages of one format: page n lies at base + n · stride, stride = ops->kv_quant_bytes(). */
typedef struct KvStore {
    uint8_t *base; /* backend memory; NULL: no page so far */
    size_t stride;
} KvStore;

typedef struct Rope Rope;
typedef struct KvLayer {
    KvLayout layout;
    uint8_t *base; /* backend memory */
    size_t page_stride;
    size_t layer_offset;
    int page_tokens; /* positions of a page: KV_PAGE_TOKENS, fewer for recurrent states */
    int group;       /* index of the page table in SequenceChunk.tables: layers with the same page policy share one */
    int index;       /* index of the layer in the arrays of a KvQuantView */
    const float *k_bias; /* [kv_heads·head_dim], bound: bias of the keys before RoPE; NULL: none */
    const Rope *rope;    /* RoPE of the keys; NULL: none */
    KvStore k_quant[KV_FORMS], v_quant[KV_FORMS];
} KvLayer;

/* KV quantisation of one layer of a sequence: first as requested, then as decided by kv_calibrate(), constant from then
 * on. */
typedef struct KvQuant {
    KvForm k, v;          /* both KV_FULL: the layer is not quantised; otherwise neither is KV_FULL; k is never KV_Q3 */
    float noise;          /* predicted standard deviation of a score's error with 4-bit keys */
    uint64_t *bias_pairs; /* [kv_heads] bit i: the bias of RoPE pair i is subtracted before quantisation */
} KvQuant;

/* The quantised pages of a sequence and their place. Every page is quantised once, whole, from its full-precision form,
 * so the keys and values that a row reads depend on its position alone, however the text is cut into steps: row p reads
 * tokens sink ≤ t < kv_cold_end(p) from quantised pages and all others from full-precision pages. In a step with row p,
 * pages from sink to kv_cold_end(p) are quantised; pages below sink and from kv_cold_end(first row) on are present in
 * full precision. */
typedef struct KvQuantView {
    int after;             /* positions before it read full-precision pages only */
    int hot, sink;         /* numbers of newest and of first tokens in full precision; multiples of KV_PAGE_TOKENS */
    const KvQuant *layers; /* [KvLayer.index] */
    int32_t *const *k_pages, *const *v_pages; /* [KvLayer.index][page] page numbers in the format's store; −1: none */
} KvQuantView;
int kv_cold_end(const KvQuantView *quant, int position); /* a multiple of KV_PAGE_TOKENS ≥ sink; quant NULL: 0 */

/* Positions begin ≤ p < end of one sequence that attend to each other in both directions, such as the patches of an
 * image. */
typedef struct BidirectionalSpan {
    int begin, end;
} BidirectionalSpan;

/* Consecutive rows of a step that belong to one sequence. Key j is visible to position i iff j ≤ i, or i and j lie in
 * one span; and window == 0 or j > i − window: so with SPANS_IN_WINDOW (Attention.span_rule). */
typedef struct SequenceChunk {
    int row, rows;                /* rows row ≤ r < row + rows of the step */
    int position;                 /* position of the first row in its sequence: its place in the cache */
    const int32_t *const *tables; /* [group][page]: page tables of the sequence, covering position + rows tokens */
    const KvQuantView *quant;     /* NULL: every page is in full precision */
    int adapter; /* LoRA adapter of the sequence, from 1 on; 0: none. Operations do not look at it; a backend that
                    replays recorded steps tells them apart by it (begin) */
    int span_count;
    /* In order, without overlap. Each lies within the chunk; where the attention appends no keys (Attention.k), it may
     * reach beyond, to keys that were appended before. */
    const BidirectionalSpan *spans;
} SequenceChunk;

/* What bidirectional spans are to a layer. */
typedef enum SpanRule {
    SPANS_IN_WINDOW, /* positions of one span see each other within the layer's window */
    SPANS_IGNORED,   /* they see those before them alone (Gemma 4's layers without a window) */
    SPANS_WHOLE,     /* they see all of their span, whatever the window; spans begin at position 0 (PaliGemma 2) */
} SpanRule;

enum { POSITION_DIMS_MAX = 3 };

/* Embeddings of consecutive rows of a step, as the first layer reads them: the token table's rows times its scale. */
typedef struct EmbeddingRange {
    int row, rows;
    const float *values; /* [rows, hidden]; borrowed until the step has been waited for */
    bool in_backend;     /* values is memory of the first layer's backend; otherwise of the host */
    /* Added to the rows behind each of the first layers (DeepStack, arXiv 2406.04334). Layer i's are [rows, hidden] at
     * deepstack + i · deepstack_stride, memory of the first layer's backend. */
    int deepstack_layers; /* 0: none */
    const float *deepstack;
    int64_t deepstack_stride; /* floats */
} EmbeddingRange;

/* A step: a ragged batch without padding, at most Backend.rows_max rows. Built by model/step_builder.h. All arrays are
 * borrowed host memory.
 *
 * The bits of a row's results do not depend on the number of other rows in the step, of its own sequence or of others.
 * Decode rows and prefill rows may differ in their arithmetic; a token is always one or always the other. */
typedef struct Step {
    int rows;
    int decode_rows;          /* the first decode_rows rows follow their prompts; the others are prefill rows */
    bool uniform_matmul;      /* matrix products use the prefill arithmetic for all rows, as decode_rows may exceed
                                 Backend.decode_rows_max; the same in all steps of a cache */
    const int32_t *tokens;    /* [rows] token ids, TOKEN_GIVEN or token_from_output() (token.h) */
    const int32_t *positions; /* [position_dims][rows] RoPE positions */
    int position_dims;        /* 1, or POSITION_DIMS_MAX: time, height, width */
    int chunk_count;
    const SequenceChunk *chunks; /* [chunk_count] in row order, covering all rows */
    int embedding_count;
    const EmbeddingRange *embeddings; /* [embedding_count] ascending; they cover exactly the rows with TOKEN_GIVEN */
    int output_count;
    const int32_t *outputs;                   /* [output_count] ascending rows whose logits are computed */
    const float *scales;                      /* [output_count] for sum_logits; NULL: no sums are computed */
    const struct SampleParams *sample_params; /* [output_count] for sample; NULL: no tokens are sampled */
    int hidden_row_count;
    const int32_t *hidden_rows; /* [hidden_row_count] rows whose final normed hidden states are computed */
    uint64_t cache; /* identifies the memory of the step's pages, set by the decoder: steps with equal values share it;
                       0: unknown, and the step is not replayed (begin) */
} Step;

/* Keys first ≤ j < end are visible to a position of the chunk. Neither bound decreases from one position to the next.
 * chunked, span_rule: as those of Attention. */
typedef struct AttentionRange {
    int first, end;
} AttentionRange;
AttentionRange attention_range(const SequenceChunk *chunk, int window, bool chunked, SpanRule span_rule, int position);

/* ---- parameters of operations ---- */

typedef enum NormKind { NORM_RMS, NORM_LAYER } NormKind;
typedef struct Norm {
    NormKind kind;
    int64_t width;
    float eps;           /* inside the square root */
    const float *weight; /* [width] f32; NULL: ones. Families that store w−1 have the 1 added at load */
    const float *bias;   /* LAYER only; may be NULL */
} Norm;

typedef enum ActivationKind {
    ACT_SILU,
    ACT_GELU,
    ACT_GELU_TANH,
    ACT_RELU2,
    ACT_NONE,
    ACT_SILU_CLAMPED, /* gated products only: g·σ(a·g)·(u + 1), g = min(gate, b), u = up within ±b (gpt-oss) */
    ACT_XIELU, /* activate() only: x > 0: a·x² + c·x, else b·(e^min(x, −1e-6) − 1 − x) + c·x (arXiv 2411.13010) */
    ACT_CLAMP, /* activate() only: x within a … b */
    ACT_RELU,
    ACT_SILU_LIMITED, /* gated products only: silu(min(g, a))·u, u = up within ±b */
} ActivationKind;

enum { ACTIVATION_KINDS = ACT_SILU_LIMITED + 1 };

typedef struct Activation {
    ActivationKind kind;
    float a, b, c; /* parameters of the kind; 0 where it has none */
} Activation;

/* out[r, i] = act(x[r, i]) · y[r · y_stride + i] for rows of `width` floats. */
typedef struct Multiply {
    int rows;
    int64_t width;
    const float *x;
    Activation activation; /* one that GLUs can have */
    const float *y;
    int64_t y_stride; /* floats; 0: one row of y for all */
    float *out;       /* may be x */
} Multiply;

/* Factor on the queries of long sequences, 1 + scale · ln(1 + ⌊(position + offset) / length⌋): Llama 4, Ministral 3. */
typedef struct QueryScaling {
    float scale; /* 0: none */
    int length, offset;
} QueryScaling;
float query_scale(const QueryScaling *scaling, int position);

/* Rotary position embedding. frequencies[i] is the angle per position of pair i; 0 leaves the pair alone. Angles are
 * computed as (float)position × frequency in f32, as mlx does. Only the first dims of a head rotate. */
struct Rope {
    int dims;
    bool interleaved;         /* pairs (2i, 2i+1); otherwise (i, i + dims/2) */
    const float *frequencies; /* [dims/2], bound */
    float scale;              /* multiplies the rotated values of q and k (yarn, longrope: mscale); 1 otherwise */
    int mrope_section[POSITION_DIMS_MAX]; /* pairs rotated by each position dimension, in order; all 0: every pair uses
                                             dimension 0 */
    bool mrope_interleaved;               /* pairs 1, 4, … use dimension 1 instead, mrope_section[1] of them; pairs
                                             2, 5, … dimension 2; all others dimension 0 (Qwen3-VL) */
    /* Dynamic NTK scaling, if positions > 0: from that position on the frequencies are those of a theta that grows with
     * the row's own position. (mlx_lm/models/rope_utils.py lets theta grow with the length of the call instead, which
     * would make a row depend on how the text is cut; token by token it is the same.) */
    struct {
        int positions;
        float theta, factor;
    } dynamic;
};

/* Writes angles[i], the rotation of pair i, for one row of the step. frequencies must be readable on the host: for
 * operations only. */
void rope_angles(const Rope *rope, const Step *step, int row, float *angles);

enum { MATMUL_MAX = 6 };

/* Several matrices with one input: out[i] = W[i] · norm(x) + bias[i]. Every W[i] has cols = width of x. */
typedef struct Matmul {
    int rows, decode_rows;
    const float *x;   /* [rows, cols] */
    const Norm *norm; /* applied to each row first; NULL: none */
    int count;
    const Weight *weight[MATMUL_MAX];
    float *out[MATMUL_MAX]; /* [rows, weight[i]->rows] */
    bool coarse;            /* 8-bit activations suffice, even on a precise backend */
    bool fine;     /* 16-bit activations are needed: a discrete choice, such as routing, depends on the results */
    int fine_last; /* with `fine`: of the last so many matrices only; 0: of all */
} Matmul;

/* out = act(gate · norm(x)) ∘ (up · norm(x)) */
typedef struct Glu {
    int rows, decode_rows;
    const float *x;
    const Norm *norm;
    const Weight *gate, *up;
    Activation activation;
    float *out; /* [rows, gate->rows] */
} Glu;

/* residual += scale · norm(W · x + bias). norm: used by sandwich and post-norm models; NULL: none. */
typedef struct MatmulAdd {
    int rows, decode_rows;
    const float *x;
    const Weight *weight;
    const Norm *norm;
    float scale;
    float *residual; /* [rows, weight->rows] */
    float **partial; /* NULL: the whole sum. Otherwise x and the weight are one rank's columns, and *partial is set to
                        the terms with which all_reduce() completes the operation, or to NULL if it is complete */
} MatmulAdd;

/* Matrices with one input, and updates of low rank (LoRA): out[i] = W[i] · norm(x) + bias[i], then
 * out[i] += scale[i] · B[i] · (A[i] · norm(x)). The bits are those of the operations in turn. */
typedef struct LowRankMatmul {
    Matmul product;
    const Weight *a[MATMUL_MAX], *b[MATMUL_MAX]; /* [rank, cols], [rows, rank], of plain values; NULL: no update */
    float *low_rank[MATMUL_MAX];                 /* [rows, rank]: work */
    float scale[MATMUL_MAX];
    float *residual;      /* [rows, weight[0]->rows]: takes the terms instead of out[0], with count 1; NULL: out does */
    float residual_scale; /* factor of the product with W, with residual */
    bool gated;           /* with count 2: only out[0] is stored, as activation(out[0]) · out[1] */
    Activation activation; /* with gated */
} LowRankMatmul;

/* A gated feed-forward network: glu, then down, whose x is glu.out. The bits of the residual are those of the two
 * operations in turn. glu.out is undefined afterwards, so a backend may keep the result between the two in a private
 * form. */
typedef struct FfnBlock {
    Glu glu;
    MatmulAdd down;
} FfnBlock;

/* residual += scale · norm(x_norm(x) + y_norm(y)) (DenseBeside); x_norm NULL: none. x is undefined afterwards. */
typedef struct AddPair {
    int rows;
    int64_t width;
    float *residual;
    float *x;
    const float *y;
    float scale;
    const Norm *x_norm, *y_norm, *norm;
} AddPair;

/* All-reduce over the ranks of a tensor-parallel backend. Each rank has partial terms of one sum, which are added in
 * the order of the ranks: residual += scale · norm(Σ terms); residual NULL: terms = Σ terms. */
typedef struct RankSum {
    int rows;
    int64_t width;
    float *terms; /* [rows, width] of this rank (MatmulAdd.partial) */
    float *residual;
    float scale;
    const Norm *norm; /* NULL: none */
} RankSum;

enum {
    EXPERTS_MAX = 1024,    /* experts of a layer */
    EXPERTS_USED_MAX = 32, /* experts of a row */
    EXPERT_GROUPS_MAX = 64,
};

/* How router logits become scores. */
typedef enum RouteScore {
    ROUTE_SOFTMAX,       /* over all experts; the best are used with these scores */
    ROUTE_TOP_SOFTMAX,   /* the best logits are used, with the softmax over them */
    ROUTE_SIGMOID,       /* the sigmoid of each logit */
    ROUTE_SQRT_SOFTPLUS, /* √ln(1 + e^logit) */
    ROUTE_SPARSEMIXER,   /* chooses one expert after the other: the best remaining logit t, with its share of a softmax
                            over the remaining logits x near it: (t − x) / max(|x|, t) ≤ jitter_eps (Phi-3.5-MoE) */
    ROUTE_TOP_SIGMOID,   /* the best logits are used, with the sigmoid of each: a bias is added to logits */
} RouteScore;

/* Chooses the experts of each row, best first (of equal scores the lower index first), and their weights. */
typedef struct Routing {
    int rows, experts, top_k;
    const float *logits; /* [rows, experts] */
    RouteScore score;
    const float *bias;          /* [experts] added to the scores for the choice alone; NULL: none */
    int groups, topk_group;     /* only experts of the topk_group best groups keep their score, the others count as 0; a
                                   group's score is the sum of its two best experts; 0: no groups */
    bool group_best;            /* a group's score is that of its best expert */
    float jitter_eps;           /* ROUTE_SPARSEMIXER */
    bool norm_topk_prob;        /* weights are divided by their sum + epsilon */
    float epsilon, scale;       /* scale multiplies all weights, after that */
    int shared;                 /* 1: every row also uses expert number `experts`, listed behind the others */
    const float *shared_logits; /* [rows] logits whose sigmoid is the shared expert's weight; NULL: weight 1 */
    bool shared_pair; /* shared_logits are [rows, 2]: the softmax of both gives the factor of the other weights and the
                         weight of the shared expert */
    const float *expert_scale; /* [experts] factors of the weights, at last; NULL: none */
    /* Hash routing (arXiv 2106.04426): experts of a row are those of its token, table[token]: [vocab, top_k] numbers,
     * bound. TOKEN_GIVEN counts as token 0. NULL: the scores decide. */
    const float *table;
    const int32_t *tokens; /* [rows] of the step, host memory; with `table` */
    int32_t *index;        /* [rows, top_k + shared] */
    float *weight;         /* [rows, top_k + shared] */
} Routing;

/* Stages of the experts operation. With a source, EXPERTS_REQUEST starts loading and EXPERTS_COMPUTE computes, so that
 * other work fits between them; EXPERTS_PREFETCH names experts that are likely to be used soon. EXPERTS_REQUEST and
 * EXPERTS_PREFETCH read `index` only. */
typedef enum ExpertsStage { EXPERTS_WHOLE, EXPERTS_REQUEST, EXPERTS_COMPUTE, EXPERTS_PREFETCH } ExpertsStage;

/* out[r] = Σ weight[r, i] · down_e(act(gate_e · x[r]) ∘ (up_e · x[r])), e = index[r, i], summed in the order of i. */
typedef struct Experts {
    int rows, decode_rows, count, top_k; /* count: matrices in each of gate, up and down, a shared expert included */
    int identities; /* numbers from `count` on that may be chosen, whose result is x; hidden is the width of x then */
    bool weigh_inputs; /* weight[r, i] multiplies the expert's x instead of its result (Llama 4) */
    const float *x;    /* [rows, hidden] */
    /* [count]; experts may differ in their inner width. gate may be up: act(up · x) ∘ (up · x). */
    const Weight *gate, *up, *down;
    /* Borrowed: loads experts whose matrices have no address into host memory, where backends with `sources` compute
     * them; NULL: all experts are bound. The order of loading does not change a result. */
    ExpertProvider *source;
    int layer, micro_batch; /* layer and micro-batch for the source */
    ExpertsStage stage;
    Activation activation;
    const int32_t *index; /* [rows, top_k] backend memory, written by route */
    const float *weight;
    float *work; /* [rows, top_k, inner + hidden + 2]: inner, the largest rows of gate; hidden, the rows of down */
    float *out;  /* [rows, hidden] */
} Experts;

/* A gated network beside experts: glu of the block's x, down of glu.out. sums.x is its result, sums.y the experts'. */
typedef struct DenseBeside {
    Glu glu;
    Matmul down;
    AddPair sums;
} DenseBeside;

/* An MoE block as one operation: normed = norm(x) (norm NULL: none), the router's product, routing, the experts,
 * residual += scale · out_norm(their sum). Only the residual is defined afterwards; residual NULL: only experts.out.
 * dense: then its operations, in turn. */
typedef struct MoeBlock {
    const float *x;
    const Norm *norm, *out_norm;
    float *normed; /* [rows, hidden] input of the experts, if there is a norm, and of a router without its own norm */
    Matmul router; /* with a norm of its own of x, or of the experts' input without one */
    Routing route;
    Experts experts;
    float *residual;
    float scale;
    const DenseBeside *dense; /* with residual NULL; NULL: there is none */
} MoeBlock;

/* ---- streams of the residual: AltUp (arXiv 2301.13310) ---- */

enum { STREAMS_MAX = 8 };

/* Changes all streams of each row: x_i += Σ_j mix[i, j] · x_j, then x_i += (1 + gain[i]) · y. */
typedef struct StreamMix {
    int rows, streams;
    int64_t width, stride; /* row r of stream i: x + i · stride + r · width */
    float *x;
    const float *mix;  /* [rows, streams, streams]; NULL: the first step is left out */
    const float *gain; /* [rows, streams]; NULL, as y: the second one is */
    const float *y;    /* [rows, width] */
} StreamMix;

/* Scales each row of x to the root mean square of the same row of `target`: x *= rms(target) / √max(mean(x²), floor).
 */
typedef struct MatchRms {
    int rows;
    int64_t width;
    const float *target;
    float floor;
    float *x;
} MatchRms;

/* Sets what is below mean + cutoff · standard deviation of its row to 0, and subtracts that from the rest. */
typedef struct Sparsify {
    int rows;
    int64_t width;
    float cutoff;
    float *x;
} Sparsify;

/* x[r, h · width + i] *= act(gate[r, h]): one factor for each head. */
typedef struct HeadGate {
    int rows, heads;
    int64_t width;
    const float *gate; /* [rows, heads] */
    bool softplus;     /* act is ln(1 + e^g); otherwise the sigmoid */
    float *x;
} HeadGate;

/* out[r] = scale · table[tokens[r]], or, where the token is TOKEN_GIVEN, the row of the range that covers it. */
typedef struct Embed {
    int rows;
    const int32_t *tokens;
    const Weight *table;
    float scale;
    int given_count;
    const EmbeddingRange *given; /* [given_count] Step.embeddings */
    bool placeholder;            /* TOKEN_GIVEN and ids beyond the table read token 0 instead; given_count is 0 */
    float *out;                  /* [rows, table->cols] */
} Embed;
int32_t embed_token(const Embed *op, int row); /* row of the table that is read, unless the row is given */

/* The keys that a row's heads read, of those visible to it, in blocks of consecutive positions. */
typedef struct KeySelection {
    int block; /* positions of a block; 0: all visible keys are read */
    /* By pattern (Phi-3-small): a row whose position lies in block b reads the blocks b − local < i ≤ b, and those
     * whose i + 1 + head_step · head is a multiple of stride. stride 0: by choice. */
    int local, stride, head_step;
    /* By choice (IndexSelect): [rows, groups, top_k] numbers of blocks, ascending, then −1. One group chooses for all
     * heads, or each kv head has its own. */
    int groups, top_k;
    const int32_t *chosen;
} KeySelection;
/* Bit t: whether a row's head reads the key at base + t, base a multiple of KV_PAGE_TOKENS. */
typedef struct KeyMask {
    uint64_t bits[2];
} KeyMask;
KeyMask key_mask(const KeySelection *selection, int row, int head, int kv_head, int position, int base);
static inline bool key_mask_has(const KeyMask *mask, int t) { return mask->bits[t / 64] >> t % 64 & 1; }
static inline bool key_mask_any(const KeyMask *mask) { return (mask->bits[0] | mask->bits[1]) != 0; }

/* Chooses the keys that a row's attention reads (DeepSeek sparse attention, arXiv 2512.02556): rotates q and k per
 * head, appends k to the cache, and scores the keys visible to the row, k of all its positions up to its own. The score
 * of a key is q·k for each head, which chooses for itself; with weights it is Σ_h weight[h] · max(0, q_h·k), and one
 * group chooses for all. The score of a block is that of its best key. Chosen are the last `local` blocks, up to the
 * row's own, and then the best, top_k in all; of equal scores the lower position. */
typedef struct IndexSelect {
    KvLayer kv; /* one kv head, without values */
    int heads;
    int block, local, top_k; /* local ≤ top_k */
    const Rope *rope;        /* NULL: none */
    float *q, *k;            /* [rows, heads·head_dim], [rows, head_dim]; both may be overwritten */
    const float *weights;    /* [rows, heads]; NULL: each head chooses */
    int32_t *chosen;         /* [rows, groups, top_k] as KeySelection.chosen; groups: 1 with weights, heads without */
} IndexSelect;
enum { INDEX_SCORES_MAX = 1 << 24 }; /* largest product of groups and visible keys */

/* For each row: normalise and rotate q and k per head, append k and v to the cache, attend to the visible keys
 * (SequenceChunk) that the selection has. */
typedef struct Attention {
    int heads; /* query heads; a multiple of kv.layout.kv_heads */
    KvLayer kv;
    float scale;   /* multiplies q·k */
    float softcap; /* s = cap·tanh(s/cap) before the mask; 0: none */
    int window;    /* 0: full */
    bool chunked;  /* the window begins at the last multiple of its width (Llama 4) */
    SpanRule span_rule;
    const Norm *q_norm, *k_norm; /* per head, width = head_dim; NULL: none */
    bool norm_full;              /* the norms run over the whole projection (width = heads·head_dim) instead */
    bool norm_last;              /* the norms follow the rotation; excludes norm_full */
    const Rope *rope;            /* NULL: none */
    const float *sinks;          /* [heads] extra logit in the denominator; NULL: none */
    /* ALiBi (arXiv 2108.12409): s += slope · j − slope · i for key j and position i of the row. [heads], bound; NULL:
     * none. Excludes softcap, q_latent and a selection. */
    const float *slopes;
    float slopes_bf16;      /* not 0: both products are rounded to bf16, then multiplied by this (Falcon) */
    KeySelection selection; /* with softcap 0, pages in full precision and no spans only */
    /* [rows, heads·head_dim], [rows, kv_heads·head_dim]; both may be overwritten. q and out NULL: keys and values are
     * appended and nothing is computed (backends with set_rows). */
    float *q, *k;
    /* [rows, kv_heads·value_dim]; k and v NULL: they were appended before, by another layer or by an earlier call */
    const float *v;
    const float *gate; /* [rows, heads·value_dim] logits whose sigmoid multiplies the result; NULL: none */
    float *q_latent;   /* [rows, heads·value_dim] scores are q·k + q_latent·v; may be overwritten; NULL: q·k */
    float *out;        /* [rows, heads·value_dim] */
} Attention;

/* A finite number rounded to bf16. */
static inline float bf16_round(float x) {
    union {
        float f;
        uint32_t u;
    } v = {x};
    v.u = (v.u + 0x7fff + (v.u >> 16 & 1)) & 0xffff0000u;
    return v.f;
}
/* What ALiBi adds to the score of a key (Attention.slopes). */
static inline float alibi_bias(float slope, float bf16, int key, int position) {
    return bf16 != 0 ? bf16 * (bf16_round(slope * (float)key) - bf16_round(slope * (float)position))
                     : slope * (float)(key - position);
}

/* The attention of a layer: the products for q, k, v and gate, attention over them, and the product of its result,
 * which is output.x. The bits of the residual are those of the three operations in turn. All other results are
 * undefined afterwards, so a backend may keep them in a private form. */
typedef struct AttentionBlock {
    Matmul project;
    Attention attention;
    MatmulAdd output;
} AttentionBlock;

/* Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), absorbed: all heads share a key of head_dim elements,
 * which is rotated, and a latent in place of the values. Each head has a matrix from its query to the latent space
 * (w_uk) and one from there to its result (w_uv), so that the cache holds that key and the latent alone: score = scale
 * · (rotated query · key + w_uk·(rest of the query) · latent); out = w_uv · Σ weight · latent. */
typedef struct Mla {
    Attention attention; /* input: heads, kv (one kv head, latent), scale, rope; the operation sets the rest */
    int rows, decode_rows;
    int nope_dim;              /* leading elements of a head's query that are not rotated */
    const float *q;            /* [rows, heads·(nope_dim + head_dim)] */
    float *k;                  /* [rows, head_dim], may be overwritten */
    float *latent;             /* [rows, value_dim], may be overwritten */
    const Norm *latent_norm;   /* norm of the latent; NULL: none */
    const Weight *w_uk, *w_uv; /* [heads] value_dim × nope_dim, width × value_dim */
    float *work;               /* [rows · mla_width()] */
    float *out;                /* [rows, heads·width] */
} Mla;
int64_t mla_width(const Mla *op); /* floats per row */

/* Calibration of one layer over the first tokens of a sequence, before any of its pages is quantised. */
typedef struct KvCalibration {
    const KvLayer *layer;
    const int32_t *table; /* page table of full-precision pages */
    int tokens;           /* a multiple of the page size */
    bool raise;           /* K may get a format with more bits if the noise requires it */
    KvQuant *code;        /* in: k and v as requested; out: k, noise and bias_pairs */
} KvCalibration;

/* One page of a layer to quantise. */
typedef struct KvQuantise {
    const KvLayer *layer;
    const KvQuant *code;
    int position;       /* position of the page's first token */
    int32_t from;       /* page number of the full-precision page, whose tokens are all written */
    int32_t k_to, v_to; /* page numbers in the stores of formats code->k and code->v */
} KvQuantise;

enum { LOGIT_BLOCK = 64 };

/* The reductions that sampling begins with, in the arithmetic of engine/sampler.c, bit for bit: for each block of a
 * row's logits (the last may be shorter) the largest (−∞ if there is none; NaN is skipped), then for each block Σ e^((x
 * − the row's largest) · scale). The sums are meaningless if the row's largest logit is not finite. */
typedef struct LogitSums {
    int rows;
    int64_t vocab;
    const float *logits; /* [rows, vocab] */
    const float *scales; /* [rows] Step.scales */
    float *out;          /* [rows, 2, blocks of vocab] */
} LogitSums;
enum { LOGIT_GROUP = 64 /* blocks */ };

/* Operations of layers that keep a recurrent state: recurrent.h. */
typedef struct Conv Conv;
typedef struct Recurrence Recurrence;
typedef struct Mamba Mamba;
typedef struct RgLru RgLru;
typedef struct GatedNorm GatedNorm;
typedef struct RecurrentBlock RecurrentBlock;

/* Operations of attention to compressed keys, and of hyper-connections: compressed.h. */
typedef struct Compression Compression;
typedef struct CompressedSelect CompressedSelect;
typedef struct CompressedAttention CompressedAttention;
typedef struct GroupJoin GroupJoin;
typedef struct HyperConnection HyperConnection;

/* Parameters of sampling the token that follows an output on the device; semantics of engine/sampler.h. */
typedef struct SampleParams {
    double uniform;  /* in (0, 1) */
    float scale;     /* factor of the exponents, 1 / temperature; 0: the token with the largest logit */
    float top_p;     /* 1: off */
    float min_p_log; /* logarithm of min_p; −∞: off */
    int top_k;       /* 0: off */
} SampleParams;

/* Samples a token for each row in the arithmetic of engine/sampler.c, bit for bit, so device and host sampling are
 * interchangeable. A row gets −1 if a logit is not a number, or if the host's sampler would have to repair its logits
 * first. */
typedef struct LogitSampling {
    int rows;
    int64_t vocab;
    const float *logits;               /* [rows, vocab] */
    const SampleParams *sample_params; /* [rows] Step.sample_params */
    float *work;                       /* [rows, 2, blocks of vocab] */
} LogitSampling;

/* Blocks of a row of logits; offset, in floats, of the sums that follow `logits` logits in scratch. */
static inline int64_t logit_blocks(int64_t vocab) { return (vocab + LOGIT_BLOCK - 1) / LOGIT_BLOCK; }
static inline int64_t logit_sums_at(int64_t logits) { return (logits + 15) / 16 * 16; }

/* ---- the table ---- */

/* Owner of memory: for accounting, and for backends with several kinds of memory. */
typedef enum MemoryOwner { MEMORY_WEIGHTS, MEMORY_CACHE, MEMORY_STEP } MemoryOwner;

typedef struct BackendOps {
    const char *name;   /* "ref", "avx2", "avx512", "amx", "neon", "plan" */
    bool one_precision; /* Matmul.coarse and fine change nothing */

    /* ---- memory: never in a step ---- */

    /* Zeroed memory, owned by the caller until release(); NULL with the error. On the CPU the system provides its pages
     * at first use. MEMORY_CACHE begins on a huge page; on a device it is backed only where commit() was called. */
    void *(*alloc)(Backend *, size_t bytes, MemoryOwner owner, Error *);
    void (*release)(Backend *, void *memory); /* NULL is fine */
    /* Backs a range of a cache with memory until decommit(). False: no memory is left. NULL: all memory is backed. */
    bool (*commit)(Backend *, void *memory, size_t bytes);
    /* Ends the use of a range: its content may become zeros and its memory may return to the system. */
    void (*decommit)(Backend *, void *memory, size_t bytes);
    /* Makes a weight in host memory usable by operations: its pointers become backend memory. On the CPU they stay as
     * they are, and the host memory must outlive the binding. Norms, frequencies and other vectors are weights of one
     * f32 row. unbind() takes a weight that bind() has changed. */
    bool (*bind)(Backend *, Weight *weight, Error *);
    void (*unbind)(Backend *, const Weight *weight);
    void (*upload)(Backend *, void *to, const void *from, size_t bytes);
    void (*download)(Backend *, void *to, const void *from, size_t bytes);
    void (*copy)(Backend *, void *to, const void *from, size_t bytes); /* both backend memory; a page, for instance */
    /* Takes and releases host memory from which uploads are fast. Both NULL: uploads from any host memory are equally
     * fast.
     */
    void *(*take_host)(Backend *, size_t bytes, Error *);
    void (*give_host)(Backend *, void *memory);

    /* ---- pages ---- */

    /* Bytes of one page of one layer. */
    size_t (*kv_layer_bytes)(Backend *, const KvLayout *);
    /* The first `tokens` tokens of a layer's page in canonical order, which every backend shares: K as
     * [token][kv_head][head_dim], then V as [token][kv_head][value_dim], in the layout's dtype, then the energy of the
     * queries as f32 [token][kv_head]: the mean of |q·scale|² over the query heads of the row that appended the key, of
     * |q_latent·scale|² if there is q_latent, which kv_calibrate reads; backends without KV quantisation may leave the
     * energy out. kv_canonical_bytes() of unaligned host memory. A recurrent state: the anchor, then the rows, in f32.
     * False: the device failed, and wait() says why. */
    bool (*page_read)(Backend *, const KvLayer *, int32_t page, int tokens, void *out);
    bool (*page_write)(Backend *, const KvLayer *, int32_t page, int tokens, const void *from);
    /* Bytes of a quantised page of one layer, of its keys or its values; 0: this backend does not quantise such a
     * layer. kv_quant.h specifies the formats. Quantisation happens between steps. */
    size_t (*kv_quant_bytes)(Backend *, const KvLayout *, KvForm form, bool values);
    void (*kv_calibrate)(Backend *, int count, const KvCalibration *);
    void (*kv_quantise)(Backend *, int count, const KvQuantise *);

    /* ---- the step ---- */

    /* Begins a step; its scratch is free again. False: the backend replays a recorded step, and the operations need not
     * be called. */
    bool (*begin)(Backend *, const Step *);
    /* Restricts the operations that follow to consecutive rows of the step, described as a Step; scratch stays as it
     * is. NULL: the backend computes whole steps only. */
    void (*set_rows)(Backend *, const Step *rows);
    /* Ends the calls of the step and returns its ticket; results are valid after wait(). At most two steps are in
     * flight. */
    uint64_t (*submit)(Backend *);
    /* False when the device failed. */
    bool (*wait)(Backend *, uint64_t ticket, Error *);
    /* Scratch of the current step, released all at once by begin(). plan counts it; other backends carve it from one
     * block.
     */
    float *(*scratch)(Backend *, int64_t count);
    /* Logits in host memory, after wait(); the caller may overwrite them, valid until the next begin(). NULL: the
     * device failed, and wait() says why. */
    float *(*read_logits)(Backend *, float *logits, int64_t count);

    void (*embed)(Backend *, const Embed *);
    void (*norm)(Backend *, int rows, const float *x, const Norm *norm, float *out); /* out may be x */
    void (*matmul)(Backend *, const Matmul *);
    void (*glu)(Backend *, const Glu *);
    void (*matmul_add)(Backend *, const MatmulAdd *);
    void (*low_rank_matmul)(Backend *, const LowRankMatmul *); /* optional; NULL: matmul and matmul_add in turn */
    void (*ffn_block)(Backend *, const FfnBlock *);            /* optional; NULL: glu, then matmul_add */
    void (*attention)(Backend *, const Attention *);
    void (*attention_block)(Backend *, const AttentionBlock *); /* optional; NULL: its three operations in turn */
    void (*mla)(Backend *, const Mla *);
    /* NULL: the backend computes no selections (Attention.selection), and models that have them are refused. */
    void (*index_select)(Backend *, const IndexSelect *);
    /* Recurrent layers. All NULL: the backend has none, and models with such layers are refused. */
    void (*conv)(Backend *, const Conv *);
    void (*recurrence)(Backend *, const Recurrence *);
    void (*mamba)(Backend *, const Mamba *);
    void (*rg_lru)(Backend *, const RgLru *);
    void (*gated_norm)(Backend *, const GatedNorm *);
    /* conv, recurrence and gated_norm as one; false: not computed. Optional; NULL: the three in turn */
    bool (*recurrent_block)(Backend *, const RecurrentBlock *);
    void (*route)(Backend *, const Routing *);
    void (*experts)(Backend *, const Experts *);
    void (*moe_block)(Backend *, const MoeBlock *); /* optional, without a source; NULL: the operations in turn */
    /* out = act(x), elementwise, for MLPs without a gate. out may be x */
    void (*activate)(Backend *, int64_t count, const float *x, Activation activation, float *out);
    void (*multiply)(Backend *, const Multiply *);
    /* x[r] *= the factor of row r, for rows of width floats: queries before or after RoPE */
    void (*scale_queries)(Backend *, int rows, int64_t width, const QueryScaling *, float *x);
    /* out[i] = x[index[i]] for rows of width floats: the rows whose logits are wanted */
    void (*gather)(Backend *, int count, const int32_t *index, const float *x, int64_t width, float *out);
    /* x = cap·tanh(scale·x/cap); cap 0: x = scale·x */
    void (*logits)(Backend *, int64_t count, float *x, float scale, float cap);
    void (*sum_logits)(Backend *, const LogitSums *); /* optional; NULL: the host sampler computes the sums */
    void (*sample)(Backend *, const LogitSampling *); /* optional; NULL: Step.sample_params is ignored */
    /* Tokens that a step sampled, [output_count], valid from its wait() until the next step but one begins. */
    const int32_t *(*sampled)(Backend *, uint64_t ticket); /* NULL if sample is NULL */
    /* residual += scale · norm(y) */
    void (*add)(Backend *, int rows, int64_t width, float *residual, const float *y, float scale, const Norm *norm);
    /* Rowwise operations of few families. All NULL: the backend has none, and models that need one are refused. */
    void (*mix_streams)(Backend *, const StreamMix *);
    void (*match_rms)(Backend *, const MatchRms *);
    void (*sparsify)(Backend *, const Sparsify *);
    void (*gate_heads)(Backend *, const HeadGate *);
    /* Attention to compressed keys, hyper-connections (compressed.h), with them Routing.table. All NULL: the backend
     * has none, and models that need them are refused. */
    void (*compress)(Backend *, const Compression *);
    void (*compressed_select)(Backend *, const CompressedSelect *);
    void (*compressed_attention)(Backend *, const CompressedAttention *);
    void (*join_groups)(Backend *, const GroupJoin *);
    void (*hyper_connect)(Backend *, const HyperConnection *);

    /* ---- as a rank of a tensor-parallel backend (tensor_parallel.h); all NULL: the host adds partial results ---- */

    /* Makes this backend the current one of the calling thread. */
    void (*enter)(Backend *);
    /* Connects open ranks with each other, before any other call. */
    bool (*join)(Backend *const *parts, int count, Error *);
    /* Adds partial results over the ranks; called for every rank in turn, at the same place of a step. */
    void (*all_reduce)(Backend *, const RankSum *);
    void (*close)(Backend *);
} BackendOps;

/* Parts of operations that a backend may lack; models that need one are refused (model/bound.c). Whole operations are
 * NULL in the table instead. */
typedef enum Capability {
    CAPABILITY_ACTIVATIONS,                                         /* one for each ActivationKind, in its order */
    CAPABILITY_CHUNKED = CAPABILITY_ACTIVATIONS + ACTIVATION_KINDS, /* Attention.chunked */
    CAPABILITY_SQRT_SOFTPLUS,                                       /* ROUTE_SQRT_SOFTPLUS */
    CAPABILITY_INPUT_WEIGHTS,                                       /* Experts.weigh_inputs */
    CAPABILITY_IDENTITIES,                                          /* identities among experts */
} Capability;

enum { BACKEND_DESCRIPTION_MAX = 96 };

struct Backend { /* first member of every backend's own struct */
    const BackendOps *ops;
    int rows_max;        /* largest step */
    int decode_rows_max; /* largest decode_rows of operations that multiply by weights; 0: decode and prefill rows use
                            the same arithmetic */
    bool exact;          /* f32 throughout: activations are not rounded, KV pages are f32 */
    bool bf16_pages;     /* full-precision KV pages are bf16 instead of f16 */
    bool sources;        /* experts may come from a source */
    uint32_t missing;    /* set of 1 << Capability */
    char description[BACKEND_DESCRIPTION_MAX];
};

static inline bool backend_lacks(const Backend *backend, int capability) { return backend->missing >> capability & 1; }

typedef struct BackendOptions {
    /* "cpu", "cuda", "cuda:N" or "auto", a GPU where one is found; NULL: "cpu" */
    const char *device;
    /* "auto", "ref", "avx2", "avx512", "amx", "neon": one that the machine lacks is an error that lists those it has */
    const char *cpu;
    int threads;  /* CPU threads; 0: one per core that this process may use */
    bool precise; /* activations of quantised products as 16 bits instead of 8: slower prompts, errors 250 times smaller
                   */
    bool bf16_pages; /* KV pages as bf16 instead of f16, where they are not f32 */
    /* Takes ownership of the backend and returns the one used in its place (trace.h), or NULL with the error. NULL:
     * none. */
    Backend *(*wrap)(Backend *inner, Error *);
    int rows_max;
    size_t scratch_bytes; /* scratch of a step, as counted by plan */
    int tensor_parallel;  /* ranks: consecutive devices from the named one on that share each layer; 0 and 1: no tensor
                             parallelism */
    struct Pool *pool;    /* borrowed, shared with backends that compute one at a time; NULL: owned threads */
} BackendOptions;

enum { BACKEND_RANKS_MAX = 2 }; /* largest BackendOptions.tensor_parallel */
/* True if the device name (BackendOptions.device) is a GPU's; "auto" is one if a GPU is found. */
bool backend_on_device(const char *device);
NODISCARD Backend *backend_open(const BackendOptions *options, Error *error);
NODISCARD Backend *plan_open(int rows_max, Error *error);
/* After a step of the decoder on plan: bytes of scratch, or false with the first shape error. */
NODISCARD bool plan_result(Backend *plan, size_t *scratch_bytes, Error *error);
void backend_close(Backend *backend); /* NULL is fine */
/* Copies bytes at `from`, memory of `one`, to `to`, memory of `other`. The step of `one` that wrote them is the current
 * one or has been waited for. staging: host memory of as many bytes. */
void backend_move(Backend *one, const void *from, Backend *other, void *to, size_t bytes, void *staging);
/* One line for people: "avx512 (vnni, vbmi), int8 activations, 2 threads". */
const char *backend_describe(const Backend *backend);
