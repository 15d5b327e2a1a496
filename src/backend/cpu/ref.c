/* The specification of every operation, in f32 and written to be read. Weight rows and attention heads are shared out
 * over the pool so that real models can be walked; nothing depends on how. Each sum is taken in one order, fixed by the
 * row alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/ref.h"
#include "base/file.h"

enum { LANES = 16 }; /* partial sums of a dot product: lets the compiler use vectors without changing the order */

typedef struct RefBackend {
    Backend base;
    Pool *pool;
    float *scratch;
    size_t scratch_count, scratch_used;
    Step step;
} RefBackend;

static RefBackend *ref(Backend *backend) { return (RefBackend *)backend; }

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

static void *ref_alloc(Backend *backend, size_t bytes, Error *error) {
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes ? bytes : 64)) {
        fail(error, ERROR_MEMORY, "no memory for %zu bytes", bytes);
        return NULL;
    }
    memset(memory, 0, bytes);
    return memory;
}

static void ref_release(Backend *backend, void *memory) { free(memory); }

/* A page: for each kv head K [token][head_dim], then V [token][value_dim], in f32. */
static size_t ref_kv_layer_bytes(Backend *backend, const KvLayout *layout) {
    return (size_t)layout->kv_heads * KV_PAGE_TOKENS * (size_t)(layout->head_dim + layout->value_dim) * sizeof(float);
}

static void ref_begin(Backend *backend, const Step *step) {
    ref(backend)->step = *step;
    ref(backend)->scratch_used = 0;
}

static bool ref_sync(Backend *backend, Error *error) {
    return !file_any_damaged() || fail(error, ERROR_IO, "a file of the model shrank while it was in use");
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
} Products;

static void product_task(void *argument, int index, int count) {
    const Products *p = argument;
    const Weight *w = p->weight;
    const int64_t first = w->rows * index / count, last = w->rows * (index + 1) / count;
    float *row = malloc((size_t)w->cols * sizeof *row);
    CHECK(row);
    for (int64_t r = first; r < last; r++) {
        weight_dequantize_row(w, r, 0, w->cols, row);
        for (int t = 0; t < p->rows; t++)
            p->out[t * w->rows + r] = dot(row, p->x + t * w->cols, w->cols) + (w->bias ? w->bias[r] : 0);
    }
    free(row);
}

static void multiply(RefBackend *r, int rows, const float *x, const Weight *weight, float *out) {
    Products products = {rows, x, weight, out};
    pool_run(r->pool, product_task, &products);
}

static float *normed(int rows, int64_t width, const float *x, const Norm *norm) {
    float *out = malloc((size_t)rows * (size_t)width * sizeof *out);
    CHECK(out);
    for (int t = 0; t < rows; t++) {
        if (norm)
            norm_row(x + t * width, norm, width, out + t * width);
        else
            memcpy(out + t * width, x + t * width, (size_t)width * sizeof *out);
    }
    return out;
}

static void ref_embed(Backend *backend, int rows, const int32_t *tokens, const Weight *table, float scale, float *out) {
    for (int t = 0; t < rows; t++) {
        float *row = out + t * table->cols;
        weight_dequantize_row(table, tokens[t], 0, table->cols, row);
        for (int64_t i = 0; i < table->cols; i++) row[i] *= scale;
    }
}

static void ref_norm(Backend *backend, int rows, const float *x, const Norm *norm, float *out) {
    for (int t = 0; t < rows; t++) norm_row(x + t * norm->width, norm, norm->width, out + t * norm->width);
}

static void ref_matmul(Backend *backend, const Matmul *m) {
    float *x = normed(m->rows, m->weight[0]->cols, m->x, m->norm);
    for (int i = 0; i < m->count; i++) multiply(ref(backend), m->rows, x, m->weight[i], m->out[i]);
    free(x);
}

static void ref_glu(Backend *backend, const Glu *g) {
    const size_t count = (size_t)g->rows * (size_t)g->gate->rows;
    float *x = normed(g->rows, g->gate->cols, g->x, g->norm), *up = malloc(count * sizeof *up);
    CHECK(up);
    multiply(ref(backend), g->rows, x, g->gate, g->out);
    multiply(ref(backend), g->rows, x, g->up, up);
    for (size_t i = 0; i < count; i++) g->out[i] = activation(g->activation, g->out[i]) * up[i];
    free(up);
    free(x);
}

static void ref_add(
    Backend *backend, int rows, int64_t width, float *residual, const float *y, float scale, const Norm *norm) {
    float *terms = normed(rows, width, y, norm);
    for (int64_t i = 0; i < rows * width; i++) residual[i] += scale * terms[i];
    free(terms);
}

static void ref_matmul_add(Backend *backend, const MatmulAdd *m) {
    float *y = malloc((size_t)m->rows * (size_t)m->weight->rows * sizeof *y);
    CHECK(y);
    multiply(ref(backend), m->rows, m->x, m->weight, y);
    ref_add(backend, m->rows, m->weight->rows, m->residual, y, m->scale, m->norm);
    free(y);
}

/* ---- attention ---- */

static void rotate(const Rope *rope, int position, float *head) {
    const int half = rope->dims / 2;
    for (int i = 0; i < half; i++) {
        const float angle = (float)position * rope->frequencies[i];
        const float c = cosf(angle), s = sinf(angle);
        const int first = rope->interleaved ? 2 * i : i, second = rope->interleaved ? 2 * i + 1 : i + half;
        const float a = head[first] * rope->scale, b = head[second] * rope->scale;
        head[first] = a * c - b * s;
        head[second] = a * s + b * c;
    }
}

static void prepare_heads(
    const float *x, int heads, int head_dim, const Norm *norm, bool full, const Rope *rope, int position, float *out) {
    if (norm && full)
        norm_row(x, norm, (int64_t)heads * head_dim, out);
    else
        memcpy(out, x, (size_t)heads * (size_t)head_dim * sizeof *out);
    for (int h = 0; h < heads; h++) {
        float *head = out + (int64_t)h * head_dim;
        if (norm && !full) norm_row(head, norm, head_dim, head);
        if (rope) rotate(rope, position, head);
    }
}

static float *page_of(const Attention *a, const Run *run, int position) {
    const int32_t page = run->tables[a->kv.group][position / KV_PAGE_TOKENS];
    CHECK(page >= 0);
    return (float *)(void *)(a->kv.base + (size_t)page * a->kv.page_stride + a->kv.layer_offset);
}

static float *key_at(const Attention *a, const Run *run, int position, int head) {
    const KvLayout *l = &a->kv.layout;
    float *page = page_of(a, run, position) + (size_t)head * KV_PAGE_TOKENS * (size_t)(l->head_dim + l->value_dim);
    return page + (size_t)(position % KV_PAGE_TOKENS) * (size_t)l->head_dim;
}

static float *value_at(const Attention *a, const Run *run, int position, int head) {
    const KvLayout *l = &a->kv.layout;
    float *page = page_of(a, run, position) + (size_t)head * KV_PAGE_TOKENS * (size_t)(l->head_dim + l->value_dim);
    return page + (size_t)KV_PAGE_TOKENS * (size_t)l->head_dim +
        (size_t)(position % KV_PAGE_TOKENS) * (size_t)l->value_dim;
}

/* One query head: softmax over the visible keys, in order of position. */
static void attend(
    const Attention *a, const Run *run, int position, int head, const float *q, float *scores, float *out) {
    const KvLayout *l = &a->kv.layout;
    const int kv_head = head / (a->heads / l->kv_heads);
    const int first = a->window && position >= a->window ? position - a->window + 1 : 0;
    float most = a->sinks ? a->sinks[head] : -INFINITY;
    for (int j = first; j <= position; j++) {
        float s = dot(q, key_at(a, run, j, kv_head), l->head_dim) * a->scale;
        if (a->softcap > 0) s = a->softcap * tanhf(s / a->softcap);
        scores[j - first] = s;
        most = fmaxf(most, s);
    }
    float sum = a->sinks ? expf(a->sinks[head] - most) : 0;
    memset(out, 0, (size_t)l->value_dim * sizeof *out);
    for (int j = first; j <= position; j++) {
        const float p = expf(scores[j - first] - most), *v = value_at(a, run, j, kv_head);
        sum += p;
        for (int i = 0; i < l->value_dim; i++) out[i] += p * v[i];
    }
    for (int i = 0; i < l->value_dim; i++) out[i] /= sum;
}

typedef struct Attending {
    const Attention *a;
    const Step *step;
} Attending;

/* Rows of all runs in turn; each head of each row is computed alone. */
static void attend_task(void *argument, int index, int count) {
    const Attending *work = argument;
    const Attention *a = work->a;
    const KvLayout *l = &a->kv.layout;
    int longest = 0;
    for (int i = 0; i < work->step->run_count; i++) {
        const Run *run = &work->step->runs[i];
        if (run->position + run->rows > longest) longest = run->position + run->rows;
    }
    float *scores = malloc((size_t)longest * sizeof *scores),
          *heads = malloc((size_t)a->heads * (size_t)l->head_dim * sizeof *heads);
    CHECK(scores && heads);
    for (int i = 0; i < work->step->run_count; i++) {
        const Run *run = &work->step->runs[i];
        for (int t = index; t < run->rows; t += count) {
            const int position = run->position + t;
            const int64_t row = run->row + t;
            prepare_heads(a->q + row * a->heads * l->head_dim, a->heads, l->head_dim, a->q_norm, a->norm_full, a->rope,
                position, heads);
            for (int h = 0; h < a->heads; h++)
                attend(a, run, position, h, heads + (int64_t)h * l->head_dim, scores,
                    a->out + (row * a->heads + h) * l->value_dim);
        }
    }
    free(scores);
    free(heads);
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

static void append(const Attention *a, const Step *step) {
    const KvLayout *l = &a->kv.layout;
    float *heads = malloc((size_t)l->kv_heads * (size_t)l->head_dim * sizeof *heads);
    CHECK(heads);
    for (int i = 0; i < step->run_count; i++) {
        const Run *run = &step->runs[i];
        for (int t = 0; t < run->rows; t++) {
            const int64_t row = run->row + t;
            const int position = run->position + t;
            prepare_heads(a->k + row * l->kv_heads * l->head_dim, l->kv_heads, l->head_dim, a->k_norm, a->norm_full,
                a->rope, position, heads);
            for (int h = 0; h < l->kv_heads; h++) {
                store_head(key_at(a, run, position, h), heads + (int64_t)h * l->head_dim, l->head_dim, l->dtype);
                store_head(value_at(a, run, position, h), a->v + (row * l->kv_heads + h) * l->value_dim, l->value_dim,
                    l->dtype);
            }
        }
    }
    free(heads);
}

static void ref_attention(Backend *backend, const Attention *a) {
    RefBackend *r = ref(backend);
    append(a, &r->step);
    Attending work = {a, &r->step};
    pool_run(r->pool, attend_task, &work);
}

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
    pool_close(r->pool);
    free(r->scratch);
    free(r);
}

static const BackendOps ref_ops = {
    .name = "ref",
    .alloc = ref_alloc,
    .release = ref_release,
    .kv_layer_bytes = ref_kv_layer_bytes,
    .begin = ref_begin,
    .sync = ref_sync,
    .scratch = ref_scratch,
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
    r->pool = pool_open(options->threads, error);
    r->scratch = r->pool ? ref_alloc(&r->base, options->scratch_bytes, error) : NULL;
    if (!r->scratch) {
        ref_close(&r->base);
        return NULL;
    }
    const int threads = pool_threads(r->pool);
    snprintf(r->base.description, sizeof r->base.description, "ref, %d thread%s", threads, threads == 1 ? "" : "s");
    return &r->base;
}
