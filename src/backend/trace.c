/* The tracing backend: every operation is forwarded between two readings of the clock. */
#include "backend/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/recurrent.h"
#include "base/clock.h"

typedef enum Kind {
    KIND_EMBED,
    KIND_NORM,
    KIND_MATMUL,
    KIND_HEAD,
    KIND_GLU,
    KIND_MATMUL_ADD,
    KIND_ATTENTION,
    KIND_MLA,
    KIND_CONV,
    KIND_DELTA,
    KIND_SSD,
    KIND_MAMBA,
    KIND_RG_LRU,
    KIND_GATED_NORM,
    KIND_ROUTE,
    KIND_EXPERTS,
    KIND_ACTIVATE,
    KIND_MULTIPLY,
    KIND_SCALE_QUERIES,
    KIND_GATHER,
    KIND_LOGITS,
    KIND_ADD,
    KIND_STREAMS,
    KIND_COMPRESSED,
    KIND_INDEX_SELECT,
} Kind;

/* Key of a line: operation and shapes. Compared as bytes: there is no padding. */
typedef struct Shape {
    Kind kind;
    int32_t weights;
    struct {
        int64_t rows, cols;
        int32_t quant, bits, group, dtype;
    } weight[MATMUL_MAX];
    int32_t heads, kv_heads, head_dim, value_dim, window, dtype;
} Shape;
_Static_assert(sizeof(Shape) == 8 + MATMUL_MAX * 32 + 24, "padding");

typedef struct TraceBackend {
    Backend base;
    BackendOps ops; /* under the inner backend's name */
    Backend *inner;
    Step step;
    bool gathered; /* the operations that follow belong to the output head: rows whose logits are computed */
    int count;
    Shape shapes[TRACE_LINES_MAX];
    TraceLine lines[TRACE_LINES_MAX];
} TraceBackend;

static TraceBackend *trace(Backend *backend) { return (TraceBackend *)backend; }

/* ---- names ---- */

static void add_text(char *out, const char *text) {
    const size_t used = strlen(out);
    snprintf(out + used, TRACE_NAME_MAX - used, "%s", text);
}

static void name_kind(const Shape *shape, int i, char *out, size_t size) {
    const Quant quant = (Quant)shape->weight[i].quant;
    if (quant == QUANT_NONE)
        snprintf(out, size, " %s", dtype_name((DType)shape->weight[i].dtype));
    else if (quant == QUANT_AFFINE)
        snprintf(out, size, " %d-bit g%d", shape->weight[i].bits, shape->weight[i].group);
    else if (quant_is_affine(quant))
        snprintf(out, size, " %d-bit %s", shape->weight[i].bits, quant_name(quant));
    else
        snprintf(out, size, " %s", quant_name(quant));
}

/* Appends " 1536→1536,256,256 4-bit g64"; all differing kinds are named. */
static void name_weights(const Shape *shape, char *name) {
    char text[48], last[48] = "";
    for (int i = 0; i < shape->weights; i++) {
        if (i == 0) {
            snprintf(text, sizeof text, " %lld→", (long long)shape->weight[i].cols);
            add_text(name, text);
        }
        snprintf(text, sizeof text, "%s%lld", i ? "," : "", (long long)shape->weight[i].rows);
        add_text(name, text);
    }
    for (int i = 0; i < shape->weights; i++) {
        name_kind(shape, i, text, sizeof text);
        if (strcmp(text, last)) add_text(name, text);
        snprintf(last, sizeof last, "%s", text);
    }
}

static void name_line(const Shape *shape, char *name) {
    static const char *const names[] = {[KIND_EMBED] = "embed",
        [KIND_NORM] = "norm",
        [KIND_MATMUL] = "matmul",
        [KIND_HEAD] = "head",
        [KIND_GLU] = "glu",
        [KIND_MATMUL_ADD] = "matmul_add",
        [KIND_ATTENTION] = "attention",
        [KIND_MLA] = "mla",
        [KIND_CONV] = "conv",
        [KIND_DELTA] = "delta",
        [KIND_SSD] = "ssd",
        [KIND_MAMBA] = "mamba",
        [KIND_RG_LRU] = "rg_lru",
        [KIND_GATED_NORM] = "gated_norm",
        [KIND_ROUTE] = "route",
        [KIND_EXPERTS] = "experts",
        [KIND_ACTIVATE] = "activate",
        [KIND_MULTIPLY] = "multiply",
        [KIND_SCALE_QUERIES] = "scale_queries",
        [KIND_GATHER] = "gather",
        [KIND_LOGITS] = "logits",
        [KIND_ADD] = "add",
        [KIND_STREAMS] = "streams",
        [KIND_COMPRESSED] = "compressed",
        [KIND_INDEX_SELECT] = "index_select"};
    char text[64];
    name[0] = 0;
    add_text(name, names[shape->kind]);
    name_weights(shape, name);
    if (shape->kind == KIND_DELTA || shape->kind == KIND_SSD) {
        snprintf(text, sizeof text, " %d/%d heads of %d × %d", shape->heads, shape->kv_heads, shape->head_dim,
            shape->value_dim);
        add_text(name, text);
    }
    if (shape->kind != KIND_ATTENTION) return;
    snprintf(text, sizeof text, " %d/%d heads of %d %s", shape->heads, shape->kv_heads, shape->head_dim,
        dtype_name((DType)shape->dtype));
    add_text(name, text);
    if (!shape->window) return;
    snprintf(text, sizeof text, " window %d", shape->window);
    add_text(name, text);
}

/* ---- sums ---- */

/* The line of a shape; the last line collects all shapes beyond TRACE_LINES_MAX. */
static TraceLine *line_of(TraceBackend *t, const Shape *shape) {
    for (int i = 0; i < t->count; i++)
        if (!memcmp(&t->shapes[i], shape, sizeof *shape)) return &t->lines[i];
    if (t->count == TRACE_LINES_MAX) return &t->lines[TRACE_LINES_MAX - 1];
    t->shapes[t->count] = *shape;
    name_line(shape, t->lines[t->count].name);
    return &t->lines[t->count++];
}

static void note(TraceBackend *t, const Shape *shape, int64_t ns, uint64_t bytes, uint64_t operations, bool integer) {
    TraceLine *line = line_of(t, shape);
    line->calls++;
    line->ns += ns;
    line->bytes += bytes;
    line->operations += operations;
    line->integer = integer;
}

static Shape shape_of(Kind kind) {
    Shape shape;
    memset(&shape, 0, sizeof shape);
    shape.kind = kind;
    return shape;
}

static void add_weight(Shape *shape, const Weight *w) {
    const int i = shape->weights++;
    shape->weight[i].rows = w->rows;
    shape->weight[i].cols = w->cols;
    shape->weight[i].quant = (int32_t)w->quant;
    shape->weight[i].bits = w->quant == QUANT_NONE ? 0 : w->bits;
    shape->weight[i].group = w->quant == QUANT_NONE ? 0 : w->group;
    shape->weight[i].dtype = (int32_t)w->dtype;
}

static void note_product(TraceBackend *t, Kind kind, const Weight *const *weights, int count, int rows, int64_t ns) {
    Shape shape = shape_of(kind);
    uint64_t bytes = 0, operations = 0;
    bool integer = true;
    for (int i = 0; i < count; i++) {
        const Weight *w = weights[i];
        add_weight(&shape, w);
        bytes += weight_bytes(w);
        operations += 2 * (uint64_t)rows * (uint64_t)w->rows * (uint64_t)w->cols;
        integer = integer && w->quant != QUANT_NONE && w->quant != QUANT_MXFP8;
    }
    note(t, &shape, ns, bytes, operations, integer);
}

/* ---- the table ---- */

static void *trace_alloc(Backend *backend, size_t bytes, MemoryOwner owner, Error *error) {
    Backend *inner = trace(backend)->inner;
    return inner->ops->alloc(inner, bytes, owner, error);
}

static void trace_release(Backend *backend, void *memory) {
    Backend *inner = trace(backend)->inner;
    inner->ops->release(inner, memory);
}

static bool trace_commit(Backend *backend, void *memory, size_t bytes) {
    Backend *inner = trace(backend)->inner;
    return !inner->ops->commit || inner->ops->commit(inner, memory, bytes);
}

static void trace_decommit(Backend *backend, void *memory, size_t bytes) {
    Backend *inner = trace(backend)->inner;
    inner->ops->decommit(inner, memory, bytes);
}

static bool trace_bind(Backend *backend, Weight *weight, Error *error) {
    Backend *inner = trace(backend)->inner;
    return inner->ops->bind(inner, weight, error);
}

static void trace_unbind(Backend *backend, const Weight *weight) {
    Backend *inner = trace(backend)->inner;
    inner->ops->unbind(inner, weight);
}

static void trace_upload(Backend *backend, void *to, const void *from, size_t bytes) {
    Backend *inner = trace(backend)->inner;
    inner->ops->upload(inner, to, from, bytes);
}

static void trace_download(Backend *backend, void *to, const void *from, size_t bytes) {
    Backend *inner = trace(backend)->inner;
    inner->ops->download(inner, to, from, bytes);
}

static void trace_copy(Backend *backend, void *to, const void *from, size_t bytes) {
    Backend *inner = trace(backend)->inner;
    inner->ops->copy(inner, to, from, bytes);
}

static size_t trace_kv_layer_bytes(Backend *backend, const KvLayout *layout) {
    Backend *inner = trace(backend)->inner;
    return inner->ops->kv_layer_bytes(inner, layout);
}

static bool trace_page_read(Backend *backend, const KvLayer *layer, int32_t page, int tokens, void *out) {
    Backend *inner = trace(backend)->inner;
    return inner->ops->page_read(inner, layer, page, tokens, out);
}

static size_t trace_kv_quant_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values) {
    Backend *inner = trace(backend)->inner;
    return inner->ops->kv_quant_bytes(inner, layout, form, values);
}

static void trace_kv_calibrate(Backend *backend, int count, const KvCalibration *calibrations) {
    Backend *inner = trace(backend)->inner;
    inner->ops->kv_calibrate(inner, count, calibrations);
}

static void trace_kv_quantise(Backend *backend, int count, const KvQuantise *pages) {
    Backend *inner = trace(backend)->inner;
    inner->ops->kv_quantise(inner, count, pages);
}

static bool trace_page_write(Backend *backend, const KvLayer *layer, int32_t page, int tokens, const void *from) {
    Backend *inner = trace(backend)->inner;
    return inner->ops->page_write(inner, layer, page, tokens, from);
}

static bool trace_begin(Backend *backend, const Step *step) {
    TraceBackend *t = trace(backend);
    for (int i = 0; i < t->count; i++) {
        TraceLine *line = &t->lines[i];
        line->calls = 0;
        line->ns = 0;
        line->bytes = line->operations = 0;
    }
    t->step = *step;
    t->gathered = false;
    return t->inner->ops->begin(t->inner, step);
}

static void trace_set_rows(Backend *backend, const Step *rows) {
    TraceBackend *t = trace(backend);
    t->step = *rows;
    t->inner->ops->set_rows(t->inner, rows);
}

static uint64_t trace_submit(Backend *backend) {
    Backend *inner = trace(backend)->inner;
    return inner->ops->submit(inner);
}

static bool trace_wait(Backend *backend, uint64_t ticket, Error *error) {
    Backend *inner = trace(backend)->inner;
    return inner->ops->wait(inner, ticket, error);
}

static float *trace_scratch(Backend *backend, int64_t count) {
    Backend *inner = trace(backend)->inner;
    return inner->ops->scratch(inner, count);
}

static float *trace_read_logits(Backend *backend, float *logits, int64_t count) {
    Backend *inner = trace(backend)->inner;
    return inner->ops->read_logits(inner, logits, count);
}

static void trace_sum_logits(Backend *backend, const LogitSums *op) {
    Backend *inner = trace(backend)->inner;
    inner->ops->sum_logits(inner, op);
}

static void trace_sample(Backend *backend, const LogitSampling *op) {
    Backend *inner = trace(backend)->inner;
    inner->ops->sample(inner, op);
}

static const int32_t *trace_sampled(Backend *backend, uint64_t ticket) {
    Backend *inner = trace(backend)->inner;
    return inner->ops->sampled(inner, ticket);
}

static void trace_embed(Backend *backend, const Embed *op) {
    TraceBackend *t = trace(backend);
    Shape shape = shape_of(KIND_EMBED);
    add_weight(&shape, op->table);
    const int64_t start = clock_ns();
    t->inner->ops->embed(t->inner, op);
    const int64_t ns = clock_ns() - start;
    const size_t scales = weight_scale_bytes(op->table) * (op->table->biases ? 2 : 1);
    note(t, &shape, ns, (uint64_t)op->rows * (weight_row_bytes(op->table) + scales), 0, false);
}

static void trace_norm(Backend *backend, int rows, const float *x, const Norm *norm, float *out) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_NORM);
    const int64_t start = clock_ns();
    t->inner->ops->norm(t->inner, rows, x, norm, out);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_matmul(Backend *backend, const Matmul *op) {
    TraceBackend *t = trace(backend);
    const int64_t start = clock_ns();
    t->inner->ops->matmul(t->inner, op);
    note_product(t, t->gathered ? KIND_HEAD : KIND_MATMUL, op->weight, op->count, op->rows, clock_ns() - start);
}

static void trace_glu(Backend *backend, const Glu *op) {
    TraceBackend *t = trace(backend);
    const Weight *weights[] = {op->gate, op->up};
    const int64_t start = clock_ns();
    t->inner->ops->glu(t->inner, op);
    note_product(t, KIND_GLU, weights, 2, op->rows, clock_ns() - start);
}

static void trace_matmul_add(Backend *backend, const MatmulAdd *op) {
    TraceBackend *t = trace(backend);
    const int64_t start = clock_ns();
    t->inner->ops->matmul_add(t->inner, op);
    note_product(t, KIND_MATMUL_ADD, &op->weight, 1, op->rows, clock_ns() - start);
}

/* A chunk's keys and values are read once for all its rows. */
static void trace_attention(Backend *backend, const Attention *op) {
    TraceBackend *t = trace(backend);
    const KvLayout *l = &op->kv.layout;
    const uint64_t width = (uint64_t)(l->head_dim + l->value_dim);
    Shape shape = shape_of(KIND_ATTENTION);
    shape.heads = op->heads;
    shape.kv_heads = l->kv_heads;
    shape.head_dim = l->head_dim;
    shape.value_dim = l->value_dim;
    shape.window = op->window;
    shape.dtype = (int32_t)l->dtype;
    uint64_t bytes = 0, operations = 0;
    for (int r = 0; r < t->step.chunk_count; r++) {
        const SequenceChunk *chunk = &t->step.chunks[r];
        const int end = chunk->position + chunk->rows;
        const int read = end - attention_range(chunk, op->window, op->chunked, op->span_rule, chunk->position).first;
        bytes += (uint64_t)read * (uint64_t)l->kv_heads * width * dtype_bytes(l->dtype);
        for (int position = chunk->position; position < end; position++) {
            const AttentionRange seen = attention_range(chunk, op->window, op->chunked, op->span_rule, position);
            operations += 2 * (uint64_t)(seen.end - seen.first) * (uint64_t)op->heads * width;
        }
    }
    const int64_t start = clock_ns();
    t->inner->ops->attention(t->inner, op);
    note(t, &shape, clock_ns() - start, bytes, operations, false);
}

static void trace_mla(Backend *backend, const Mla *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_MLA);
    const int64_t start = clock_ns();
    t->inner->ops->mla(t->inner, op);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_conv(Backend *backend, const Conv *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_CONV);
    const uint64_t channels = (uint64_t)conv_channels(op), taps = (uint64_t)op->taps;
    const int64_t start = clock_ns();
    t->inner->ops->conv(t->inner, op);
    note(t, &shape, clock_ns() - start, channels * taps * sizeof(float), 2 * (uint64_t)op->rows * channels * taps,
        false);
}

/* A chunk reads the anchor, and the tail of its first page. */
static uint64_t state_bytes(const TraceBackend *t, int64_t anchor, int64_t row) {
    uint64_t floats = 0;
    for (int i = 0; i < t->step.chunk_count; i++)
        floats += (uint64_t)(anchor + t->step.chunks[i].position % RECURRENT_PAGE_TOKENS * row);
    return floats * sizeof(float);
}

/* Operations per row: products of the state with k and q, its update, and half a tail. */
static void trace_recurrence(Backend *backend, const Recurrence *op) {
    TraceBackend *t = trace(backend);
    const bool delta = op->kind == RECURRENCE_DELTA;
    const uint64_t width = (uint64_t)(op->key_dim + op->value_dim);
    Shape shape = shape_of(delta ? KIND_DELTA : KIND_SSD);
    shape.heads = op->value_heads;
    shape.kv_heads = op->key_heads;
    shape.head_dim = op->key_dim;
    shape.value_dim = op->value_dim;
    const uint64_t head = 2 * (delta ? 3u : 2u) * (uint64_t)op->key_dim * (uint64_t)op->value_dim +
        (delta ? 2u : 1u) * RECURRENT_PAGE_TOKENS * width;
    const int64_t start = clock_ns();
    t->inner->ops->recurrence(t->inner, op);
    note(t, &shape, clock_ns() - start, state_bytes(t, recurrence_anchor_width(op), recurrence_row_width(op)),
        (uint64_t)op->rows * (uint64_t)op->value_heads * head, false);
}

static void trace_mamba(Backend *backend, const Mamba *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_MAMBA);
    const int64_t start = clock_ns();
    t->inner->ops->mamba(t->inner, op);
    note(t, &shape, clock_ns() - start, state_bytes(t, mamba_anchor_width(op), 0),
        6 * (uint64_t)op->rows * (uint64_t)mamba_anchor_width(op), false);
}

static void trace_rg_lru(Backend *backend, const RgLru *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_RG_LRU);
    const uint64_t gates = 2 * (uint64_t)op->channels * (uint64_t)op->channels / (uint64_t)op->heads;
    const int64_t start = clock_ns();
    t->inner->ops->rg_lru(t->inner, op);
    note(t, &shape, clock_ns() - start, state_bytes(t, 0, rg_lru_row_width(op)) + gates * sizeof(float),
        2 * (uint64_t)op->rows * gates, false);
}

static void trace_gated_norm(Backend *backend, const GatedNorm *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_GATED_NORM);
    const int64_t start = clock_ns();
    t->inner->ops->gated_norm(t->inner, op);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_route(Backend *backend, const Routing *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_ROUTE);
    const int64_t start = clock_ns();
    t->inner->ops->route(t->inner, op);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

/* Counted as if all rows used different experts, as a single row does. */
static void trace_experts(Backend *backend, const Experts *op) {
    TraceBackend *t = trace(backend);
    Shape shape = shape_of(KIND_EXPERTS);
    const Weight *const weights[] = {&op->gate[0], &op->up[0], &op->down[0]};
    uint64_t bytes = 0, operations = 0;
    for (int i = 0; i < 3; i++) {
        add_weight(&shape, weights[i]);
        bytes += weight_bytes(weights[i]);
        operations += 2 * (uint64_t)weights[i]->rows * (uint64_t)weights[i]->cols;
    }
    const uint64_t pairs = (uint64_t)op->rows * (uint64_t)op->top_k;
    const uint64_t read = pairs < (uint64_t)op->count ? pairs : (uint64_t)op->count;
    const int64_t start = clock_ns();
    t->inner->ops->experts(t->inner, op);
    note(t, &shape, clock_ns() - start, read * bytes, pairs * operations, true);
}

static void trace_activate(Backend *backend, int64_t count, const float *x, Activation activation, float *out) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_ACTIVATE);
    const int64_t start = clock_ns();
    t->inner->ops->activate(t->inner, count, x, activation, out);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_multiply(Backend *backend, const Multiply *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_MULTIPLY);
    const int64_t start = clock_ns();
    t->inner->ops->multiply(t->inner, op);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_scale_queries(Backend *backend, int rows, int64_t width, const QueryScaling *scaling, float *x) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_SCALE_QUERIES);
    const int64_t start = clock_ns();
    t->inner->ops->scale_queries(t->inner, rows, width, scaling, x);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_gather(Backend *backend, int count, const int32_t *index, const float *x, int64_t width, float *out) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_GATHER);
    const int64_t start = clock_ns();
    t->inner->ops->gather(t->inner, count, index, x, width, out);
    note(t, &shape, clock_ns() - start, 0, 0, false);
    t->gathered = true;
}

static void trace_logits(Backend *backend, int64_t count, float *x, float scale, float cap) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_LOGITS);
    const int64_t start = clock_ns();
    t->inner->ops->logits(t->inner, count, x, scale, cap);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_add(
    Backend *backend, int rows, int64_t width, float *residual, const float *y, float scale, const Norm *norm) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_ADD);
    const int64_t start = clock_ns();
    t->inner->ops->add(t->inner, rows, width, residual, y, scale, norm);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_mix_streams(Backend *backend, const StreamMix *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_STREAMS);
    const int64_t start = clock_ns();
    t->inner->ops->mix_streams(t->inner, op);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_match_rms(Backend *backend, const MatchRms *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_STREAMS);
    const int64_t start = clock_ns();
    t->inner->ops->match_rms(t->inner, op);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_sparsify(Backend *backend, const Sparsify *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_STREAMS);
    const int64_t start = clock_ns();
    t->inner->ops->sparsify(t->inner, op);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_gate_heads(Backend *backend, const HeadGate *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_STREAMS);
    const int64_t start = clock_ns();
    t->inner->ops->gate_heads(t->inner, op);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_compress(Backend *backend, const Compression *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_COMPRESSED);
    const int64_t start = clock_ns();
    t->inner->ops->compress(t->inner, op);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_compressed_select(Backend *backend, const CompressedSelect *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_COMPRESSED);
    const int64_t start = clock_ns();
    t->inner->ops->compressed_select(t->inner, op);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_compressed_attention(Backend *backend, const CompressedAttention *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_COMPRESSED);
    const int64_t start = clock_ns();
    t->inner->ops->compressed_attention(t->inner, op);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_join_groups(Backend *backend, const GroupJoin *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_STREAMS);
    const int64_t start = clock_ns();
    t->inner->ops->join_groups(t->inner, op);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_hyper_connect(Backend *backend, const HyperConnection *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_STREAMS);
    const int64_t start = clock_ns();
    t->inner->ops->hyper_connect(t->inner, op);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_index_select(Backend *backend, const IndexSelect *op) {
    TraceBackend *t = trace(backend);
    const Shape shape = shape_of(KIND_INDEX_SELECT);
    const int64_t start = clock_ns();
    t->inner->ops->index_select(t->inner, op);
    note(t, &shape, clock_ns() - start, 0, 0, false);
}

static void trace_close(Backend *backend) {
    backend_close(trace(backend)->inner);
    free(backend);
}

static const BackendOps trace_ops = {
    .alloc = trace_alloc,
    .release = trace_release,
    .commit = trace_commit,
    .decommit = trace_decommit,
    .bind = trace_bind,
    .unbind = trace_unbind,
    .upload = trace_upload,
    .download = trace_download,
    .copy = trace_copy,
    .kv_layer_bytes = trace_kv_layer_bytes,
    .page_read = trace_page_read,
    .page_write = trace_page_write,
    .kv_quant_bytes = trace_kv_quant_bytes,
    .kv_calibrate = trace_kv_calibrate,
    .kv_quantise = trace_kv_quantise,
    .begin = trace_begin,
    .set_rows = trace_set_rows,
    .submit = trace_submit,
    .wait = trace_wait,
    .scratch = trace_scratch,
    .read_logits = trace_read_logits,
    .embed = trace_embed,
    .norm = trace_norm,
    .matmul = trace_matmul,
    .glu = trace_glu,
    .matmul_add = trace_matmul_add,
    .attention = trace_attention,
    .mla = trace_mla,
    .index_select = trace_index_select,
    .conv = trace_conv,
    .recurrence = trace_recurrence,
    .mamba = trace_mamba,
    .rg_lru = trace_rg_lru,
    .gated_norm = trace_gated_norm,
    .route = trace_route,
    .experts = trace_experts,
    .activate = trace_activate,
    .multiply = trace_multiply,
    .scale_queries = trace_scale_queries,
    .gather = trace_gather,
    .logits = trace_logits,
    .sum_logits = trace_sum_logits,
    .sample = trace_sample,
    .sampled = trace_sampled,
    .add = trace_add,
    .mix_streams = trace_mix_streams,
    .match_rms = trace_match_rms,
    .sparsify = trace_sparsify,
    .gate_heads = trace_gate_heads,
    .compress = trace_compress,
    .compressed_select = trace_compressed_select,
    .compressed_attention = trace_compressed_attention,
    .join_groups = trace_join_groups,
    .hyper_connect = trace_hyper_connect,
    .close = trace_close,
};

Backend *trace_open(Backend *inner, Error *error) {
    TraceBackend *t = calloc(1, sizeof *t);
    if (!t) {
        backend_close(inner);
        fail(error, ERROR_MEMORY, "no memory for a trace");
        return NULL;
    }
    t->base = *inner;
    t->ops = trace_ops;
    t->ops.name = inner->ops->name;
    if (!inner->ops->sum_logits) t->ops.sum_logits = NULL;
    if (!inner->ops->sample) t->ops.sample = NULL;
    if (!inner->ops->index_select) t->ops.index_select = NULL;
    if (!inner->ops->recurrence) {
        t->ops.conv = NULL;
        t->ops.recurrence = NULL;
        t->ops.mamba = NULL;
        t->ops.rg_lru = NULL;
        t->ops.gated_norm = NULL;
    }
    if (!inner->ops->mix_streams) {
        t->ops.mix_streams = NULL;
        t->ops.match_rms = NULL;
        t->ops.sparsify = NULL;
        t->ops.gate_heads = NULL;
    }
    if (!inner->ops->compress) {
        t->ops.compress = NULL;
        t->ops.compressed_select = NULL;
        t->ops.compressed_attention = NULL;
        t->ops.join_groups = NULL;
        t->ops.hyper_connect = NULL;
    }
    t->base.ops = &t->ops;
    t->inner = inner;
    return &t->base;
}

const TraceLine *trace_lines(const Backend *backend, int *count) {
    const TraceBackend *t = (const TraceBackend *)backend;
    *count = t->count;
    return t->lines;
}
