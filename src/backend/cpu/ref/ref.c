/* The specification of every operation, in f32 and written for reading. Weight rows and attention heads are distributed
 * over the pool so that real models can be run; results do not depend on it. Each sum is taken in one order, fixed by
 * the row alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/experts.h"
#include "backend/cpu/host.h"
#include "backend/cpu/streams.h"
#include "backend/mla.h"
#include "backend/cpu/ref/ref.h"
#include "backend/cpu/ref/ref_internal.h"

enum { PAGE_BYTES = KV_PAGE_TOKENS * ATTENTION_HEAD_MAX * sizeof(float) };

static float activated(Activation activation, float x) {
    switch (activation.kind) {
    case ACT_SILU: return x / (1.0f + expf(-x));
    case ACT_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case ACT_GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case ACT_RELU2: return x > 0 ? x * x : 0;
    case ACT_XIELU:
        return (x > 0 ? activation.a * x * x : activation.b * (expm1f(fminf(x, -1e-6f)) - x)) + activation.c * x;
    case ACT_CLAMP: return fminf(fmaxf(x, activation.a), activation.b);
    case ACT_RELU: return x > 0 ? x : 0;
    case ACT_NONE:
    case ACT_SILU_CLAMPED:
    case ACT_SILU_LIMITED: return x;
    }
    return x;
}

static float gated(Activation activation, float gate, float up) {
    if (activation.kind == ACT_SILU_LIMITED) {
        const float g = fminf(gate, activation.a);
        return g / (1.0f + expf(-g)) * fminf(fmaxf(up, -activation.b), activation.b);
    }
    if (activation.kind != ACT_SILU_CLAMPED) return activated(activation, gate) * up;
    const float limit = activation.b, g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
    return g / (1.0f + expf(-activation.a * g)) * (u + 1);
}

/* ---- memory ---- */

static bool ref_begin(Backend *backend, const Step *step) {
    ref_backend(backend)->step = *step;
    ref_backend(backend)->scratch_used = 0;
    ref_backend(backend)->starved = false;
    return true;
}

static void ref_set_rows(Backend *backend, const Step *rows) { ref_backend(backend)->step = *rows; }

static bool ref_wait(Backend *backend, uint64_t ticket, Error *error) {
    return !ref_backend(backend)->starved || fail(error, ERROR_MEMORY, "no memory to work in");
}

static float *ref_scratch(Backend *backend, int64_t count) {
    RefBackend *r = ref_backend(backend);
    float *memory = r->scratch + r->scratch_used;
    r->scratch_used += ((size_t)count + 15) / 16 * 16;
    CHECK(r->scratch_used <= r->scratch_count);
    return memory;
}

/* ---- products ---- */

typedef struct Products {
    int rows;
    const float *x;
    const Weight *weight;
    float *out;
    float *spare; /* [threads][cols] */
} Products;

static void product_task(void *argument, int index, int count) {
    const Products *p = argument;
    const Weight *w = p->weight;
    const int64_t first = w->rows * index / count, last = w->rows * (index + 1) / count;
    float *row = p->spare + index * w->cols;
    for (int64_t r = first; r < last; r++) {
        weight_dequantize_row(w, r, 0, w->cols, row);
        for (int t = 0; t < p->rows; t++)
            p->out[t * w->rows + r] = ref_dot(row, p->x + t * w->cols, w->cols) + (w->bias ? w->bias[r] : 0);
    }
}

static void multiply(RefBackend *r, int rows, const float *x, const Weight *weight, float *out) {
    Products products = {rows, x, weight, out, ref_take(r, pool_threads(r->pool) * weight->cols)};
    if (products.spare) pool_run(r->pool, product_task, &products);
    free(products.spare);
}

/* A normalised copy; NULL: no memory. */
static float *normed(RefBackend *r, int rows, int64_t width, const float *x, const Norm *norm) {
    float *out = ref_take(r, rows * width);
    for (int t = 0; out && t < rows; t++) {
        if (norm)
            ref_norm_row(x + t * width, norm, width, out + t * width);
        else
            memcpy(out + t * width, x + t * width, (size_t)width * sizeof *out);
    }
    return out;
}

static void ref_embed(Backend *backend, const Embed *e) {
    const int64_t width = e->table->cols;
    for (int i = 0; i < e->given_count; i++)
        memcpy(
            e->out + e->given[i].row * width, e->given[i].values, (size_t)(e->given[i].rows * width) * sizeof *e->out);
    for (int t = 0; t < e->rows; t++) {
        float *row = e->out + t * width;
        if (e->tokens[t] == TOKEN_GIVEN && !e->placeholder) continue;
        weight_dequantize_row(e->table, embed_token(e, t), 0, width, row);
        for (int64_t i = 0; i < width; i++) row[i] *= e->scale;
    }
}

static void ref_norm(Backend *backend, int rows, const float *x, const Norm *norm, float *out) {
    for (int t = 0; t < rows; t++) ref_norm_row(x + t * norm->width, norm, norm->width, out + t * norm->width);
}

static void ref_matmul(Backend *backend, const Matmul *m) {
    float *x = normed(ref_backend(backend), m->rows, m->weight[0]->cols, m->x, m->norm);
    for (int i = 0; x && i < m->count; i++) multiply(ref_backend(backend), m->rows, x, m->weight[i], m->out[i]);
    free(x);
}

static void ref_glu(Backend *backend, const Glu *g) {
    const int64_t count = g->rows * g->gate->rows;
    float *x = normed(ref_backend(backend), g->rows, g->gate->cols, g->x, g->norm),
          *up = ref_take(ref_backend(backend), count);
    if (x && up) {
        multiply(ref_backend(backend), g->rows, x, g->gate, g->out);
        multiply(ref_backend(backend), g->rows, x, g->up, up);
        for (int64_t i = 0; i < count; i++) g->out[i] = gated(g->activation, g->out[i], up[i]);
    }
    free(up);
    free(x);
}

static void ref_add(
    Backend *backend, int rows, int64_t width, float *residual, const float *y, float scale, const Norm *norm) {
    float *terms = normed(ref_backend(backend), rows, width, y, norm);
    for (int64_t i = 0; terms && i < rows * width; i++) residual[i] += scale * terms[i];
    free(terms);
}

static void ref_matmul_add(Backend *backend, const MatmulAdd *m) {
    float *y = ref_take(ref_backend(backend), m->rows * m->weight->rows);
    if (y) {
        multiply(ref_backend(backend), m->rows, m->x, m->weight, y);
        ref_add(backend, m->rows, m->weight->rows, m->residual, y, m->scale, m->norm);
    }
    free(y);
}

/* ---- the rest ---- */

static void ref_activate(Backend *backend, int64_t count, const float *x, Activation activation, float *out) {
    for (int64_t i = 0; i < count; i++) out[i] = activated(activation, x[i]);
}

static void ref_multiply(Backend *backend, const Multiply *m) {
    for (int r = 0; r < m->rows; r++)
        for (int64_t i = 0; i < m->width; i++)
            m->out[r * m->width + i] = gated(m->activation, m->x[r * m->width + i], m->y[r * m->y_stride + i]);
}

static void ref_scale_queries(Backend *backend, int rows, int64_t width, const QueryScaling *scaling, float *x) {
    for (int r = 0; r < rows; r++) {
        const float factor = query_scale(scaling, ref_backend(backend)->step.positions[r]);
        for (int64_t i = 0; i < width; i++) x[r * width + i] *= factor;
    }
}

static void ref_gather(Backend *backend, int count, const int32_t *index, const float *x, int64_t width, float *out) {
    for (int i = 0; i < count; i++) memcpy(out + i * width, x + index[i] * width, (size_t)width * sizeof *out);
}

static void ref_logits(Backend *backend, int64_t count, float *x, float scale, float cap) {
    for (int64_t i = 0; i < count; i++) x[i] = cap > 0 ? cap * tanhf(scale * x[i] / cap) : scale * x[i];
}

static void ref_mix_streams(Backend *backend, const StreamMix *op) { streams_mix(ref_backend(backend)->pool, op); }
static void ref_match_rms(Backend *backend, const MatchRms *op) { streams_match_rms(ref_backend(backend)->pool, op); }
static void ref_sparsify(Backend *backend, const Sparsify *op) { streams_sparsify(ref_backend(backend)->pool, op); }
static void ref_gate_heads(Backend *backend, const HeadGate *op) { streams_gate_heads(ref_backend(backend)->pool, op); }

static void ref_close(Backend *backend) {
    RefBackend *r = ref_backend(backend);
    if (r->own_pool) pool_close(r->pool);
    host_release(backend, r->page);
    host_release(backend, r->scratch);
    free(r);
}

static const BackendOps ref_ops = {
    .name = "ref",
    .alloc = host_alloc,
    .release = host_release,
    .decommit = host_decommit,
    .bind = host_bind,
    .unbind = host_unbind,
    .upload = host_copy,
    .download = host_copy,
    .copy = host_copy,
    .kv_layer_bytes = ref_kv_layer_bytes,
    .page_read = ref_page_read,
    .page_write = ref_page_write,
    .kv_quant_bytes = ref_kv_quant_bytes,
    .kv_calibrate = ref_kv_calibrate,
    .kv_quantise = ref_kv_quantise,
    .begin = ref_begin,
    .set_rows = ref_set_rows,
    .submit = host_submit,
    .wait = ref_wait,
    .scratch = ref_scratch,
    .read_logits = host_read_logits,
    .embed = ref_embed,
    .norm = ref_norm,
    .matmul = ref_matmul,
    .glu = ref_glu,
    .matmul_add = ref_matmul_add,
    .attention = ref_attention,
    .mla = host_mla,
    .index_select = ref_index_select,
    .conv = ref_conv,
    .recurrence = ref_recurrence,
    .mamba = ref_mamba,
    .rg_lru = ref_rg_lru,
    .gated_norm = ref_gated_norm,
    .route = cpu_route,
    .experts = cpu_experts,
    .activate = ref_activate,
    .multiply = ref_multiply,
    .scale_queries = ref_scale_queries,
    .gather = ref_gather,
    .logits = ref_logits,
    .add = ref_add,
    .mix_streams = ref_mix_streams,
    .match_rms = ref_match_rms,
    .sparsify = ref_sparsify,
    .gate_heads = ref_gate_heads,
    .compress = ref_compress,
    .compressed_select = ref_compressed_select,
    .compressed_attention = ref_compressed_attention,
    .join_groups = ref_join_groups,
    .hyper_connect = ref_hyper_connect,
    .close = ref_close,
};

Backend *ref_open(const BackendOptions *options, Error *error) {
    RefBackend *r = calloc(1, sizeof *r);
    if (!r) {
        fail(error, ERROR_MEMORY, "no memory for a backend");
        return NULL;
    }
    r->base = (Backend){.ops = &ref_ops, .rows_max = options->rows_max, .exact = true, .sources = true};
    r->scratch_count = options->scratch_bytes / sizeof(float);
    r->own_pool = !options->pool;
    r->pool = options->pool ? options->pool : pool_open(options->threads, error);
    r->scratch = r->pool ? host_alloc(&r->base, options->scratch_bytes, MEMORY_STEP, error) : NULL;
    if (r->scratch) r->page = host_alloc(&r->base, PAGE_BYTES, MEMORY_STEP, error);
    if (!r->page) {
        ref_close(&r->base);
        return NULL;
    }
    const int threads = pool_threads(r->pool);
    snprintf(r->base.description, sizeof r->base.description, "ref, %d thread%s", threads, threads == 1 ? "" : "s");
    return &r->base;
}
