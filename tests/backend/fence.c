#include "backend/fence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/compressed.h"
#include "backend/recurrent.h"

enum { FENCE_ALIGN = 1 << 14 /* the largest page of a system */ };
static const size_t fence_region_bytes = (size_t)8 << 30, fence_scratch_bytes = (size_t)1 << 28; /* of addresses */

Fence *fence_of(Backend *backend) { return (Fence *)backend; }

/* ---- the gate ---- */

void fence_expect(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "fence: %s\n", what);
    abort();
}

static void fence_set(Fence *f, int protection) {
    if (f->used) fence_expect(mprotect(f->region, f->used, protection) == 0, "memory cannot be protected");
}
static Backend *fence_enter(Fence *f) {
    fence_set(f, PROT_READ | PROT_WRITE);
    return f->inner;
}
void fence_leave(Fence *f) { fence_set(f, PROT_NONE); }

Backend *fence_enter_step(Fence *f) {
    fence_expect(f->walking, "an operation outside a step");
    return fence_enter(f);
}

static const FenceBlock *fence_block(const Fence *f, const void *memory) {
    const uint8_t *at = memory;
    for (int i = f->block_count - 1; i >= 0; i--)
        if (at >= f->blocks[i].start && at < f->blocks[i].start + f->blocks[i].bytes) return &f->blocks[i];
    return NULL;
}

/* All of it in one block that is alive. */
static void fence_own(const Fence *f, const void *memory, size_t bytes, const char *what) {
    const FenceBlock *block = fence_block(f, memory);
    fence_expect(block && bytes <= (size_t)(block->start + block->bytes - (const uint8_t *)memory), what);
}
void fence_own_floats(const Fence *f, const float *memory, int64_t count, const char *what) {
    fence_own(f, memory, (size_t)count * sizeof *memory, what);
}
static void fence_own_norm(const Fence *f, const Norm *norm) {
    if (norm && norm->weight) fence_own_floats(f, norm->weight, norm->width, "a norm that was not bound");
    if (norm && norm->bias) fence_own_floats(f, norm->bias, norm->width, "a norm whose bias was not bound");
}
static void fence_own_weight(const Fence *f, const Weight *w) {
    const size_t rows = (size_t)w->rows;
    fence_own(f, w->data, rows * weight_row_bytes(w), "a weight that was not bound");
    if (w->scales) fence_own(f, w->scales, rows * weight_scale_bytes(w), "scales that were not bound");
    if (w->biases) fence_own(f, w->biases, rows * weight_scale_bytes(w), "zero points that were not bound");
    if (w->bias) fence_own_floats(f, w->bias, w->rows, "a bias that was not bound");
}

/* ---- memory ---- */

static void *fence_alloc(Backend *backend, size_t bytes, MemoryOwner owner, Error *error) {
    Fence *f = fence_of(backend);
    fence_expect(!f->walking, "memory taken within a step");
    const size_t room = (bytes / FENCE_ALIGN + 1) * FENCE_ALIGN;
    if (f->block_count == FENCE_BLOCKS_MAX || bytes > fence_region_bytes || room > fence_region_bytes - f->used) {
        fail(error, ERROR_MEMORY, "the fence has no room for %zu bytes", bytes);
        return NULL;
    }
    FenceBlock *block = &f->blocks[f->block_count++];
    *block = (FenceBlock){f->region + f->used, bytes};
    f->used += room;
    return block->start;
}

static void fence_release(Backend *backend, void *memory) {
    Fence *f = fence_of(backend);
    if (!memory) return;
    fence_expect(!f->walking, "memory released within a step");
    FenceBlock *block = (FenceBlock *)fence_block(f, memory);
    fence_expect(block && block->start == memory && block != f->blocks, "release of what was never handed out");
    (void)madvise(block->start, block->bytes, MADV_DONTNEED);
    *block = f->blocks[--f->block_count];
}

static void fence_decommit(Backend *backend, void *memory, size_t bytes) {
    Fence *f = fence_of(backend);
    fence_own(f, memory, bytes, "a discard beyond what was handed out");
    fence_enter(f);
    memset(memory, 0xff, bytes); /* "may become zeros": so it may not be read again as it was */
    fence_leave(f);
}

/* A copy of `bytes` at *part, if there is such a part, at `to`; gives where the next one goes. */
static uint8_t *fence_copy_part(uint8_t *to, const void **part, size_t bytes) {
    if (!*part) return to;
    memcpy(to, *part, bytes);
    *part = to;
    return to + (bytes + 63) / 64 * 64;
}

/* All of a weight in one block that starts with its data. */
static bool fence_bind(Backend *backend, Weight *w, Error *error) {
    Fence *f = fence_of(backend);
    const size_t rows = (size_t)w->rows, scales = rows * weight_scale_bytes(w);
    uint8_t *to =
        fence_alloc(backend, rows * (weight_row_bytes(w) + sizeof(float)) + 2 * scales + 256, MEMORY_WEIGHTS, error);
    if (!to) return false;
    fence_enter(f);
    to = fence_copy_part(to, &w->data, rows * weight_row_bytes(w));
    to = fence_copy_part(to, &w->scales, scales);
    to = fence_copy_part(to, &w->biases, scales);
    const void *bias = w->bias;
    fence_copy_part(to, &bias, rows * sizeof(float));
    w->bias = bias;
    fence_leave(f);
    return true;
}
static void fence_unbind(Backend *backend, const Weight *w) { fence_release(backend, (void *)w->data); }

static void fence_upload(Backend *backend, void *to, const void *from, size_t bytes) {
    Fence *f = fence_of(backend);
    fence_own(f, to, bytes, "an upload to the host");
    Backend *inner = fence_enter(f);
    inner->ops->upload(inner, to, from, bytes);
    fence_leave(f);
}
static void fence_download(Backend *backend, void *to, const void *from, size_t bytes) {
    Fence *f = fence_of(backend);
    fence_own(f, from, bytes, "a download from the host");
    Backend *inner = fence_enter(f);
    inner->ops->download(inner, to, from, bytes);
    fence_leave(f);
}
static void fence_copy(Backend *backend, void *to, const void *from, size_t bytes) {
    Fence *f = fence_of(backend);
    fence_own(f, from, bytes, "a copy from elsewhere");
    fence_own(f, to, bytes, "a copy to elsewhere");
    Backend *inner = fence_enter(f);
    inner->ops->copy(inner, to, from, bytes);
    fence_leave(f);
}

/* ---- pages ---- */

static size_t fence_kv_layer_bytes(Backend *backend, const KvLayout *layout) {
    Backend *inner = fence_of(backend)->inner;
    return inner->ops->kv_layer_bytes(inner, layout);
}
static bool fence_page_read(Backend *backend, const KvLayer *layer, int32_t page, int tokens, void *out) {
    Fence *f = fence_of(backend);
    fence_own(f, layer->base, 1, "pages of somebody else");
    Backend *inner = fence_enter(f);
    const bool ok = inner->ops->page_read(inner, layer, page, tokens, out);
    fence_leave(f);
    return ok;
}
static size_t fence_kv_quant_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values) {
    Backend *inner = fence_of(backend)->inner;
    return inner->ops->kv_quant_bytes(inner, layout, form, values);
}
static void fence_kv_calibrate(Backend *backend, int count, const KvCalibration *surveys) {
    Fence *f = fence_of(backend);
    fence_expect(!f->walking, "a survey within a step");
    Backend *inner = fence_enter(f);
    inner->ops->kv_calibrate(inner, count, surveys);
    fence_leave(f);
}
static void fence_kv_quantise(Backend *backend, int count, const KvQuantise *pages) {
    Fence *f = fence_of(backend);
    fence_expect(!f->walking, "coding within a step");
    for (int i = 0; i < count; i++) {
        const KvStore *k = &pages[i].layer->k_quant[pages[i].code->k], *v = &pages[i].layer->v_quant[pages[i].code->v];
        fence_own(f, k->base + (size_t)pages[i].k_to * k->stride, k->stride, "codes of keys beyond the cache");
        fence_own(f, v->base + (size_t)pages[i].v_to * v->stride, v->stride, "codes of values beyond the cache");
    }
    Backend *inner = fence_enter(f);
    inner->ops->kv_quantise(inner, count, pages);
    fence_leave(f);
}
static bool fence_page_write(Backend *backend, const KvLayer *layer, int32_t page, int tokens, const void *from) {
    Fence *f = fence_of(backend);
    fence_own(f, layer->base, 1, "pages of somebody else");
    Backend *inner = fence_enter(f);
    const bool ok = inner->ops->page_write(inner, layer, page, tokens, from);
    fence_leave(f);
    return ok;
}

/* ---- the step ---- */

/* What the last step left is gone: NaN. */
static bool fence_begin(Backend *backend, const Step *step) {
    Fence *f = fence_of(backend);
    fence_expect(!f->walking, "a step within a step");
    Backend *inner = fence_enter(f);
    memset(f->blocks->start, 0xff, f->scratch_used);
    if (f->logits) memset(f->logits, 0xff, (size_t)f->logits_count * sizeof *f->logits);
    f->scratch_used = 0;
    f->walking = inner->ops->begin(inner, step);
    f->waited = false;
    fence_leave(f);
    return f->walking;
}
static void fence_set_rows(Backend *backend, const Step *rows) {
    Backend *inner = fence_enter_step(fence_of(backend));
    inner->ops->set_rows(inner, rows);
    fence_leave(fence_of(backend));
}
static uint64_t fence_submit(Backend *backend) {
    Fence *f = fence_of(backend);
    fence_expect(f->walking, "the end of a step that did not begin");
    f->walking = false;
    Backend *inner = fence_enter(f);
    const uint64_t ticket = inner->ops->submit(inner);
    fence_leave(f);
    return ticket;
}
static bool fence_wait(Backend *backend, uint64_t ticket, Error *error) {
    Fence *f = fence_of(backend);
    Backend *inner = fence_enter(f);
    f->waited = inner->ops->wait(inner, ticket, error);
    fence_leave(f);
    return f->waited;
}
static float *fence_scratch(Backend *backend, int64_t count) {
    Fence *f = fence_of(backend);
    float *memory = (float *)(void *)(f->blocks->start + f->scratch_used);
    f->scratch_used += ((size_t)count * sizeof *memory + 63) / 64 * 64;
    fence_expect(f->walking && f->scratch_used <= fence_scratch_bytes, "scratch outside a step, or too much");
    return memory;
}
static float *fence_read_logits(Backend *backend, float *logits, int64_t count) {
    Fence *f = fence_of(backend);
    fence_expect(f->waited, "logits of a step that was not waited for");
    fence_own_floats(f, logits, count, "logits from elsewhere");
    free(f->logits);
    f->logits = malloc((size_t)count * sizeof *f->logits);
    f->logits_count = count;
    fence_expect(f->logits != NULL, "no memory for logits");
    Backend *inner = fence_enter(f);
    memcpy(f->logits, inner->ops->read_logits(inner, logits, count), (size_t)count * sizeof *logits);
    fence_leave(f);
    return f->logits;
}

static void fence_embed(Backend *backend, const Embed *op) {
    Fence *f = fence_of(backend);
    fence_own_weight(f, op->table);
    fence_own_floats(f, op->out, op->rows * op->table->cols, "embeddings put elsewhere");
    for (int i = 0; i < op->given_count; i++) {
        const EmbeddingRange *range = &op->given[i];
        if (range->in_backend)
            fence_own_floats(f, range->values, range->rows * op->table->cols, "given embeddings of the backend");
        else
            fence_expect(!fence_block(f, range->values), "given embeddings of the host");
    }
    Backend *inner = fence_enter_step(f);
    inner->ops->embed(inner, op);
    fence_leave(f);
}
static void fence_norm(Backend *backend, int rows, const float *x, const Norm *norm, float *out) {
    Fence *f = fence_of(backend);
    fence_own_norm(f, norm);
    fence_own_floats(f, x, rows * norm->width, "what a norm reads");
    fence_own_floats(f, out, rows * norm->width, "what a norm writes");
    Backend *inner = fence_enter_step(f);
    inner->ops->norm(inner, rows, x, norm, out);
    fence_leave(f);
}
static void fence_matmul(Backend *backend, const Matmul *op) {
    Fence *f = fence_of(backend);
    fence_own_norm(f, op->norm);
    fence_own_floats(f, op->x, op->rows * op->weight[0]->cols, "what a product reads");
    for (int i = 0; i < op->count; i++) {
        fence_own_weight(f, op->weight[i]);
        fence_own_floats(f, op->out[i], op->rows * op->weight[i]->rows, "what a product writes");
    }
    Backend *inner = fence_enter_step(f);
    inner->ops->matmul(inner, op);
    fence_leave(f);
}
static void fence_glu(Backend *backend, const Glu *op) {
    Fence *f = fence_of(backend);
    fence_own_norm(f, op->norm);
    fence_own_weight(f, op->gate);
    fence_own_weight(f, op->up);
    fence_own_floats(f, op->x, op->rows * op->gate->cols, "what a gated product reads");
    fence_own_floats(f, op->out, op->rows * op->gate->rows, "what a gated product writes");
    Backend *inner = fence_enter_step(f);
    inner->ops->glu(inner, op);
    fence_leave(f);
}
static void fence_matmul_add(Backend *backend, const MatmulAdd *op) {
    Fence *f = fence_of(backend);
    fence_own_norm(f, op->norm);
    fence_own_weight(f, op->weight);
    fence_own_floats(f, op->x, op->rows * op->weight->cols, "what an added product reads");
    fence_own_floats(f, op->residual, op->rows * op->weight->rows, "what a product is added to");
    Backend *inner = fence_enter_step(f);
    inner->ops->matmul_add(inner, op);
    fence_leave(f);
}
static void fence_attention(Backend *backend, const Attention *op) {
    Fence *f = fence_of(backend);
    fence_own_norm(f, op->q_norm);
    fence_own_norm(f, op->k_norm);
    if (op->rope) fence_own_floats(f, op->rope->frequencies, op->rope->dims / 2, "frequencies that were not bound");
    if (op->sinks) fence_own_floats(f, op->sinks, op->heads, "sinks that were not bound");
    if (op->slopes) fence_own_floats(f, op->slopes, op->heads, "slopes that were not bound");
    fence_own(f, op->kv.base, 1, "pages of somebody else");
    if (op->q) fence_own(f, op->q, sizeof *op->q, "queries");
    if (op->q) fence_own(f, op->out, sizeof *op->out, "what attention writes");
    if (op->k) fence_own(f, op->k, sizeof *op->k, "keys");
    if (op->v) fence_own(f, op->v, sizeof *op->v, "values");
    if (op->gate) fence_own(f, op->gate, sizeof *op->gate, "gates");
    Backend *inner = fence_enter_step(f);
    inner->ops->attention(inner, op);
    fence_leave(f);
}
static void fence_mla(Backend *backend, const Mla *op) {
    Fence *f = fence_of(backend);
    const Rope *rope = op->attention.rope;
    const KvLayout *l = &op->attention.kv.layout;
    const int64_t rows = op->rows, heads = op->attention.heads;
    if (rope) fence_own_floats(f, rope->frequencies, rope->dims / 2, "frequencies that were not bound");
    for (int h = 0; h < heads; h++) {
        fence_own_weight(f, &op->w_uk[h]);
        fence_own_weight(f, &op->w_uv[h]);
    }
    fence_own(f, op->attention.kv.base, 1, "pages of somebody else");
    fence_own_floats(f, op->q, rows * heads * (op->nope_dim + l->head_dim), "queries");
    fence_own_floats(f, op->k, rows * l->head_dim, "keys");
    fence_own_floats(f, op->latent, rows * l->value_dim, "latents");
    fence_own_floats(f, op->work, rows * mla_width(op), "where latent attention works");
    fence_own_floats(f, op->out, rows * heads * op->w_uv[0].rows, "what latent attention writes");
    Backend *inner = fence_enter_step(f);
    inner->ops->mla(inner, op);
    fence_leave(f);
}
static void fence_conv(Backend *backend, const Conv *op) {
    Fence *f = fence_of(backend);
    fence_own(f, op->place.kv.base, 1, "pages of somebody else");
    for (int i = 0; i < op->part_count; i++) {
        const ConvPart *part = &op->part[i];
        fence_own_floats(f, part->weight, part->channels * op->taps, "taps that were not bound");
        if (part->bias) fence_own_floats(f, part->bias, part->channels, "a bias that was not bound");
        fence_own_floats(f, part->x, op->rows * part->channels, "what a convolution reads");
        fence_own_floats(f, part->out, op->rows * part->channels, "what a convolution writes");
        if (op->in_gate) fence_own_floats(f, op->in_gate, op->rows * part->channels, "gates of inputs");
        if (op->out_gate) fence_own_floats(f, op->out_gate, op->rows * part->channels, "gates of results");
    }
    Backend *inner = fence_enter_step(f);
    inner->ops->conv(inner, op);
    fence_leave(f);
}
static void fence_recurrence(Backend *backend, const Recurrence *op) {
    Fence *f = fence_of(backend);
    const int64_t keys = (int64_t)op->rows * op->key_heads * op->key_dim, heads = (int64_t)op->rows * op->value_heads;
    const int64_t decays = op->channel_decay ? op->key_dim : 1;
    fence_own_norm(f, op->q_norm);
    fence_own_norm(f, op->k_norm);
    if (op->rope) fence_own_floats(f, op->rope->frequencies, op->rope->dims / 2, "frequencies that were not bound");
    fence_own(f, op->place.kv.base, 1, "pages of somebody else");
    fence_own_floats(f, op->rate, op->value_heads, "rates that were not bound");
    if (op->dt_bias) fence_own_floats(f, op->dt_bias, op->value_heads * decays, "a bias that was not bound");
    if (op->dt_slope) fence_own_floats(f, op->dt_slope, op->value_heads, "slopes that were not bound");
    if (op->skip) fence_own_floats(f, op->skip, op->value_heads, "skips that were not bound");
    fence_own_floats(f, op->q, keys, "queries");
    fence_own_floats(f, op->k, keys, "keys");
    fence_own_floats(f, op->v, heads * op->value_dim, "values");
    if (op->a) fence_own_floats(f, op->a, heads * decays, "time steps");
    if (op->b) fence_own_floats(f, op->b, heads, "betas");
    fence_own_floats(f, op->work, op->rows * recurrence_width(op), "where a recurrence works");
    fence_own_floats(f, op->out, heads * op->value_dim, "what a recurrence writes");
    Backend *inner = fence_enter_step(f);
    inner->ops->recurrence(inner, op);
    fence_leave(f);
}
static void fence_mamba(Backend *backend, const Mamba *op) {
    Fence *f = fence_of(backend);
    fence_own(f, op->place.kv.base, 1, "pages of somebody else");
    fence_own_floats(f, op->rate, op->channels * op->state, "rates that were not bound");
    fence_own_floats(f, op->x, op->rows * op->channels, "what a mamba reads");
    fence_own_floats(f, op->skip, op->channels, "skips that were not bound");
    fence_own_floats(f, op->dt, op->rows * op->channels, "time steps");
    fence_own_floats(f, op->b, (int64_t)op->rows * op->state, "b of a mamba");
    fence_own_floats(f, op->c, (int64_t)op->rows * op->state, "c of a mamba");
    fence_own_floats(f, op->out, op->rows * op->channels, "what a mamba writes");
    Backend *inner = fence_enter_step(f);
    inner->ops->mamba(inner, op);
    fence_leave(f);
}
static void fence_rg_lru(Backend *backend, const RgLru *op) {
    Fence *f = fence_of(backend);
    const int64_t gates = op->channels * (op->channels / op->heads);
    fence_own(f, op->place.kv.base, 1, "pages of somebody else");
    fence_own_floats(f, op->rate, op->channels, "rates that were not bound");
    fence_own_floats(f, op->decay_gate, gates, "gates of decays that were not bound");
    fence_own_floats(f, op->decay_bias, op->channels, "their biases");
    fence_own_floats(f, op->input_gate, gates, "gates of inputs that were not bound");
    fence_own_floats(f, op->input_bias, op->channels, "their biases");
    fence_own_floats(f, op->x, op->rows * op->channels, "what an RG-LRU reads");
    fence_own_floats(f, op->out, op->rows * op->channels, "what an RG-LRU writes");
    Backend *inner = fence_enter_step(f);
    inner->ops->rg_lru(inner, op);
    fence_leave(f);
}
static void fence_gated_norm(Backend *backend, const GatedNorm *op) {
    Fence *f = fence_of(backend);
    if (op->weight) fence_own_floats(f, op->weight, op->width, "a norm that was not bound");
    fence_own_floats(f, op->x, op->rows * op->width, "what a gated norm reads");
    if (op->gate) fence_own_floats(f, op->gate, op->rows * op->width, "gates");
    fence_own_floats(f, op->out, op->rows * op->width, "what a gated norm writes");
    Backend *inner = fence_enter_step(f);
    inner->ops->gated_norm(inner, op);
    fence_leave(f);
}
static void fence_route(Backend *backend, const Routing *op) {
    Fence *f = fence_of(backend);
    const int64_t slots = (int64_t)op->rows * (op->top_k + op->shared);
    fence_own_floats(f, op->logits, (int64_t)op->rows * op->experts, "what a router reads");
    if (op->shared_logits)
        fence_own_floats(
            f, op->shared_logits, (int64_t)op->rows * (1 + op->shared_pair), "what a shared expert's weight is from");
    if (op->bias) fence_own_floats(f, op->bias, op->experts, "a router's bias that was not bound");
    if (op->table) fence_own_floats(f, op->table, op->top_k, "a table of experts that was not bound");
    if (op->expert_scale) fence_own_floats(f, op->expert_scale, op->experts, "factors that were not bound");
    fence_own_floats(f, op->weight, slots, "weights of experts put elsewhere");
    fence_own(f, op->index, (size_t)slots * sizeof *op->index, "numbers of experts put elsewhere");
    Backend *inner = fence_enter_step(f);
    inner->ops->route(inner, op);
    fence_leave(f);
}
static void fence_experts(Backend *backend, const Experts *op) {
    Fence *f = fence_of(backend);
    const int64_t slots = (int64_t)op->rows * op->top_k;
    for (int e = 0; e < op->count; e++) {
        if (op->source && !op->gate[e].data) continue; /* comes from elsewhere, in host memory */
        fence_own_weight(f, &op->gate[e]);
        fence_own_weight(f, &op->up[e]);
        fence_own_weight(f, &op->down[e]);
    }
    fence_own_floats(f, op->x, op->rows * op->gate[0].cols, "what experts read");
    fence_own_floats(f, op->weight, slots, "weights of experts");
    fence_own(f, op->index, (size_t)slots * sizeof *op->index, "numbers of experts");
    fence_own_floats(f, op->work, slots * (op->gate[0].rows + op->down[0].rows + 2), "where experts work");
    fence_own_floats(f, op->out, op->rows * op->down[0].rows, "what experts write");
    Backend *inner = fence_enter_step(f);
    inner->ops->experts(inner, op);
    fence_leave(f);
}
static void fence_activate(Backend *backend, int64_t count, const float *x, Activation activation, float *out) {
    Fence *f = fence_of(backend);
    fence_own_floats(f, x, count, "what an activation reads");
    fence_own_floats(f, out, count, "what an activation writes");
    Backend *inner = fence_enter_step(f);
    inner->ops->activate(inner, count, x, activation, out);
    fence_leave(f);
}
static void fence_multiply(Backend *backend, const Multiply *op) {
    Fence *f = fence_of(backend);
    fence_own_floats(f, op->x, op->rows * op->width, "what a product of elements reads");
    fence_own_floats(f, op->y, (op->rows - 1) * op->y_stride + op->width, "what a product of elements reads");
    fence_own_floats(f, op->out, op->rows * op->width, "what a product of elements writes");
    Backend *inner = fence_enter_step(f);
    inner->ops->multiply(inner, op);
    fence_leave(f);
}
static void fence_scale_queries(Backend *backend, int rows, int64_t width, const QueryScaling *scaling, float *x) {
    Fence *f = fence_of(backend);
    fence_own_floats(f, x, rows * width, "queries that are scaled");
    Backend *inner = fence_enter_step(f);
    inner->ops->scale_queries(inner, rows, width, scaling, x);
    fence_leave(f);
}
static void fence_gather(Backend *backend, int count, const int32_t *index, const float *x, int64_t width, float *out) {
    Fence *f = fence_of(backend);
    for (int i = 0; i < count; i++) fence_own_floats(f, x + index[i] * width, width, "a row that is gathered");
    fence_own_floats(f, out, count * width, "where rows are gathered");
    Backend *inner = fence_enter_step(f);
    inner->ops->gather(inner, count, index, x, width, out);
    fence_leave(f);
}
static void fence_logits(Backend *backend, int64_t count, float *x, float scale, float cap) {
    Fence *f = fence_of(backend);
    fence_own_floats(f, x, count, "logits from elsewhere");
    Backend *inner = fence_enter_step(f);
    inner->ops->logits(inner, count, x, scale, cap);
    fence_leave(f);
}
static void fence_add(
    Backend *backend, int rows, int64_t width, float *residual, const float *y, float scale, const Norm *norm) {
    Fence *f = fence_of(backend);
    fence_own_norm(f, norm);
    fence_own_floats(f, y, rows * width, "what is added");
    fence_own_floats(f, residual, rows * width, "what a sum is added to");
    Backend *inner = fence_enter_step(f);
    inner->ops->add(inner, rows, width, residual, y, scale, norm);
    fence_leave(f);
}

static void *fence_take_host(Backend *backend, size_t bytes, Error *error) {
    void *memory = malloc(bytes);
    if (!memory) fail(error, ERROR_MEMORY, "no memory for %zu bytes", bytes);
    fence_of(backend)->host_blocks += memory != NULL;
    return memory;
}
static void fence_give_host(Backend *backend, void *memory) {
    fence_expect(memory && fence_of(backend)->host_blocks-- > 0, "host memory that was never handed out");
    free(memory);
}

static void fence_mix_streams(Backend *backend, const StreamMix *op) {
    Fence *f = fence_of(backend);
    for (int i = 0; i < op->streams; i++) fence_own_floats(f, op->x + i * op->stride, op->rows * op->width, "a stream");
    if (op->mix) fence_own_floats(f, op->mix, (int64_t)op->rows * op->streams * op->streams, "a mix of streams");
    if (op->gain) fence_own_floats(f, op->gain, (int64_t)op->rows * op->streams, "gains of streams");
    if (op->y) fence_own_floats(f, op->y, op->rows * op->width, "what streams gain");
    Backend *inner = fence_enter_step(f);
    inner->ops->mix_streams(inner, op);
    fence_leave(f);
}
static void fence_match_rms(Backend *backend, const MatchRms *op) {
    Fence *f = fence_of(backend);
    fence_own_floats(f, op->target, op->rows * op->width, "rows to be matched");
    fence_own_floats(f, op->x, op->rows * op->width, "rows to be scaled");
    Backend *inner = fence_enter_step(f);
    inner->ops->match_rms(inner, op);
    fence_leave(f);
}
static void fence_sparsify(Backend *backend, const Sparsify *op) {
    Fence *f = fence_of(backend);
    fence_own_floats(f, op->x, op->rows * op->width, "rows to be made sparse");
    Backend *inner = fence_enter_step(f);
    inner->ops->sparsify(inner, op);
    fence_leave(f);
}
static void fence_gate_heads(Backend *backend, const HeadGate *op) {
    Fence *f = fence_of(backend);
    fence_own_floats(f, op->gate, (int64_t)op->rows * op->heads, "gates of heads");
    fence_own_floats(f, op->x, op->rows * op->heads * op->width, "gated heads");
    Backend *inner = fence_enter_step(f);
    inner->ops->gate_heads(inner, op);
    fence_leave(f);
}
static void fence_index_select(Backend *backend, const IndexSelect *op) {
    Fence *f = fence_of(backend);
    if (op->rope) fence_own_floats(f, op->rope->frequencies, op->rope->dims / 2, "frequencies that were not bound");
    fence_own(f, op->kv.base, 1, "pages of somebody else");
    fence_own(f, op->q, sizeof *op->q, "queries of an indexer");
    fence_own(f, op->k, sizeof *op->k, "keys of an indexer");
    if (op->weights) fence_own(f, op->weights, sizeof *op->weights, "weights of an indexer's heads");
    fence_own(f, op->chosen, sizeof *op->chosen, "chosen keys");
    Backend *inner = fence_enter_step(f);
    inner->ops->index_select(inner, op);
    fence_leave(f);
}
static void fence_compress(Backend *backend, const Compression *op) {
    Fence *f = fence_of(backend);
    const int64_t all = compression_width(op);
    if (op->norm) fence_own_norm(f, op->norm);
    fence_own_floats(f, op->rope->frequencies, op->rope->dims / 2, "frequencies that were not bound");
    fence_own_floats(f, op->position_bias, op->rate * all, "biases of positions that were not bound");
    fence_own_floats(f, op->values, op->rows * all, "values to be compressed");
    fence_own_floats(f, op->gates, op->rows * all, "gates of what is compressed");
    fence_own(f, op->state.base, 1, "pages of somebody else");
    fence_own(f, op->keys.base, 1, "pages of somebody else");
    Backend *inner = fence_enter_step(f);
    inner->ops->compress(inner, op);
    fence_leave(f);
}
static void fence_compressed_select(Backend *backend, const CompressedSelect *op) {
    Fence *f = fence_of(backend);
    fence_own_floats(f, op->rope->frequencies, op->rope->dims / 2, "frequencies that were not bound");
    fence_own_floats(f, op->q, (int64_t)op->rows * op->heads * op->width, "queries of an indexer");
    fence_own_floats(f, op->weights, (int64_t)op->rows * op->heads, "weights of an indexer's heads");
    fence_own_floats(f, op->work, 2 * (int64_t)op->rows * op->top_k, "where keys are chosen");
    fence_own(f, op->chosen, (size_t)op->rows * (size_t)compressed_chosen(op) * sizeof *op->chosen, "chosen keys");
    fence_own(f, op->keys.base, 1, "pages of somebody else");
    Backend *inner = fence_enter_step(f);
    inner->ops->compressed_select(inner, op);
    fence_leave(f);
}
static void fence_compressed_attention(Backend *backend, const CompressedAttention *op) {
    Fence *f = fence_of(backend);
    const int64_t count = (int64_t)op->rows * op->heads * op->width;
    fence_own_norm(f, op->q_norm);
    fence_own_norm(f, op->k_norm);
    fence_own_floats(f, op->rope->frequencies, op->rope->dims / 2, "frequencies that were not bound");
    fence_own_floats(f, op->sinks, op->heads, "sinks that were not bound");
    fence_own_floats(f, op->q, count, "queries");
    fence_own_floats(f, op->k, (int64_t)op->rows * op->width, "keys");
    fence_own_floats(f, op->out, count, "what attention writes");
    if (op->chosen) fence_own(f, op->chosen, (size_t)op->rows * (size_t)op->top_k * sizeof *op->chosen, "chosen keys");
    fence_own(f, op->latest.base, 1, "pages of somebody else");
    if (op->rate) fence_own(f, op->keys.base, 1, "pages of somebody else");
    Backend *inner = fence_enter_step(f);
    inner->ops->compressed_attention(inner, op);
    fence_leave(f);
}
static void fence_join_groups(Backend *backend, const GroupJoin *op) {
    Fence *f = fence_of(backend);
    fence_own_floats(f, op->x, op->rows * (op->repeated ? 1 : op->groups) * op->width, "groups to be joined");
    fence_own_floats(f, op->out, op->rows * op->groups * op->width, "joined groups");
    Backend *inner = fence_enter_step(f);
    inner->ops->join_groups(inner, op);
    fence_leave(f);
}
static void fence_hyper_connect(Backend *backend, const HyperConnection *op) {
    Fence *f = fence_of(backend);
    const int64_t logits = hyper_logits(op->streams, op->iterations, op->magnitude);
    fence_own_floats(f, op->x, op->rows * op->streams * op->width, "streams");
    fence_own_floats(f, op->logits, op->rows * logits, "logits of hyper-connections");
    fence_own_floats(f, op->scale, hyper_scales(op->iterations, op->magnitude), "scales that were not bound");
    fence_own_floats(f, op->base, logits, "a base that was not bound");
    if (op->y) fence_own_floats(f, op->y, op->rows * op->width, "what streams gain");
    if (op->out) fence_own_floats(f, op->out, op->rows * op->width, "what streams give");
    Backend *inner = fence_enter_step(f);
    inner->ops->hyper_connect(inner, op);
    fence_leave(f);
}
static void fence_close(Backend *backend) {
    Fence *f = fence_of(backend);
    fence_expect(f->block_count <= 1 && !f->host_blocks, "memory or a weight that nobody gave back");
    if (f->region) munmap(f->region, fence_region_bytes);
    backend_close(f->inner);
    free(f->logits);
    free(f);
}

static const BackendOps fence_ops = {
    .name = "fence",
    .alloc = fence_alloc,
    .release = fence_release,
    .decommit = fence_decommit,
    .bind = fence_bind,
    .unbind = fence_unbind,
    .upload = fence_upload,
    .download = fence_download,
    .copy = fence_copy,
    .take_host = fence_take_host,
    .give_host = fence_give_host,
    .kv_layer_bytes = fence_kv_layer_bytes,
    .page_read = fence_page_read,
    .page_write = fence_page_write,
    .kv_quant_bytes = fence_kv_quant_bytes,
    .kv_calibrate = fence_kv_calibrate,
    .kv_quantise = fence_kv_quantise,
    .begin = fence_begin,
    .set_rows = fence_set_rows,
    .submit = fence_submit,
    .wait = fence_wait,
    .scratch = fence_scratch,
    .read_logits = fence_read_logits,
    .embed = fence_embed,
    .norm = fence_norm,
    .matmul = fence_matmul,
    .glu = fence_glu,
    .matmul_add = fence_matmul_add,
    .attention = fence_attention,
    .mla = fence_mla,
    .index_select = fence_index_select,
    .conv = fence_conv,
    .recurrence = fence_recurrence,
    .mamba = fence_mamba,
    .rg_lru = fence_rg_lru,
    .gated_norm = fence_gated_norm,
    .route = fence_route,
    .experts = fence_experts,
    .activate = fence_activate,
    .multiply = fence_multiply,
    .scale_queries = fence_scale_queries,
    .gather = fence_gather,
    .logits = fence_logits,
    .add = fence_add,
    .mix_streams = fence_mix_streams,
    .match_rms = fence_match_rms,
    .sparsify = fence_sparsify,
    .gate_heads = fence_gate_heads,
    .compress = fence_compress,
    .compressed_select = fence_compressed_select,
    .compressed_attention = fence_compressed_attention,
    .join_groups = fence_join_groups,
    .hyper_connect = fence_hyper_connect,
    .close = fence_close,
};

Backend *fence_open(Backend *inner, Error *error) {
    Fence *f = calloc(1, sizeof *f);
    void *region = mmap(NULL, fence_region_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!f || region == MAP_FAILED) {
        fail(error, ERROR_MEMORY, "no memory for a fence");
        if (region != MAP_FAILED) munmap(region, fence_region_bytes);
        free(f);
        backend_close(inner);
        return NULL;
    }
    f->base = *inner;
    f->base.ops = &fence_ops;
    f->inner = inner;
    f->region = region;
    fence_alloc(&f->base, fence_scratch_bytes, MEMORY_STEP, error); /* finds room: it is the first */
    return &f->base;
}
