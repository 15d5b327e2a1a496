/* backend/: what computes: the table of operations, its checker (plan.c), a wrapper that measures (trace.c), and a
 * folder for each kind of device. Nothing here knows layers, families or files.
 *
 * The table of operations that a model runs on, and what it works with.
 *
 * Immediate mode: the decoder calls operations in order; each sees f32 activations in backend memory, row-major
 * [rows, width], and hides dtype and quantisation behind Weight. cpu/ref.c is the specification of every operation; the
 * other backends must equal it within the tolerances of tests/backend. plan.c computes nothing: it checks shapes and
 * counts scratch.
 *
 * Memory: what operations read and write is the backend's: weights that were bound to it, pages and scratch that it
 * handed out. Nobody else reads or writes through such an address (computing with it is fine); upload, download, copy,
 * page_read, page_write and read_logits are the ways in and out. tests/backend/fence.h proves it. Parameter structs,
 * tokens, positions, runs and their tables are the caller's, in host memory, and valid for the call (runs: until the
 * step is waited for).
 *
 * Shapes are checked by plan before the first real step, so inside an operation a wrong shape is a bug (CHECK).
 * Operations return nothing; a fault of the device is sticky and surfaces in wait(). Threads: one at a time.
 *
 * Determinism: on the CPU a row's result depends on nothing but that row, its sequence's cache and the chosen
 * instruction set: not on how many rows share the step, nor on the number of threads. Bit for bit. On a device the same
 * holds, but rows that lie behind the end of their prompts may be computed by another arithmetic than those of prompts:
 * where Backend.decode_rows_max is not 0, whoever steps says which they are (Step.generated and the operations'),
 * always the same of a token, and Step.many always or never. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/token.h"
#include "base/error.h"
#include "tensor/expert_provider.h"

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
    bool latent;   /* scores see values, too (Attention.q_latent) */
    /* A recurrent state instead, in f32 (cache/cache_spec.h); kv_heads is 0. */
    size_t anchor_bytes; /* the state before the first position of a page */
    size_t row_bytes;    /* of each position */
} KvLayout;

/* Of the first `tokens` tokens of a page, as page_read gives them. */
size_t kv_canonical_bytes(const KvLayout *layout, int tokens);

/* How one half of a page, its keys or its values, is kept: as it was computed, or as codes of so many bits. */
typedef enum KvForm { KV_FULL, KV_Q3, KV_Q4, KV_Q5, KV_Q6, KV_Q8, KV_FORMS } KvForm;

/* Coded pages of one form: page n lies at base + n · stride, stride = ops->kv_quant_bytes(). */
typedef struct KvStore {
    uint8_t *base; /* backend memory; NULL: not used so far */
    size_t stride;
} KvStore;

typedef struct Rope Rope;
typedef struct KvLayer {
    KvLayout layout;
    uint8_t *base; /* backend memory */
    size_t page_stride;
    size_t layer_offset;
    int page_tokens;     /* positions of a page: KV_PAGE_TOKENS, fewer for recurrent states */
    int group;           /* which page table of a run: layers that keep pages alike share one */
    int index;           /* of the layer: which tables of a KvQuantView */
    const float *k_bias; /* [kv_heads·head_dim] what every key held before its rope, bound; NULL: nothing */
    const Rope *rope;    /* NULL: none */
    KvStore k_quant[KV_FORMS], v_quant[KV_FORMS];
} KvLayer;

/* How one layer of a sequence is coded: asked for, then decided by kv_calibrate() and from then on constant. */
typedef struct KvQuant {
    KvForm k, v;          /* both EXACT: the layer is not coded; otherwise neither is. K never CODE3 */
    float noise;          /* predicted standard deviation of a score's error with 4-bit keys */
    uint64_t *bias_pairs; /* [kv_heads] bit i: pair i of the rope has its bias taken out before coding */
} KvQuant;

/* Which pages of a sequence are seen as codes, and where those are. Every page is coded once, whole, from its exact
 * form, so what a row sees depends on its position alone, however the text is cut into steps: row p sees tokens
 * sink ≤ t < kv_cold_end(p) as codes, all others exactly. In a step with row p pages from sink to kv_cold_end(p) are
 * coded, and pages from kv_cold_end(first row) on, and those below sink, are there exactly. */
typedef struct KvQuantView {
    int after;                                /* rows before it see everything exactly */
    int hot, sink;                            /* tokens, multiples of KV_PAGE_TOKENS */
    const KvQuant *layers;                    /* [KvLayer.index] */
    int32_t *const *k_pages, *const *v_pages; /* [KvLayer.index][page] of the form's store; −1: none */
} KvQuantView;
int kv_cold_end(const KvQuantView *quant, int position); /* a multiple of KV_PAGE_TOKENS ≥ sink; coding NULL: 0 */

/* Positions that see each other whichever comes first, as the parts of an image do: begin ≤ position < end. */
typedef struct BidirectionalSpan {
    int begin, end;
} BidirectionalSpan;

/* Consecutive rows of a step that belong to one sequence. Key j is visible to position i iff j ≤ i and (window == 0 or
 * j > i − window), or i and j lie in one span. */
typedef struct SequenceChunk {
    int row, rows;                /* which rows of the step */
    int position;                 /* of the first row in its sequence: its place in the cache */
    const int32_t *const *tables; /* [group][page]: page tables of the sequence, covering position + rows tokens */
    const KvQuantView *quant;     /* NULL: every page is exact */
    int span_count;
    const BidirectionalSpan *spans; /* in order, without overlap; each lies within the run */
} SequenceChunk;

enum { POSITION_DIMS_MAX = 3 };

/* Embeddings of consecutive rows of a step, as the first layer reads them: the token table's rows times its scale. */
typedef struct EmbeddingRange {
    int row, rows;
    const float *values; /* [rows, hidden]; borrowed until the step has been waited for */
    bool in_backend;     /* values is memory of the first layer's backend; otherwise of the host */
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
    uint64_t cache;             /* set by the decoder: equal for steps whose pages lie in the same memory; 0: unknown,
                                   and the walk is not repeated */
} Step;

/* Keys first ≤ j < end are visible to this position of the run. Neither decreases from one position to the next. */
typedef struct AttentionRange {
    int first, end;
} AttentionRange;
AttentionRange attention_range(const SequenceChunk *chunk, int window, int position);

/* ---- parameters of operations ---- */

typedef enum NormKind { NORM_RMS, NORM_LAYER } NormKind;
typedef struct Norm {
    NormKind kind;
    int64_t width;
    float eps;           /* inside the square root */
    const float *weight; /* [width] f32; NULL: ones. Families that store w−1 have the 1 added at load */
    const float *bias;   /* LAYER only; may be NULL */
} Norm;

typedef enum Activation {
    ACT_SILU,
    ACT_GELU,
    ACT_GELU_TANH,
    ACT_RELU2,
    ACT_NONE,
    ACT_SILU_CLAMPED, /* of gated products alone: g·σ(1.702·g)·(u + 1), g = min(gate, 7), u = up within ±7 (gpt-oss) */
} Activation;

/* Rotary position embedding. frequencies[i] is the angle per position of pair i; 0 leaves the pair alone. Angles are
 * computed as (float)position × frequency in f32, as mlx does. Only the first dims of a head rotate. */
struct Rope {
    int dims;
    bool interleaved;         /* pairs (2i, 2i+1); otherwise (i, i + dims/2) */
    const float *frequencies; /* [dims/2], bound */
    float scale;              /* multiplies the rotated values of q and k (yarn, longrope: mscale); 1 otherwise */
    int mrope_section[POSITION_DIMS_MAX]; /* pairs that turn by each axis of the positions, in order; all 0: axis 0 for
                                           * all
                                           */
    /* Dynamic NTK scaling, positions > 0: beyond so many positions the frequencies are those of a theta that grows with
     * the row's own position. (mlx_lm/models/rope_utils.py lets it grow with the length of the call instead, which
     * would make a row depend on how the text is cut; token by token it is the same.) */
    struct {
        int positions;
        float theta, factor;
    } dynamic;
};

/* angles[i] of each pair for one row of the step. frequencies must be readable: for operations only. */
void rope_angles(const Rope *rope, const Step *step, int row, float *angles);

enum { MATMUL_MAX = 4 };

/* Several matrices with one input: out[i] = W[i] · norm(x) + bias[i]. Every W[i] has cols = width of x. */
typedef struct Matmul {
    int rows, decode_rows;
    const float *x;   /* [rows, cols] */
    const Norm *norm; /* applied to each row first; NULL: none */
    int count;
    const Weight *weight[MATMUL_MAX];
    float *out[MATMUL_MAX]; /* [rows, weight[i]->rows] */
    bool coarse;            /* 8-bit activations will do, even of a precise backend */
    bool fine;              /* 16-bit ones are needed: a choice hangs on the results */
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

/* residual += scale · norm(W · x + bias). norm: of sandwich and post-norm models; NULL: none. */
typedef struct MatmulAdd {
    int rows, decode_rows;
    const float *x;
    const Weight *weight;
    const Norm *norm;
    float scale;
    float *residual;  /* [rows, weight->rows] */
    const Norm *next; /* a hint: through what the residual will be read next; NULL: not known */
    bool partial;     /* x and the weight are a part's columns: all_reduce() follows and does what is left */
} MatmulAdd;

/* A gated feed-forward network: glu, then down, whose x is glu.out. The bits of the residual are those of the two
 * operations in turn. glu.out is undefined afterwards, so a backend may keep the result between the two in a form of
 * its own. */
typedef struct FfnBlock {
    Glu glu;
    MatmulAdd down;
} FfnBlock;

/* Of the parts of a divided backend, where each computes some terms of one sum, in the order of the parts:
 * residual += scale · norm(Σ terms); residual NULL: terms = Σ terms. */
typedef struct RankSum {
    int rows;
    int64_t width;
    float *terms; /* [rows, width] this part's; NULL: of the partial product before */
    float *residual;
    float scale;
    const Norm *norm; /* NULL: none */
} RankSum;

enum {
    EXPERTS_MAX = 1024,    /* of a layer */
    EXPERTS_USED_MAX = 32, /* by a row */
    EXPERT_GROUPS_MAX = 64,
};

/* How router logits become scores. */
typedef enum RouteScore {
    ROUTE_SOFTMAX,     /* over all experts; the best are used with these scores */
    ROUTE_TOP_SOFTMAX, /* the best logits are used, with the softmax over them */
    ROUTE_SIGMOID,     /* of each */
    ROUTE_SPARSEMIXER, /* one after the other, the best logit t of those that are left, with its part of a softmax over
                          those of them that are near it: (t − x) / max(|x|, t) ≤ band (Phi-3.5-MoE) */
} RouteScore;

/* The experts that each row uses, best first, of equals the one that comes first; and their weights. */
typedef struct Routing {
    int rows, experts, used;
    const float *logits; /* [rows, experts] */
    RouteScore score;
    const float *bias;      /* [experts] added to the scores for the choice alone; NULL: none */
    int groups, topk_group; /* only experts of the best groups count, the others as score 0: a group is as good as its
                                two best together; 0: no groups */
    bool group_best;        /* a group is as good as its best alone */
    float jitter_eps;
    bool norm_topk_prob;        /* weights are divided by their sum + epsilon */
    float epsilon, scale;       /* scale: of all weights, at last */
    int shared;                 /* 1: one more expert, number `experts`, is used by every row, behind the others */
    const float *shared_logits; /* [rows] its weight is the sigmoid of this; NULL: 1 */
    bool shared_pair;           /* shared_logits are [rows, 2]: the softmax over both multiplies the weights of the
                                   others, and is that of the shared one */
    int32_t *index;             /* [rows, used + shared] */
    float *weight;              /* [rows, used + shared] */
} Routing;

/* With a source, the operation in two parts, so that something else can be computed between them, or what is likely to
 * be wanted soon. Only `index` of what it reads is needed for the first and for a hint. */
typedef enum ExpertsStage { EXPERTS_WHOLE, EXPERTS_REQUEST, EXPERTS_COMPUTE, EXPERTS_PREFETCH } ExpertsStage;

/* out[r] = Σ weight[r, i] · down_e(act(gate_e · x[r]) ∘ (up_e · x[r])), e = index[r, i], summed in the order of i. */
typedef struct Experts {
    int rows, decode_rows, count, used; /* count: of matrices in each bank, a shared expert included */
    const float *x;                     /* [rows, hidden] */
    const Weight *gate, *up, *down;     /* [count]; experts may differ in their inner width */
    /* Brings those experts whose matrices have no address, and which backends that say so compute where they come to
     * lie, in host memory; NULL: all are bound. A result is the same, whatever order they come in. */
    ExpertProvider *source;
    int layer, micro_batch; /* of the source's */
    ExpertsStage stage;
    Activation activation;
    const int32_t *index; /* [rows, used] of the backend, as route left them */
    const float *weight;
    float *work; /* [rows, used, inner + hidden + 2]: inner, the largest rows of gate; hidden, the rows of down */
    float *out;  /* [rows, hidden] */
} Experts;

/* A mixture as a whole, what these do in turn: normed = norm(x) (norm NULL: nothing), the router's product, its choice,
 * the experts, residual += scale · out_norm(their sum). Only the residual is sure to be there afterwards. */
typedef struct MoeBlock {
    const float *x;
    const Norm *norm, *out_norm;
    float *normed; /* [rows, hidden] what router and experts read, where there is a norm */
    Matmul router;
    Routing route;
    Experts experts;
    float *residual;
    float scale;
} MoeBlock;

/* out[r] = scale · table[tokens[r]], or, where the token is TOKEN_GIVEN, the row of the range that covers it. */
typedef struct Embed {
    int rows;
    const int32_t *tokens;
    const Weight *table;
    float scale;
    int given_count;
    const EmbeddingRange *given; /* [given_count] the step's */
    float *out;                  /* [rows, table->cols] */
} Embed;

/* For each row: normalise and rotate q and k per head, append k and v to the cache, attend to what is visible (Run). */
typedef struct Attention {
    int heads; /* of q; a multiple of kv.layout.kv_heads */
    KvLayer kv;
    float scale;                 /* multiplies q·k */
    float softcap;               /* s = cap·tanh(s/cap) before the mask; 0: none */
    int window;                  /* 0: full */
    const Norm *q_norm, *k_norm; /* per head, width = head_dim; NULL: none */
    bool norm_full;              /* the norms run over the whole projection (width = heads·head_dim) instead */
    bool norm_last;              /* they follow the rotation; not of whole projections */
    const Rope *rope;            /* NULL: none */
    const float *sinks;          /* [heads] extra logit in the denominator; NULL: none */
    float *q, *k;                /* [rows, heads·head_dim], [rows, kv_heads·head_dim]; both may be overwritten */
    const float *v;              /* [rows, kv_heads·value_dim]; k and v NULL: another layer has appended already */
    const float *gate;           /* [rows, heads·value_dim] its sigmoid multiplies the result; NULL: nothing does */
    float *q_latent; /* [rows, heads·value_dim] scores are q·k + q_latent·v; may be overwritten; NULL: q·k */
    float *out;      /* [rows, heads·value_dim] */
} Attention;

/* Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), absorbed: all heads share a key of head_dim elements,
 * which rotates, and a latent, which takes the place of the values. A head has matrices from its query to the latent's
 * space and from there to its result, so that the cache holds the latent alone:
 * score = scale · (rotated query · key + embed·(rest of the query) · latent); out = unembed · Σ weight · latent. */
typedef struct Mla {
    Attention attention;          /* heads, kv (one kv head, latent), scale, rope; the rest is the operation's */
    int rows, decode_rows, plain; /* plain: elements of a head's query that do not rotate, the first ones */
    const float *q;               /* [rows, heads·(plain + head_dim)] */
    float *k;                     /* [rows, head_dim], may be overwritten */
    const float *latent;          /* [rows, value_dim] */
    const Weight *embed, *w_uv;   /* [heads] value_dim × plain, width × value_dim */
    float *work;                  /* [rows · mla_width()] */
    float *out;                   /* [rows, heads·width] */
} Mla;
int64_t mla_width(const Mla *op); /* floats per row */

/* A look at the first tokens of a sequence, before any of its pages is coded. */
typedef struct KvCalibration {
    const KvLayer *layer;
    const int32_t *table; /* of exact pages */
    int tokens;           /* whole pages */
    bool raise;           /* K may get a form with more bits where the noise asks for it */
    KvQuant *code;        /* k and v as asked for; k, noise and bias_pairs are filled */
} KvCalibration;

/* One page of a layer to be coded. */
typedef struct KvQuantise {
    const KvLayer *layer;
    const KvQuant *code;
    int position;       /* of the page's first token */
    int32_t from;       /* the exact page, full */
    int32_t k_to, v_to; /* of the stores of code->k and code->v */
} KvQuantise;

enum { LOGIT_BLOCK = 64 };

/* What drawing from rows of logits begins with, in the arithmetic of engine/sampler.c, bit for bit: of each block of
 * logits, the last of which may be shorter, the largest (−∞ if there is none; NaN is passed over), then of each block
 * Σ e^((x − the row's largest) · scale). The sums mean nothing where the row's largest is not finite. */
typedef struct LogitSums {
    int rows;
    int64_t vocab;
    const float *logits; /* [rows, vocab] */
    const float *scales; /* [rows], the step's */
    float *out;          /* [rows, 2, blocks of vocab] */
} LogitSums;
enum { LOGIT_GROUP = 64 /* blocks */ };

/* How the token that follows an output is drawn from its logits, without the host: as engine/sampler.h says. */
typedef struct SampleParams {
    double uniform;  /* in (0, 1) */
    float scale;     /* of the exponents: 1 / temperature; 0: the token is the one with the largest logit */
    float top_p;     /* 1: off */
    float min_p_log; /* its logarithm; −∞: off */
    int top_k;       /* 0: off */
} SampleParams;

/* Draws a token for each row in the arithmetic of engine/sampler.c, bit for bit: so it does not matter who draws. Rows
 * whose logits the sampler would have to mend first, or that are no numbers, get −1. */
typedef struct LogitSampling {
    int rows;
    int64_t vocab;
    const float *logits;               /* [rows, vocab] */
    const SampleParams *sample_params; /* [rows], the step's */
    float *work;                       /* [rows, 2, blocks of vocab] */
} LogitSampling;

/* The blocks of a row; where the sums of so many logits lie behind them in scratch. */
static inline int64_t logit_blocks(int64_t vocab) { return (vocab + LOGIT_BLOCK - 1) / LOGIT_BLOCK; }
static inline int64_t logit_sums_at(int64_t logits) { return (logits + 15) / 16 * 16; }

/* ---- the table ---- */

/* Who owns memory: for accounts, and for backends that have several kinds. */
typedef enum MemoryOwner { MEMORY_WEIGHTS, MEMORY_CACHE, MEMORY_STEP } MemoryOwner;

typedef struct BackendOps {
    const char *name; /* "ref", "avx2", "avx512", "amx", "neon", "plan" */

    /* ---- memory: never in a step ---- */

    /* Zeroed; on the CPU taken from the system only as it is used. MEMORY_CACHE begins on a huge page; on a device only
     * what commit() was called for is there. */
    void *(*alloc)(Backend *, size_t bytes, MemoryOwner owner, Error *);
    void (*release)(Backend *, void *memory); /* NULL is fine */
    /* A part of a cache will be used, until discard(). False: there is no room for it. NULL: that needs no telling. */
    bool (*commit)(Backend *, void *memory, size_t bytes);
    /* What lies there is not needed any more: it may become zeros and go back to the system. */
    void (*decommit)(Backend *, void *memory, size_t bytes);
    /* Makes a weight in host memory one that operations can use: its pointers become the backend's. On the CPU they
     * stay as they are, and so does the host memory's lifetime. Norms, frequencies and other vectors are weights of one
     * f32 row. unbind() takes what bind() made. */
    bool (*bind)(Backend *, Weight *weight, Error *);
    void (*unbind)(Backend *, const Weight *weight);
    void (*upload)(Backend *, void *to, const void *from, size_t bytes);
    void (*download)(Backend *, void *to, const void *from, size_t bytes);
    void (*copy)(Backend *, void *to, const void *from, size_t bytes); /* both the backend's; a page, for instance */
    /* Host memory from which uploads are fast, and its end. Both NULL: they are as fast from any. */
    void *(*take_host)(Backend *, size_t bytes, Error *);
    void (*give_host)(Backend *, void *memory);

    /* ---- pages ---- */

    /* Bytes that one page of one layer takes. */
    size_t (*kv_layer_bytes)(Backend *, const KvLayout *);
    /* The first `tokens` tokens of a layer's page in canonical order, which every backend shares: K as
     * [token][kv_head][head_dim], then V as [token][kv_head][value_dim], in the layout's dtype, then the energy of the
     * queries as f32 [token][kv_head]: the mean of |q·scale|² over the query heads of the row that appended the key, of
     * |q_latent·scale|² where there are such, which kv_calibrate reads; who codes nothing may leave the latter. It has
     * kv_canonical_bytes() in host memory, aligned to nothing. Of a recurrent state: the anchor, then the rows, in f32.
     * False: the device failed, and wait() says why. */
    bool (*page_read)(Backend *, const KvLayer *, int32_t page, int tokens, void *out);
    bool (*page_write)(Backend *, const KvLayer *, int32_t page, int tokens, const void *from);
    /* Bytes of a page of codes of one layer, of its keys or its values; 0: this backend does not code such a layer.
     * kv_quant.h has the form and what it means. Coding happens between steps. */
    size_t (*kv_quant_bytes)(Backend *, const KvLayout *, KvForm form, bool values);
    void (*kv_calibrate)(Backend *, int count, const KvCalibration *);
    void (*kv_quantise)(Backend *, int count, const KvQuantise *);

    /* ---- the step ---- */

    /* The step that follows; its scratch is free again. False: the backend repeats what it kept of an earlier walk, and
     * the operations need not be called. */
    bool (*begin)(Backend *, const Step *);
    /* The operations that follow work on consecutive rows of the step, which this describes as if they were a step of
     * their own; scratch stays as it is. NULL: such a backend takes steps whole. */
    void (*set_rows)(Backend *, const Step *rows);
    /* Ends the walk; the results are there once its ticket was waited for. At most two steps are under way. */
    uint64_t (*submit)(Backend *);
    /* False when the device failed. */
    bool (*wait)(Backend *, uint64_t ticket, Error *);
    /* Scratch of the current step, released all at once by begin(). plan counts it; the others carve it from one block.
     */
    float *(*scratch)(Backend *, int64_t count);
    /* Logits as host memory that the caller may overwrite, valid until the next begin(); after wait(). NULL: they
     * cannot be read, and wait() says why. */
    float *(*read_logits)(Backend *, float *logits, int64_t count);

    void (*embed)(Backend *, const Embed *);
    void (*norm)(Backend *, int rows, const float *x, const Norm *norm, float *out); /* out may be x */
    void (*matmul)(Backend *, const Matmul *);
    void (*glu)(Backend *, const Glu *);
    void (*matmul_add)(Backend *, const MatmulAdd *);
    void (*ffn_block)(Backend *, const FfnBlock *); /* optional; NULL: glu, then matmul_add */
    void (*attention)(Backend *, const Attention *);
    void (*latent)(Backend *, const Mla *);
    void (*route)(Backend *, const Routing *);
    void (*experts)(Backend *, const Experts *);
    void (*moe_block)(Backend *, const MoeBlock *); /* experts without a source; NULL: the operations in turn will do */
    /* out = act(x), elementwise; MLPs without a gate. out may be x */
    void (*activate)(Backend *, int64_t count, const float *x, Activation activation, float *out);
    /* out[i] = x[index[i]] for rows of width floats: the rows whose logits are wanted */
    void (*gather)(Backend *, int count, const int32_t *index, const float *x, int64_t width, float *out);
    /* x = cap·tanh(scale·x/cap); cap 0: x = scale·x */
    void (*logits)(Backend *, int64_t count, float *x, float scale, float cap);
    void (*sum_logits)(Backend *, const LogitSums *); /* NULL: whoever draws does as well */
    void (*sample)(Backend *, const LogitSampling *); /* NULL: the step's draws are not looked at */
    /* What a step drew, [output_count], once it has been waited for and until the next but one begins. */
    const int32_t *(*sampled)(Backend *, uint64_t ticket); /* NULL with draw */
    /* residual += scale · norm(y) */
    void (*add)(Backend *, int rows, int64_t width, float *residual, const float *y, float scale, const Norm *norm);

    /* ---- as a part of a divided backend (tensor_parallel.h); all NULL: it has no more to say ---- */

    /* The calling thread works for this one from here on. */
    void (*enter)(Backend *);
    /* Open parts get to know each other, before anything else. */
    bool (*join)(Backend *const *parts, int count, Error *);
    /* Every part's is called for the same place of a step, in turn. */
    void (*all_reduce)(Backend *, const RankSum *);
    void (*close)(Backend *);
} BackendOps;

enum { BACKEND_DESCRIPTION_MAX = 96 };

struct Backend { /* first member of every backend's own struct */
    const BackendOps *ops;
    int rows_max;        /* largest step */
    int decode_rows_max; /* rows that operations may be told are generated; 0: a row's arithmetic does not depend on
                          * that
                          */
    bool exact;          /* f32 throughout: activations are not rounded, KV pages are f32 */
    bool bf16_pages;     /* exact KV pages are bf16 instead of f16 */
    bool sources;        /* experts may come from a source */
    char description[BACKEND_DESCRIPTION_MAX];
};

typedef struct BackendOptions {
    /* "cpu", "cuda", "cuda:N" or "auto", a GPU where one is found; NULL: "cpu" */
    const char *device;
    /* "auto", "ref", "avx2", "avx512", "amx", "neon": one that the machine lacks is an error that says what it has */
    const char *cpu;
    int threads;  /* 0: one per core that this process may use */
    bool precise; /* activations of quantised products as 16 bits instead of 8: slower prompts, errors 250 times smaller
                   */
    bool bf16_pages; /* KV pages as bf16 instead of f16, where they are not f32 */
    /* Takes the backend over and gives what is used in its place, also NULL with the error: trace.h; NULL: nothing. */
    Backend *(*wrap)(Backend *inner, Error *);
    int rows_max;
    size_t scratch_bytes; /* counted by plan */
    int tensor_parallel;  /* each layer is divided among so many of the device's kind, from it on; 0 and 1: it is not */
    struct Pool *pool;    /* threads shared with other backends, of which one at a time computes; NULL: its own */
} BackendOptions;

enum { BACKEND_RANKS_MAX = 2 }; /* tensor_parallel is at most */
/* Whether this name of a device, as in BackendOptions, is not the processor's; "auto" is where there is a GPU. */
bool backend_on_device(const char *device);
NODISCARD Backend *backend_open(const BackendOptions *options, Error *error);
NODISCARD Backend *plan_open(int rows_max, Error *error);
/* After a walk of the decoder on plan: bytes of scratch, or false with the first shape error met. */
NODISCARD bool plan_result(Backend *plan, size_t *scratch_bytes, Error *error);
void backend_close(Backend *backend); /* NULL is fine */
/* Bytes at `from`, one backend's, to another's at `to`. The step of `one` that wrote them has been waited for or is the
 * current one. staging: host memory for as many. */
void backend_move(Backend *one, const void *from, Backend *other, void *to, size_t bytes, void *staging);
/* One line for people: "avx512 (vnni, vbmi), int8 activations, 2 threads". */
const char *backend_describe(const Backend *backend);
