/* The specification of every operation, in f32 and written to be read. Weight rows and attention heads are shared out
 * over the pool so that real models can be walked; nothing depends on how. Each sum is taken in one order, fixed by the
 * row alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/host.h"
#include "backend/cpu/pool.h"
#include "backend/cpu/ref.h"

enum { LANES = 16 }; /* partial sums of a dot product: lets the compiler use vectors without changing the order */

typedef struct RefBackend {
    Backend base;
    Pool *pool;
    bool own_pool;
    float *scratch;
    size_t scratch_count, scratch_used;
    Step step;
    bool starved; /* an operation of the step found no memory to work in */
} RefBackend;

static RefBackend *ref(Backend *backend) { return (RefBackend *)backend; }

/* Memory to work in, freed by the caller. NULL: there is none, and the step fails when it is waited for. */
static float *take(RefBackend *r, int64_t count) {
    float *memory = malloc((size_t)(count ? count : 1) * sizeof *memory);
    if (!memory) r->starved = true;
    return memory;
}

static float dot(const float *a, const float *b, int64_t count) {
    float lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += a[i + j] * b[i + j];
    for (; i < count; i++) lanes[i % LANES] += a[i] * b[i];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lanes[j] += lanes[j + half];
    return lanes[0];
}

static void norm_row(const float *x, const Norm *norm, int64_t width, float *out) {
    double mean = 0, square = 0;
    if (norm->kind == NORM_LAYER) {
        for (int64_t i = 0; i < width; i++) mean += x[i];
        mean /= (double)width;
    }
    for (int64_t i = 0; i < width; i++) square += (x[i] - mean) * (x[i] - mean);
    const float scale = (float)(1.0 / sqrt(square / (double)width + norm->eps)), shift = (float)mean;
    for (int64_t i = 0; i < width; i++) {
        float y = (x[i] - shift) * scale;
        if (norm->weight) y *= norm->weight[i];
        if (norm->bias) y += norm->bias[i];
        out[i] = y;
    }
}

static float activation(Activation kind, float x) {
    switch (kind) {
    case ACT_SILU: return x / (1.0f + expf(-x));
    case ACT_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case ACT_GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case ACT_RELU2: return x > 0 ? x * x : 0;
    case ACT_NONE: return x;
    }
    return x;
}

/* ---- memory ---- */

/* A page: for each kv head K [token][head_dim], then V [token][value_dim], then the queries' energies [token], in f32.
 */
static size_t head_floats(const KvLayout *l) { return KV_PAGE_TOKENS * (size_t)(l->head_dim + l->value_dim + 1); }
static size_t ref_kv_layer_bytes(Backend *backend, const KvLayout *layout) {
    return (size_t)layout->kv_heads * head_floats(layout) * sizeof(float);
}

static bool ref_begin(Backend *backend, const Step *step) {
    ref(backend)->step = *step;
    ref(backend)->scratch_used = 0;
    ref(backend)->starved = false;
    return true;
}

static bool ref_wait(Backend *backend, uint64_t ticket, Error *error) {
    return !ref(backend)->starved || fail(error, ERROR_MEMORY, "no memory to work in");
}

static float *ref_scratch(Backend *backend, int64_t count) {
    RefBackend *r = ref(backend);
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
            p->out[t * w->rows + r] = dot(row, p->x + t * w->cols, w->cols) + (w->bias ? w->bias[r] : 0);
    }
}

static void multiply(RefBackend *r, int rows, const float *x, const Weight *weight, float *out) {
    Products products = {rows, x, weight, out, take(r, pool_threads(r->pool) * weight->cols)};
    if (products.spare) pool_run(r->pool, product_task, &products);
    free(products.spare);
}

/* A copy; NULL: no memory. */
static float *normed(RefBackend *r, int rows, int64_t width, const float *x, const Norm *norm) {
    float *out = take(r, rows * width);
    for (int t = 0; out && t < rows; t++) {
        if (norm)
            norm_row(x + t * width, norm, width, out + t * width);
        else
            memcpy(out + t * width, x + t * width, (size_t)width * sizeof *out);
    }
    return out;
}

static void ref_embed(Backend *backend, const Embed *e) {
    const int64_t width = e->table->cols;
    for (int t = 0; t < e->rows; t++) {
        float *row = e->out + t * width;
        if (e->tokens[t] < 0) {
            memcpy(row, e->given + t * width, (size_t)width * sizeof *row);
            continue;
        }
        weight_dequantize_row(e->table, e->tokens[t], 0, width, row);
        for (int64_t i = 0; i < width; i++) row[i] *= e->scale;
    }
}

static void ref_norm(Backend *backend, int rows, const float *x, const Norm *norm, float *out) {
    for (int t = 0; t < rows; t++) norm_row(x + t * norm->width, norm, norm->width, out + t * norm->width);
}

static void ref_matmul(Backend *backend, const Matmul *m) {
    float *x = normed(ref(backend), m->rows, m->weight[0]->cols, m->x, m->norm);
    for (int i = 0; x && i < m->count; i++) multiply(ref(backend), m->rows, x, m->weight[i], m->out[i]);
    free(x);
}

static void ref_glu(Backend *backend, const Glu *g) {
    const int64_t count = g->rows * g->gate->rows;
    float *x = normed(ref(backend), g->rows, g->gate->cols, g->x, g->norm), *up = take(ref(backend), count);
    if (x && up) {
        multiply(ref(backend), g->rows, x, g->gate, g->out);
        multiply(ref(backend), g->rows, x, g->up, up);
        for (int64_t i = 0; i < count; i++) g->out[i] = activation(g->activation, g->out[i]) * up[i];
    }
    free(up);
    free(x);
}

static void ref_add(
    Backend *backend, int rows, int64_t width, float *residual, const float *y, float scale, const Norm *norm) {
    float *terms = normed(ref(backend), rows, width, y, norm);
    for (int64_t i = 0; terms && i < rows * width; i++) residual[i] += scale * terms[i];
    free(terms);
}

static void ref_matmul_add(Backend *backend, const MatmulAdd *m) {
    float *y = take(ref(backend), m->rows * m->weight->rows);
    if (y) {
        multiply(ref(backend), m->rows, m->x, m->weight, y);
        ref_add(backend, m->rows, m->weight->rows, m->residual, y, m->scale, m->norm);
    }
    free(y);
}

/* ---- attention ---- */

static void rotate(const Rope *rope, const float *angles, float *head) {
    const int half = rope->dims / 2;
    for (int i = 0; i < half; i++) {
        const float c = cosf(angles[i]), s = sinf(angles[i]);
        const int first = rope->interleaved ? 2 * i : i, second = rope->interleaved ? 2 * i + 1 : i + half;
        const float a = head[first] * rope->scale, b = head[second] * rope->scale;
        head[first] = a * c - b * s;
        head[second] = a * s + b * c;
    }
}

static void prepare_heads(const float *x, int heads, int head_dim, const Norm *norm, bool full, const Rope *rope,
    const Step *step, int row, float *out) {
    float angles[ATTENTION_HEAD_MAX / 2];
    if (rope) rope_angles(rope, step, row, angles);
    if (norm && full)
        norm_row(x, norm, (int64_t)heads * head_dim, out);
    else
        memcpy(out, x, (size_t)heads * (size_t)head_dim * sizeof *out);
    for (int h = 0; h < heads; h++) {
        float *head = out + (int64_t)h * head_dim;
        if (norm && !full) norm_row(head, norm, head_dim, head);
        if (rope) rotate(rope, angles, head);
    }
}

/* What a page holds for a kv head. */
static float *head_of(const KvLayer *kv, int32_t page, int head) {
    const KvLayout *l = &kv->layout;
    CHECK(page >= 0);
    float *memory = (float *)(void *)(kv->base + (size_t)page * kv->page_stride + kv->layer_offset);
    return memory + (size_t)head * head_floats(l);
}

static float *energies_of(const KvLayer *kv, int32_t page, int head) {
    return head_of(kv, page, head) + KV_PAGE_TOKENS * (size_t)(kv->layout.head_dim + kv->layout.value_dim);
}

static int32_t page_of(const Attention *a, const Run *run, int position) {
    return run->tables[a->kv.group][position / KV_PAGE_TOKENS];
}

static float *key_at(const Attention *a, const Run *run, int position, int head) {
    return head_of(&a->kv, page_of(a, run, position), head) +
        (size_t)(position % KV_PAGE_TOKENS) * (size_t)a->kv.layout.head_dim;
}

static float *value_at(const Attention *a, const Run *run, int position, int head) {
    const KvLayout *l = &a->kv.layout;
    return head_of(&a->kv, page_of(a, run, position), head) + (size_t)KV_PAGE_TOKENS * (size_t)l->head_dim +
        (size_t)(position % KV_PAGE_TOKENS) * (size_t)l->value_dim;
}

/* One query head: softmax over the visible keys, in order of position. */
static void attend(
    const Attention *a, const Run *run, int position, int head, const float *q, float *scores, float *out) {
    const KvLayout *l = &a->kv.layout;
    const int kv_head = head / (a->heads / l->kv_heads);
    const Visible seen = run_visible(run, a->window, position);
    float most = a->sinks ? a->sinks[head] : -INFINITY;
    for (int j = seen.first; j < seen.end; j++) {
        float s = dot(q, key_at(a, run, j, kv_head), l->head_dim) * a->scale;
        if (a->softcap > 0) s = a->softcap * tanhf(s / a->softcap);
        scores[j - seen.first] = s;
        most = fmaxf(most, s);
    }
    float sum = a->sinks ? expf(a->sinks[head] - most) : 0;
    memset(out, 0, (size_t)l->value_dim * sizeof *out);
    for (int j = seen.first; j < seen.end; j++) {
        const float p = expf(scores[j - seen.first] - most), *v = value_at(a, run, j, kv_head);
        sum += p;
        for (int i = 0; i < l->value_dim; i++) out[i] += p * v[i];
    }
    for (int i = 0; i < l->value_dim; i++) out[i] /= sum;
}

/* Beside each key, the energy of the queries of its row. */
static void store_energies(const Attention *a, const Run *run, int position, const float *heads) {
    const KvLayout *l = &a->kv.layout;
    const int group = a->heads / l->kv_heads, width = group * l->head_dim;
    for (int h = 0; h < l->kv_heads; h++) {
        const float *q = heads + (int64_t)h * width;
        energies_of(&a->kv, page_of(a, run, position), h)[position % KV_PAGE_TOKENS] =
            dot(q, q, width) * a->scale * a->scale / (float)group;
    }
}

typedef struct Attending {
    const Attention *a;
    const Step *step;
    float *spare; /* [threads]: scores, then the heads of a row */
    int longest;
} Attending;

/* Rows of all runs in turn; each head of each row is computed alone. */
static void attend_task(void *argument, int index, int count) {
    const Attending *work = argument;
    const Attention *a = work->a;
    const KvLayout *l = &a->kv.layout;
    const int64_t width = (int64_t)a->heads * l->head_dim;
    float *scores = work->spare + index * (work->longest + width), *heads = scores + work->longest;
    for (int i = 0; i < work->step->run_count; i++) {
        const Run *run = &work->step->runs[i];
        for (int t = index; t < run->rows; t += count) {
            const int64_t row = run->row + t;
            prepare_heads(a->q + row * width, a->heads, l->head_dim, a->q_norm, a->norm_full, a->rope, work->step,
                (int)row, heads);
            if (a->k) store_energies(a, run, run->position + t, heads);
            for (int h = 0; h < a->heads; h++)
                attend(a, run, run->position + t, h, heads + (int64_t)h * l->head_dim, scores,
                    a->out + (row * a->heads + h) * l->value_dim);
        }
    }
}

/* A head as the cache holds it: f32 memory, values of the layout's type. */
static void store_head(float *out, const float *head, int count, DType dtype) {
    uint16_t narrow[KV_PAGE_TOKENS];
    for (int i = 0; i < count; i += KV_PAGE_TOKENS) {
        const int n = count - i < KV_PAGE_TOKENS ? count - i : KV_PAGE_TOKENS;
        if (dtype == DTYPE_F32) {
            memcpy(out + i, head + i, (size_t)n * sizeof *out);
            continue;
        }
        floats_from_f32(narrow, dtype, head + i, n);
        floats_to_f32(out + i, narrow, dtype, n);
    }
}

static void append(const Attention *a, const Step *step, float *heads) {
    const KvLayout *l = &a->kv.layout;
    for (int i = 0; i < step->run_count; i++) {
        const Run *run = &step->runs[i];
        for (int t = 0; t < run->rows; t++) {
            const int64_t row = run->row + t;
            const int position = run->position + t;
            prepare_heads(a->k + row * l->kv_heads * l->head_dim, l->kv_heads, l->head_dim, a->k_norm, a->norm_full,
                a->rope, step, (int)row, heads);
            for (int h = 0; h < l->kv_heads; h++) {
                store_head(key_at(a, run, position, h), heads + (int64_t)h * l->head_dim, l->head_dim, l->dtype);
                store_head(value_at(a, run, position, h), a->v + (row * l->kv_heads + h) * l->value_dim, l->value_dim,
                    l->dtype);
            }
        }
    }
}

static void ref_attention(Backend *backend, const Attention *a) {
    RefBackend *r = ref(backend);
    Attending work = {.a = a, .step = &r->step};
    for (int i = 0; i < r->step.run_count; i++) {
        const int end = r->step.runs[i].position + r->step.runs[i].rows;
        work.longest = end > work.longest ? end : work.longest;
    }
    work.spare = take(r, pool_threads(r->pool) * (work.longest + (int64_t)a->heads * a->kv.layout.head_dim));
    if (work.spare) {
        if (a->k) append(a, &r->step, work.spare);
        pool_run(r->pool, attend_task, &work);
    }
    free(work.spare);
}

/* ---- pages ---- */

/* A page's elements of one kind in canonical order, one head of a token after another. */
static void transfer(
    float *page, uint8_t *canonical, int tokens, int head, int heads, int width, DType dtype, bool in) {
    for (int t = 0; t < tokens; t++) {
        uint8_t *at = canonical + ((size_t)t * (size_t)heads + (size_t)head) * (size_t)width * dtype_bytes(dtype);
        if (in)
            floats_to_f32(page + (size_t)t * (size_t)width, at, dtype, width);
        else
            floats_from_f32(at, dtype, page + (size_t)t * (size_t)width, width);
    }
}

static void transfer_page(const KvLayer *layer, int32_t page, int tokens, uint8_t *canonical, bool in) {
    const KvLayout *l = &layer->layout;
    const size_t keys = (size_t)tokens * (size_t)l->kv_heads * (size_t)l->head_dim * dtype_bytes(l->dtype);
    const size_t values = (size_t)tokens * (size_t)l->kv_heads * (size_t)l->value_dim * dtype_bytes(l->dtype);
    for (int h = 0; h < l->kv_heads; h++) {
        float *k = head_of(layer, page, h), *v = k + (size_t)KV_PAGE_TOKENS * (size_t)l->head_dim;
        transfer(k, canonical, tokens, h, l->kv_heads, l->head_dim, l->dtype, in);
        transfer(v, canonical + keys, tokens, h, l->kv_heads, l->value_dim, l->dtype, in);
        transfer(energies_of(layer, page, h), canonical + keys + values, tokens, h, l->kv_heads, 1, DTYPE_F32, in);
    }
}

static void ref_page_read(Backend *backend, const KvLayer *layer, int32_t page, int tokens, void *out) {
    transfer_page(layer, page, tokens, out, false);
}

static void ref_page_write(Backend *backend, const KvLayer *layer, int32_t page, int tokens, const void *from) {
    transfer_page(layer, page, tokens, (uint8_t *)from, true);
}

/* ---- the rest ---- */

static size_t ref_kv_code_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values) { return 0; }
static void ref_kv_survey(Backend *backend, int count, const KvSurvey *surveys) {}
static void ref_kv_encode(Backend *backend, int count, const KvEncode *pages) {}

/* ---- the rest ---- */

static void ref_activate(Backend *backend, int64_t count, const float *x, Activation kind, float *out) {
    for (int64_t i = 0; i < count; i++) out[i] = activation(kind, x[i]);
}

static void ref_gather(Backend *backend, int count, const int32_t *index, const float *x, int64_t width, float *out) {
    for (int i = 0; i < count; i++) memcpy(out + i * width, x + index[i] * width, (size_t)width * sizeof *out);
}

static void ref_logits(Backend *backend, int64_t count, float *x, float scale, float cap) {
    for (int64_t i = 0; i < count; i++) x[i] = cap > 0 ? cap * tanhf(scale * x[i] / cap) : scale * x[i];
}

static void ref_close(Backend *backend) {
    RefBackend *r = ref(backend);
    if (r->own_pool) pool_close(r->pool);
    host_release(backend, r->scratch);
    free(r);
}

static const BackendOps ref_ops = {
    .name = "ref",
    .alloc = host_alloc,
    .release = host_release,
    .discard = host_discard,
    .bind = host_bind,
    .unbind = host_unbind,
    .upload = host_copy,
    .download = host_copy,
    .copy = host_copy,
    .kv_layer_bytes = ref_kv_layer_bytes,
    .page_read = ref_page_read,
    .page_write = ref_page_write,
    .kv_code_bytes = ref_kv_code_bytes,
    .kv_survey = ref_kv_survey,
    .kv_encode = ref_kv_encode,
    .begin = ref_begin,
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
    .activate = ref_activate,
    .gather = ref_gather,
    .logits = ref_logits,
    .add = ref_add,
    .close = ref_close,
};

Backend *ref_open(const BackendOptions *options, Error *error) {
    RefBackend *r = calloc(1, sizeof *r);
    if (!r) {
        fail(error, ERROR_MEMORY, "no memory for a backend");
        return NULL;
    }
    r->base = (Backend){.ops = &ref_ops, .rows_max = options->rows_max, .exact = true};
    r->scratch_count = options->scratch_bytes / sizeof(float);
    r->own_pool = !options->pool;
    r->pool = options->pool ? options->pool : pool_open(options->threads, error);
    r->scratch = r->pool ? host_alloc(&r->base, options->scratch_bytes, MEMORY_STEP, error) : NULL;
    if (!r->scratch) {
        ref_close(&r->base);
        return NULL;
    }
    const int threads = pool_threads(r->pool);
    snprintf(r->base.description, sizeof r->base.description, "ref, %d thread%s", threads, threads == 1 ? "" : "s");
    return &r->base;
}
