/* The operations of the table: their parameters as kernels take them, and the kernel by the dispatch table. */
#include <string.h>

#include "backend/cuda/cuda.h"

/* ---- inputs and outputs ---- */

/* Host integers for kernels: those of the step are on the device already; others are sent. NULL: no memory. */
static const int32_t *device_ints(
    CudaBackend *b, const int32_t *from, const int32_t *of_step, const int32_t *there, int count) {
    if (of_step && from == of_step) return there;
    CHECK(!b->capturing);
    const size_t bytes = (size_t)count * sizeof *from;
    if (!cuda_room(b, &b->spare, bytes, &b->fault)) return NULL;
    cuda_ok(b, cudaMemcpyAsync(b->spare.memory, from, bytes, cudaMemcpyHostToDevice, b->stream), "sending numbers");
    return b->spare.memory;
}

/* Hidden states of all rows: of the first such step the width becomes known, and is the same in those that follow. */
static void embed_states(CudaBackend *b, const Embed *op) {
    const int64_t width = op->table->cols;
    const size_t row = (size_t)width * sizeof(float);
    if (b->given.there) {
        cuda_ok(b,
            cudaMemcpyAsync(op->out, b->given.room.memory, (size_t)op->rows * row, cudaMemcpyDeviceToDevice, b->stream),
            "states");
        return;
    }
    cuda_bring_given(b, op->given_count, op->given, width, op->out);
    if (cuda_room(b, &b->given.room, CUDA_GIVEN_MAX * row, &b->fault)) b->given.width = width;
}

void cuda_embed(Backend *backend, const Embed *op) {
    CudaBackend *b = cuda_of(backend);
    if (op->given_count > 0 && b->given.all) {
        embed_states(b, op);
        return;
    }
    cuda_bring_given(b, op->given_count, op->given, op->table->cols, op->out);
    const int32_t *tokens = op->tokens == b->step.positions
        ? cuda_step_rows(b).positions
        : device_ints(b, op->tokens, b->step.tokens, cuda_step_tokens(b), op->rows);
    if (tokens)
        cuda_ok(b,
            rows_embed(b->stream, op->rows, tokens, b->sampled.device, cuda_tiles(b, op->table), op->scale,
                op->placeholder, op->out),
            "embed");
}

void cuda_gather(Backend *backend, int count, const int32_t *index, const float *x, int64_t width, float *out) {
    CudaBackend *b = cuda_of(backend);
    const bool states = index == b->step.hidden_rows;
    const int32_t *there = device_ints(b, index, states ? b->step.hidden_rows : b->step.outputs,
        states ? cuda_step_hidden_rows(b) : cuda_step_outputs(b), count);
    if (there) cuda_ok(b, rows_gather(b->stream, count, there, x, width, out), "gather");
}

/* ---- rows ---- */

void cuda_norm(Backend *backend, int rows, const float *x, const Norm *norm, float *out) {
    CudaBackend *b = cuda_of(backend);
    const RowNorm n = row_norm(norm);
    cuda_ok(b, rows_norm(b->stream, rows, x, &n, out), "norm");
}

void cuda_add(
    Backend *backend, int rows, int64_t width, float *residual, const float *y, float scale, const Norm *norm) {
    CudaBackend *b = cuda_of(backend);
    const RowNorm n = row_norm(norm);
    cuda_ok(b, rows_add(b->stream, rows, width, residual, y, scale, norm ? &n : NULL), "add");
}

void cuda_add_pair(CudaBackend *b, const AddPair *op) {
    const RowNorm x_norm = row_norm(op->x_norm), y_norm = row_norm(op->y_norm), norm = row_norm(op->norm);
    if (rows_add_pair_fits(op->residual, op->x, op->y, &x_norm, &y_norm, &norm)) {
        cuda_ok(b, rows_add_pair(b->stream, op->rows, op->residual, op->x, op->y, op->scale, &x_norm, &y_norm, &norm),
            "add");
        return;
    }
    if (op->x_norm) cuda_norm(&b->base, op->rows, op->x, op->x_norm, op->x);
    cuda_add(&b->base, op->rows, op->width, op->x, op->y, 1, op->y_norm);
    cuda_add(&b->base, op->rows, op->width, op->residual, op->x, op->scale, op->norm);
}

static void change_stream(CudaBackend *b) {
    cudaStream_t stream = b->stream;
    b->stream = b->beside.stream;
    b->beside.stream = stream;
    b->beside.now = !b->beside.now;
}
/* Kernels that wait for another stream's begin when those before them have ended. */
static void wait_for(CudaBackend *b, cudaStream_t stream, cudaEvent_t event) {
    cuda_ok(b, cudaStreamWaitEvent(stream, event, 0), "work beside other work");
    kernels_begin_apart(stream);
}
void cuda_beside_begin(CudaBackend *b) {
    cuda_ok(b, cudaEventRecord(b->beside.begins, b->stream), "work beside other work");
    wait_for(b, b->beside.stream, b->beside.begins);
    change_stream(b);
}
void cuda_beside_end(CudaBackend *b) {
    cuda_ok(b, cudaEventRecord(b->beside.ends, b->stream), "work beside other work");
    change_stream(b);
}
void cuda_beside_join(CudaBackend *b) { wait_for(b, b->stream, b->beside.ends); }

void cuda_activate(Backend *backend, int64_t count, const float *x, Activation activation, float *out) {
    CudaBackend *b = cuda_of(backend);
    cuda_ok(b, rows_activate(b->stream, count, x, &activation, out), "activate");
}

/* The product of a gate and its activation has the bits that a gated product gives it: on Hopper prefill rows, those
 * from prefill_from on, have a SiLU of their own. */
static void multiply(CudaBackend *b, const Multiply *op, int prefill_from) {
    cuda_ok(b, rows_multiply(b->stream, op, b->sm90a ? prefill_from : op->rows), "multiply");
}

void cuda_multiply(Backend *backend, const Multiply *op) {
    CudaBackend *b = cuda_of(backend);
    multiply(b, op, b->step.uniform_matmul ? op->rows : b->step.decode_rows);
}

void cuda_mix_streams(Backend *backend, const StreamMix *op) {
    CudaBackend *b = cuda_of(backend);
    CHECK(op->streams <= STREAMS_MAX);
    cuda_ok(b, rows_mix_streams(b->stream, op), "mix_streams");
}

void cuda_match_rms(Backend *backend, const MatchRms *op) {
    CudaBackend *b = cuda_of(backend);
    cuda_ok(b, rows_match_rms(b->stream, op), "match_rms");
}

void cuda_sparsify(Backend *backend, const Sparsify *op) {
    CudaBackend *b = cuda_of(backend);
    cuda_ok(b, rows_sparsify(b->stream, op), "sparsify");
}

void cuda_gate_heads(Backend *backend, const HeadGate *op) {
    CudaBackend *b = cuda_of(backend);
    cuda_ok(b, rows_gate_heads(b->stream, op), "gate_heads");
}

void cuda_scale_queries(Backend *backend, int rows, int64_t width, const QueryScaling *scaling, float *x) {
    CudaBackend *b = cuda_of(backend);
    cuda_ok(b, rows_scale_queries(b->stream, rows, width, scaling, cuda_step_rows(b).positions, x), "scale_queries");
}

void cuda_logits(Backend *backend, int64_t count, float *x, float scale, float cap) {
    CudaBackend *b = cuda_of(backend);
    if (b->capturing) b->capturing->copied = false; /* the logits have changed */
    cuda_ok(b, rows_logits(b->stream, count, x, scale, cap), "logits");
}

/* If the product itself copies the logits to the host, their sums are copied with them. */
void cuda_sum_logits(Backend *backend, const LogitSums *op) {
    CudaBackend *b = cuda_of(backend);
    const float *scales = op->scales == b->step.scales ? cuda_step_scales(b) : NULL;
    CHECK(scales);
    const bool there = b->capturing && b->capturing->copied && b->capturing->logits == op->logits;
    float *copy = there ? b->logits + (op->out - op->logits) : NULL;
    cuda_ok(
        b, rows_sum_logits(b->stream, op->rows, (int)op->vocab, op->logits, scales, op->out, copy), "sums of logits");
}

void cuda_sample(Backend *backend, const LogitSampling *op) {
    CudaBackend *b = cuda_of(backend);
    CHECK(op->sample_params == b->step.sample_params && op->rows == b->step.output_count);
    const SampleRows sample_params = cuda_step_sample_params(b);
    cuda_ok(b,
        rows_sample(b->stream, op->rows, (int)op->vocab, op->logits, b->sampling_now == SAMPLING_LARGEST, op->work,
            &sample_params, &b->sampled),
        "sampling tokens");
}

const int32_t *cuda_sampled(Backend *backend, uint64_t ticket) {
    return cuda_of(backend)->sampled.host[ticket % CUDA_STEPS];
}

/* ---- products ---- */

static Product product(CudaBackend *b, int rows, const float *x, int64_t cols) {
    if (b->sm90a) cuda_room(b, &b->partials, PRODUCT_PARTIAL_BYTES, &b->fault);
    return (Product){.rows = rows,
        .cols = (int)cols,
        .x = x,
        .inputs = b->inputs.memory,
        .multiprocessors = b->multiprocessors,
        .shared_bytes = b->shared_bytes,
        .sm90a = b->sm90a && b->partials.memory,
        .sliced = b->sliced || b->step.uniform_matmul,
        .has_moe = b->banks != NULL,
        .room = b->beside.now ? ROOM_HALF : ROOM_ANY,
        .partials = b->partials.memory};
}

/* Decode rows and prefill rows are separate products. */
static cudaError_t run(CudaBackend *b, Product *p, int decode_rows) {
    if (decode_rows == 0 || decode_rows == p->rows) {
        p->decode_rows = decode_rows > 0;
        return product_run(b->stream, p);
    }
    p->hands = p->handed = 0;
    p->then = NULL;
    p->copy = NULL;
    p->rank.theirs = NULL;
    Product part = *p;
    part.rows = decode_rows;
    part.decode_rows = 1;
    const cudaError_t error = product_run(b->stream, &part);
    if (error) return error;
    part = *p;
    part.rows = p->rows - decode_rows;
    part.x += (int64_t)decode_rows * p->cols;
    for (int i = 0; i < p->count; i++)
        if (part.out[i]) part.out[i] += (int64_t)decode_rows * p->weight[i].rows;
    return product_run(b->stream, &part);
}

/* Floats that are read after a step with this many rows of logits. */
static int64_t wanted_floats(const CudaBackend *b, int rows, int64_t vocab) {
    const int64_t logits = rows * vocab;
    return b->step.scales ? logit_sums_at(logits) + 2 * rows * logit_blocks(vocab) : logits;
}

/* few_follow: the kernel that follows has few blocks (ROOM_APART). */
static void matmul(CudaBackend *b, const Matmul *op, bool few_follow) {
    Product p = product(b, op->rows, op->x, op->weight[0]->cols);
    const RowNorm norm = row_norm(op->norm);
    if (op->norm) p.norm = &norm;
    p.count = op->count;
    if (few_follow) p.room = ROOM_APART;
    for (int i = 0; i < op->count; i++) {
        p.weight[i] = *cuda_tiles(b, op->weight[i]);
        p.out[i] = op->out[i];
    }
    const bool wanted = b->capturing && !b->step.sample_params && op->count == 1 &&
        op->out[0] == b->capturing->logits &&
        b->capturing->logits_count == wanted_floats(b, op->rows, op->weight[0]->rows);
    if (wanted) p.copy = b->logits;
    cuda_ok(b, run(b, &p, op->decode_rows), "product");
    if (!wanted || !p.copy) return;
    b->capturing->copied = true;
}
void cuda_matmul(Backend *backend, const Matmul *op) { matmul(cuda_of(backend), op, false); }

/* The form in which a gated product leaves its result for the single product that reads it. */
typedef struct Handover {
    bool halves; /* b->inputs holds `out` as that product's inputs as well */
    bool tiles;  /* `out` holds that product's inputs instead of floats */
} Handover;

/* then: weight of the single product that reads `out`; NULL: any operation may read it, and it is left as floats only.
 */
static Handover glu(CudaBackend *b, const Glu *op, const Weight *then) {
    Product p = product(b, op->rows, op->x, op->gate->cols);
    const RowNorm norm = row_norm(op->norm);
    if (op->norm) p.norm = &norm;
    p.count = 2;
    p.weight[0] = *cuda_tiles(b, op->gate);
    p.weight[1] = *cuda_tiles(b, op->up);
    p.out[0] = op->out;
    p.activation = op->activation;
    p.mode = PRODUCT_GLU;
    if (p.weight[0].kind == p.weight[1].kind && p.weight[0].bytes == p.weight[1].bytes) {
        p.hands = then && op->gate->rows <= b->cols_max && op->gate->rows % HANDED_COLS == 0;
        if (then) p.then = cuda_tiles(b, then);
        cuda_ok(b, run(b, &p, op->decode_rows), "gated product");
        return (Handover){p.hands, p.passed};
    }
    /* Matrices that are packed differently are two products. */
    const int64_t count = op->rows * op->gate->rows;
    if (!cuda_room(b, &b->spare, (size_t)count * sizeof(float), &b->fault)) return (Handover){0};
    p.mode = PRODUCT_STORE;
    p.out[1] = b->spare.memory;
    cuda_ok(b, run(b, &p, op->decode_rows), "gated product");
    const Multiply gate = {.rows = op->rows,
        .width = op->gate->rows,
        .x = op->out,
        .activation = op->activation,
        .y = p.out[1],
        .y_stride = op->gate->rows,
        .out = op->out};
    multiply(b, &gate, p.sliced ? op->rows : op->decode_rows);
    return (Handover){0};
}
void cuda_glu(Backend *backend, const Glu *op) { (void)glu(cuda_of(backend), op, NULL); }

/* from: handover of the gated product whose result is x. */
static void matmul_add(CudaBackend *b, const MatmulAdd *op, Handover from) {
    Product p = product(b, op->rows, op->x, op->weight->cols);
    const size_t bytes = (size_t)op->rows * (size_t)op->weight->rows * sizeof(float);
    p.handed = from.halves && op->weight->cols <= HANDED_COLS_MAX;
    p.passed = from.tiles;
    p.count = 1;
    p.weight[0] = *cuda_tiles(b, op->weight);
    p.mode = op->norm ? PRODUCT_STORE : PRODUCT_ADD;
    p.scale = op->scale;
    p.out[0] = op->residual;
    if (op->partial) {
        cuda_ranks_product(b, op, &p);
    } else if (op->norm) {
        if (!cuda_room(b, &b->spare, bytes, &b->fault)) return;
        p.out[0] = b->spare.memory;
    }
    cuda_ok(b, run(b, &p, op->decode_rows), "added product");
    const bool whole = !op->partial || cuda_ranks_summed(b, &p);
    if (op->partial) *op->partial = whole ? NULL : p.out[0];
    if (op->norm && whole) cuda_add(&b->base, op->rows, op->weight->rows, op->residual, p.out[0], op->scale, op->norm);
}
void cuda_matmul_add(Backend *backend, const MatmulAdd *op) { matmul_add(cuda_of(backend), op, (Handover){0}); }

void cuda_ffn_block(Backend *backend, const FfnBlock *op) {
    CudaBackend *b = cuda_of(backend);
    matmul_add(b, &op->down, glu(b, &op->glu, op->down.weight));
}

/* ---- the router ---- */

Router cuda_router(const Routing *op) {
    return (Router){.rows = op->rows,
        .experts = op->experts,
        .top_k = op->top_k,
        .logits = op->logits,
        .score = op->score,
        .bias = op->bias,
        .groups = op->groups,
        .topk_group = op->topk_group,
        .group_best = op->group_best,
        .jitter_eps = op->jitter_eps,
        .norm_topk_prob = op->norm_topk_prob,
        .epsilon = op->epsilon,
        .scale = op->scale,
        .shared = op->shared,
        .shared_logits = op->shared_logits,
        .shared_pair = op->shared_pair,
        .expert_scale = op->expert_scale,
        .index = op->index,
        .weight = op->weight};
}

void cuda_route(Backend *backend, const Routing *op) {
    CudaBackend *b = cuda_of(backend);
    Router router = cuda_router(op);
    if (op->table) {
        router.table = op->table;
        router.tokens = device_ints(b, op->tokens, b->step.tokens, cuda_step_tokens(b), op->rows);
        router.sampled = b->sampled.device;
        if (!router.tokens) return;
    }
    cuda_ok(b, rows_route(b->stream, &router), "a router");
}

/* ---- attention ---- */

/* Computes rows first … end − 1, in calls of as many rows as have room for their parts of `each` bytes. */
static void attend_rows(CudaBackend *b, Attend a, int first, int end, size_t each,
    cudaError_t (*kernel)(cudaStream_t stream, const Attend *attend)) {
    int rows = each ? (int)(CUDA_PARTIALS_BYTES / each) : end - first;
    rows = rows < 1 ? 1 : rows > end - first ? end - first : rows;
    if (!cuda_room(b, &b->partials, each * (size_t)rows, &b->fault)) return;
    a.partials = b->partials.memory;
    for (a.first_row = first; a.first_row < end; a.first_row += rows) {
        a.rows = end - a.first_row < rows ? end - a.first_row : rows;
        cuda_ok(b, kernel(b->stream, &a), "attention");
    }
}

static void attend_decode_rows(CudaBackend *b, Attend a, Kernel kernel) {
    if (kernel == KERNEL_FLASH_GROUP) {
        attend_rows(b, a, 0, a.decode_rows, flash_group_floats(&a) * sizeof(float), flash_group_decode);
        return;
    }
    if (!cuda_room(b, &b->arrivals, FLASH_DECODE_ARRIVALS * sizeof *a.arrivals, &b->fault)) return; /* zeros */
    a.arrivals = b->arrivals.memory;
    for (int first = 0, end; first < a.decode_rows; first = end) {
        end = first + FLASH_DECODE_ROWS_MAX < a.decode_rows ? first + FLASH_DECODE_ROWS_MAX : a.decode_rows;
        a.rows = end - first;
        attend_rows(b, a, first, end, flash_decode_floats(&a) * sizeof(float), flash_decode);
    }
}

static void attend_prefill_rows(CudaBackend *b, Attend a) {
    if (!cuda_room(b, &b->partials, flash_prefill_wgmma_bytes(&a), &b->fault)) return;
    a.partials = b->partials.memory;
    cuda_ok(b, flash_prefill_wgmma(b->stream, &a), "attention");
}

static PageKind page_kind(const Attend *a) {
    const int d = a->head_dim;
    if (a->dtype != DTYPE_F16) return PAGE_GENERIC;
    if (a->q_latent || d != a->value_dim) return PAGE_F16_ANY;
    if (d == 64 || d == 128 || d == 256) return PAGE_F16;
    return d > 64 && d < 256 && d % 8 == 0 ? PAGE_F16_PAD : PAGE_F16_ANY;
}
static bool attention_takes(Kernel kernel, const Attend *a) {
    if (a->slopes) return kernel == KERNEL_ATTENTION_GENERIC || kernel == KERNEL_KVQ_GENERIC;
    if (a->keys.block && kernel != KERNEL_FLASH_GROUP) return kernel == KERNEL_ATTENTION_GENERIC;
    switch (kernel) {
    case KERNEL_FLASH_DECODE: return flash_decode_fits(a);
    case KERNEL_FLASH_GROUP: return flash_group_fits(a);
    case KERNEL_FLASH_PREFILL_WGMMA: return flash_prefill_wgmma_fits(a);
    case KERNEL_FLASH_DECODE_ROWS: return flash_decode_rows_fit(a);
    case KERNEL_FLASH_DECODE_CLUSTER: return flash_decode_cluster_fits(a);
    case KERNEL_FLASH_DECODE_SPLIT:
    case KERNEL_FLASH_PREFILL_MMA: return attention_tiles_fit(a);
    case KERNEL_KVQ_DECODE:
    case KERNEL_KVQ_PREFILL: return kvq_is_fast(a);
    default: return true;
    }
}
Kernel cuda_attention_kernel(const CudaBackend *b, const Attend *a, KernelPhase phase, int chunk_rows, PageKind pages) {
    const KernelQuery query = {
        KERNEL_ATTENTION, b->arch == ARCH_SM90A ? phase : PHASE_UNIFORM, chunk_rows, b->arch, pages};
    const KernelRow *row = kernel_next(&query, NULL);
    while (row && !attention_takes(row->kernel, a)) row = kernel_next(&query, row);
    CHECK(row); /* the last row of each kind in the table takes any shape */
    return row->kernel;
}

/* Computes rows that read full-precision pages only. decode: the kernel of decode rows. beside: other rows of the step
 * read quantised pages. */
static void attend_full_precision(CudaBackend *b, Attend a, Kernel decode, bool beside) {
    if (beside) {
        a.step = cuda_step_full_precision(b);
        a.short_chunks = b->quant.short_chunks;
        a.long_chunks = b->quant.long_chunks;
    }
    if (a.decode_rows) attend_decode_rows(b, a, decode);
    if (a.decode_rows == a.step.rows) return;
    const Kernel kernel =
        cuda_attention_kernel(b, &a, PHASE_PREFILL, a.short_chunks ? 1 : ATTENTION_LONG_CHUNK, page_kind(&a));
    if (kernel == KERNEL_FLASH_PREFILL_WGMMA && a.decode_rows < b->step.decode_rows) {
        /* Decode rows of heads that flash_decode does not take. */
        const size_t each = (size_t)a.heads * (size_t)attention_generic_floats(&a) * sizeof(float);
        attend_rows(b, a, 0, b->step.decode_rows, each, attention_generic);
        a.decode_rows = b->step.decode_rows;
        if (a.decode_rows == a.step.rows) return;
    }
    const bool generic = kernel == KERNEL_ATTENTION_GENERIC;
    const int floats = generic ? attention_generic_floats(&a) : attention_tile_floats(&a);
    if (kernel == KERNEL_FLASH_PREFILL_WGMMA)
        attend_prefill_rows(b, a);
    else if (kernel == KERNEL_FLASH_GROUP)
        attend_rows(b, a, a.decode_rows, a.step.rows, b->sm90a ? 0 : flash_group_floats(&a) * sizeof(float),
            b->sm90a ? flash_group_prefill : flash_group_decode);
    else
        attend_rows(b, a, a.decode_rows, a.step.rows, (size_t)a.heads * (size_t)floats * sizeof(float),
            generic ? attention_generic : attention_tiles);
}

/* Spans that every block of heads_product() may merge in less time than a kernel takes. */
enum { UNMERGED_SPANS = 16 };
/* mla: the operation that calls it, if the layer has latents; NULL: none. unmerged: where not NULL, and if possible,
 * spans are not merged, and it says where they are. */
static void attend(CudaBackend *b, const Attention *op, const Mla *mla, Attend *unmerged) {
    const KvLayout *l = &op->kv.layout;
    Attend a = {.step = cuda_step_rows(b),
        .heads = op->heads,
        .kv_heads = l->kv_heads,
        .head_dim = l->head_dim,
        .value_dim = l->value_dim,
        .dtype = l->dtype,
        .scale = op->scale,
        .softcap = op->softcap,
        .window = op->window,
        .chunked = op->chunked,
        .span_rule = op->span_rule,
        .q_norm = row_norm(op->q_norm),
        .k_norm = row_norm(op->k_norm),
        .norm_full = op->norm_full,
        .norm_last = op->norm_last,
        .rope = cuda_rope_params(op->rope),
        .keys = op->selection,
        .sinks = op->sinks,
        .slopes = op->slopes,
        .slopes_bf16 = op->slopes_bf16,
        .q = op->q,
        .k = op->k,
        .v = op->v,
        .q_latent = op->q_latent,
        .out = op->out,
        .pages = op->kv.base + op->kv.layer_offset,
        .page_stride = (int64_t)op->kv.page_stride,
        .tables = cuda_step_tables(b, op->kv.group),
        .table_stride = b->block.table_stride};
    const KeySelection *keys = &op->selection;
    int tokens = b->pages * KV_PAGE_TOKENS;
    if (keys->block && !keys->stride) { /* keys of whole blocks, of which the last may have no positions yet */
        const int64_t most = (int64_t)keys->top_k * keys->block, all = (int64_t)tokens + keys->block - 1;
        tokens = (int)(most < all ? most : all);
    }
    a.spans = (tokens + ATTENTION_SPAN - 1) / ATTENTION_SPAN;
    a.slices = (tokens + ATTENTION_SLICE - 1) / ATTENTION_SLICE;
    a.short_chunks = b->short_chunks;
    a.long_chunks = b->long_chunks;
    a.single_rows = b->single_rows;
    a.chunks = b->step.chunk_count;
    a.shared_bytes = b->shared_bytes;
    a.sm90a = b->sm90a;
    const bool quantised = cuda_sees_quant(b, &op->kv);
    if (mla) a.v_norm = row_norm(mla->latent_norm);
    const Kernel decode = cuda_attention_kernel(b, &a, PHASE_DECODE, 1, page_kind(&a));
    if (decode == KERNEL_FLASH_DECODE || (decode == KERNEL_FLASH_GROUP && b->sm90a))
        a.decode_rows = b->step.decode_rows;
    const bool takes = decode == KERNEL_FLASH_DECODE || (mla && a.decode_rows && flash_group_prepares(&a)),
               alone = takes && a.single_rows && a.decode_rows == a.step.rows;
    a.in_chunks = decode == KERNEL_FLASH_DECODE && !mla && !quantised && !a.single_rows &&
        a.decode_rows == a.step.rows && b->chunk_rows <= FLASH_DECODE_CHUNK_ROWS && flash_decode_takes_chunks(&a);
    a.prepared = !(alone || a.in_chunks) || (quantised && !cuda_kvq4_takes_decode_rows(b, &op->kv, &a));
    if (mla && alone) {
        a.q = (float *)mla->q + mla->nope_dim;
        a.q_stride = mla->nope_dim + a.head_dim;
        a.unmerged = unmerged && a.step.rows == 1 && flash_group_spans(&a) <= UNMERGED_SPANS;
    } else if (mla) {
        cuda_ok(b,
            rows_copy(b->stream, mla->rows * a.heads, mla->q + mla->nope_dim, mla->nope_dim + a.head_dim, a.q,
                a.head_dim, a.head_dim),
            "queries of latents");
        if (a.v_norm.width)
            cuda_ok(b, rows_norm(b->stream, mla->rows, mla->latent, &a.v_norm, mla->latent), "norm of latents");
    }
    if (a.norm_full && (a.prepared || a.q_norm.kind || a.k_norm.kind)) { /* otherwise the kernels compute the norms */
        if (!cuda_room(b, &b->spare, 4 * sizeof(float) * (size_t)b->base.rows_max, &b->fault)) return;
        a.whole = b->spare.memory;
        cuda_ok(b, attention_norms(b->stream, &a), "attention");
    }
    if (!quantised && a.single_rows && b->arch != ARCH_SM90A) {
        const Kernel kernel = cuda_attention_kernel(b, &a, PHASE_UNIFORM, 1, page_kind(&a));
        if (kernel == KERNEL_FLASH_DECODE_ROWS || kernel == KERNEL_FLASH_DECODE_CLUSTER) {
            const bool rows = kernel == KERNEL_FLASH_DECODE_ROWS;
            cuda_ok(b, (rows ? flash_decode_rows : flash_decode_cluster)(b->stream, &a), "attention");
            return;
        }
    }
    if (a.prepared) cuda_ok(b, attention_prepare(b->stream, &a), "attention");
    if (!quantised || b->quant.mixed) attend_full_precision(b, a, decode, quantised);
    if (a.unmerged) {
        a.partials = b->partials.memory;
        *unmerged = a;
    }
    if (quantised) cuda_attend_quant(b, op, &a);
}

void cuda_attention(Backend *backend, const Attention *op) {
    CudaBackend *b = cuda_of(backend);
    attend(b, op, NULL, NULL);
    if (!op->gate) return;
    const int64_t count = (int64_t)b->step.rows * op->heads * op->kv.layout.value_dim;
    cuda_ok(b, rows_sigmoid(b->stream, count, op->out, op->gate), "gates of attention");
}

static HeadsProduct heads_of(
    CudaBackend *b, int rows, int heads, const float *x, int64_t x_width, const Weight *weight, float *out) {
    const CudaBank *bank = cuda_bank(b, weight, heads);
    if (!bank) return (HeadsProduct){0};
    CHECK(bank->alike); /* parts of one matrix */
    return (HeadsProduct){.rows = rows,
        .heads = heads,
        .kind = bank->most.kind,
        .tile_rows = (bank->most.rows + TILE_ROWS - 1) / TILE_ROWS,
        .bank = bank->tiles,
        .x = x,
        .out = out,
        .x_width = x_width,
        .out_width = weight->rows};
}

void cuda_mla(Backend *backend, const Mla *op) {
    CudaBackend *b = cuda_of(backend);
    const KvLayout *l = &op->attention.kv.layout;
    const int heads = op->attention.heads, queries = op->rows * heads;
    float *rotating = op->work, *latents = rotating + (int64_t)queries * l->head_dim,
          *attended = latents + (int64_t)queries * l->value_dim;
    const HeadsProduct up = heads_of(b, op->rows, heads, op->q, op->nope_dim + l->head_dim, op->w_uk, latents);
    HeadsProduct down = heads_of(b, op->rows, heads, attended, l->value_dim, op->w_uv, op->out);
    if (!up.bank || !down.bank) return;
    cuda_ok(b, heads_product(b->stream, &up), "products of heads");
    Attention attention = op->attention;
    attention.q = rotating;
    attention.k = op->k;
    attention.v = op->latent;
    attention.q_latent = latents;
    attention.out = attended;
    Attend unmerged = {0};
    attend(b, &attention, op, heads_merge(&down) ? &unmerged : NULL);
    if (unmerged.unmerged) {
        down.merge = &unmerged;
        down.spans = flash_group_spans(&unmerged);
    }
    cuda_ok(b, heads_product(b->stream, &down), "products of heads");
}

void cuda_choose_keys(CudaBackend *b, IndexChoice *choice) {
    const int keys = b->pages * KV_PAGE_TOKENS / choice->rate;
    choice->tokens = (keys + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
    const size_t each = index_choice_floats(choice) * sizeof(float);
    int rows = (int)(CUDA_PARTIALS_BYTES / each);
    rows = rows < 1 ? 1 : rows > b->step.rows ? b->step.rows : rows;
    if (!cuda_room(b, &b->partials, each * (size_t)rows, &b->fault)) return;
    choice->attend.partials = b->partials.memory;
    for (int first = 0; first < b->step.rows; first += rows) {
        choice->attend.first_row = first;
        choice->attend.rows = b->step.rows - first < rows ? b->step.rows - first : rows;
        cuda_ok(b, index_choose(b->stream, choice), "a choice of keys");
    }
}

void cuda_index_select(Backend *backend, const IndexSelect *op) {
    CudaBackend *b = cuda_of(backend);
    const KvLayout *l = &op->kv.layout;
    IndexChoice choice = {.attend = {.step = cuda_step_rows(b),
                              .heads = op->heads,
                              .kv_heads = 1,
                              .head_dim = l->head_dim,
                              .dtype = l->dtype,
                              .rope = cuda_rope_params(op->rope),
                              .q = op->q,
                              .k = op->k,
                              .pages = op->kv.base + op->kv.layer_offset,
                              .page_stride = (int64_t)op->kv.page_stride,
                              .tables = cuda_step_tables(b, op->kv.group),
                              .table_stride = b->block.table_stride},
        .weights = op->weights,
        .block = op->block,
        .rate = 1,
        .local = op->local,
        .top_k = op->top_k,
        .chosen = op->chosen};
    cuda_ok(b, attention_prepare(b->stream, &choice.attend), "an indexer");
    cuda_choose_keys(b, &choice);
}

void cuda_attention_block(Backend *backend, const AttentionBlock *op) {
    CudaBackend *b = cuda_of(backend);
    matmul(b, &op->project, op->project.rows == 1 && b->pages <= ATTENTION_FEW_PAGES);
    cuda_attention(backend, &op->attention);
    matmul_add(b, &op->output, (Handover){0});
}
