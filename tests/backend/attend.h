/* What the tests of attention share: sequences with their inputs and pages dealt in a scattered order, and steps that
 * take them forward through a backend, alone or among strangers. Cache memory starts as NaN, so that a read of anything
 * not written shows. */
#pragma once
#include "backend/steps.h"
#include "ops.h"

enum { STRANGERS = 7, ROWS_MAX = 640, PAGES = 64, THREADS_MAX = 4, SPANS_MAX = 4 };

typedef struct Shape {
    const char *name;
    int heads, kv_heads, head_dim, value_dim;
    DType dtype;
    int tokens;
    int window;
    float softcap;
    enum { PLAIN, ROPE_HALF, ROPE_INTERLEAVED } rope;
    int rope_dims;
    enum { NO_NORM, NORM_HEAD, NORM_FULL } norm;
    bool sinks;
    bool latent; /* scores see values, too */
} Shape;

/* One sequence and its inputs. A test may give the first one spans, and places other than those in the cache. */
typedef struct Sequence {
    int tokens;
    float *q, *k, *v, *q_latent;
    int32_t *chosen; /* [tokens, groups, top_k] KeySelection.chosen; NULL: none */
    int32_t pages[PAGES];
    const int32_t *tables[2];
    int position; /* tokens in the cache */
    int span_count;
    BidirectionalSpan spans[SPANS_MAX];
    SpanRule span_rule; /* that of the first sequence counts for all */
    bool chunked;       /* the same */
    const KvQuantView *quant;
    const int32_t *places; /* [axes][tokens] what the rope turns by; NULL: the place in the cache on every axis */
} Sequence;

typedef struct Bench {
    const Shape *shape;
    Norm q_norm, k_norm;
    Rope rope;
    int position_dims;
    KeySelection selection; /* without `chosen` (bench_select) */
    enum { NO_SLOPES, SLOPES, SLOPES_BF16 } alibi;
    bool decode_rows; /* the rows of sequence 0 and those before them lie behind their prompts */
    float *norm_weight, *frequencies, *sinks, *slopes;
    Sequence sequence[1 + STRANGERS];
} Bench;

static inline int q_width(const Shape *s) { return s->heads * s->head_dim; }
static inline int k_width(const Shape *s) { return s->kv_heads * s->head_dim; }
static inline int v_width(const Shape *s) { return s->kv_heads * s->value_dim; }
static inline int out_width(const Shape *s) { return s->heads * s->value_dim; }

static inline Bench bench_make(const Shape *s) {
    Bench b = {.shape = s, .position_dims = 1};
    b.norm_weight = random_floats(q_width(s), 1);
    b.sinks = random_floats(s->heads, 3);
    b.slopes = random_floats(s->heads, 0.3f);
    b.frequencies = random_floats(s->rope_dims / 2, 1);
    for (int i = 0; i < s->rope_dims / 2; i++) b.frequencies[i] = powf(10000, -2.0f * (float)i / (float)s->rope_dims);
    if (s->rope_dims > 4) b.frequencies[1] = 0; /* a pair left alone */
    b.rope = (Rope){
        .dims = s->rope_dims, .interleaved = s->rope == ROPE_INTERLEAVED, .frequencies = b.frequencies, .scale = 1.25f};
    b.q_norm = (Norm){NORM_RMS, s->norm == NORM_FULL ? q_width(s) : s->head_dim, 1e-5f, b.norm_weight, NULL};
    b.k_norm = (Norm){NORM_RMS, s->norm == NORM_FULL ? k_width(s) : s->head_dim, 1e-5f, b.norm_weight, NULL};
    for (int i = 0; i <= STRANGERS; i++) {
        Sequence *q = &b.sequence[i];
        q->tokens = i == 0 ? s->tokens : 1 + (i * 37) % 150;
        q->q = random_floats((int64_t)q->tokens * q_width(s), 2);
        q->k = random_floats((int64_t)q->tokens * k_width(s), 2);
        q->v = random_floats((int64_t)q->tokens * v_width(s), 1);
        if (s->latent) q->q_latent = random_floats((int64_t)q->tokens * out_width(s), 2);
    }
    return b;
}

static inline void bench_free(Bench *b) {
    for (int i = 0; i <= STRANGERS; i++) {
        free(b->sequence[i].q);
        free(b->sequence[i].k);
        free(b->sequence[i].v);
        free(b->sequence[i].q_latent);
        free(b->sequence[i].chosen);
    }
    free(b->norm_weight);
    free(b->frequencies);
    free(b->sinks);
    free(b->slopes);
}

static inline int chosen_width(const Bench *b) { return b->selection.groups * b->selection.top_k; }

/* As many of a row's blocks as can be chosen, ascending. */
static inline void choose_blocks(const KeySelection *selection, int position, uint64_t *seed, int32_t *chosen) {
    const int blocks = position / selection->block + 1;
    int count = 0, left = blocks < selection->top_k ? blocks : selection->top_k;
    for (int b = 0; b < blocks && left > 0; b++) {
        if ((int)(test_random(seed) % (uint64_t)(blocks - b)) >= left) continue;
        chosen[count++] = b;
        left--;
    }
    while (count < selection->top_k) chosen[count++] = -1;
}

/* Rows read what the selection has; a selection by choice has random keys. */
static inline void bench_select(Bench *b, const KeySelection *selection) {
    uint64_t seed = 11;
    b->selection = *selection;
    for (int i = 0; chosen_width(b) > 0 && i <= STRANGERS; i++) {
        Sequence *q = &b->sequence[i];
        q->chosen = calloc((size_t)(q->tokens * chosen_width(b)), sizeof *q->chosen);
        if (!q->chosen) abort();
        for (int n = 0; n < q->tokens * selection->groups; n++)
            choose_blocks(selection, n / selection->groups, &seed, q->chosen + n * selection->top_k);
    }
}

/* Cache memory for all sequences as the second of two layers, pages dealt in a scattered order. */
typedef struct Cache {
    KvLayer layer;
    uint8_t *memory;
} Cache;

static inline Cache cache_make(Backend *backend, Bench *b) {
    const Shape *s = b->shape;
    Cache cache = {.layer.layout = {s->kv_heads, s->head_dim, s->value_dim, s->dtype, s->latent}, .layer.group = 1};
    size_t bytes = backend->ops->kv_layer_bytes(backend, &cache.layer.layout);
    bytes = (bytes + 63) / 64 * 64;
    cache.layer.page_stride = 2 * bytes + 64;
    cache.layer.layer_offset = bytes;
    Error error;
    cache.memory = backend->ops->alloc(backend, PAGES * cache.layer.page_stride, MEMORY_CACHE, &error);
    if (!cache.memory) abort();
    cache.layer.base = cache.memory;
    int dealt = 0;
    for (int i = 0; i <= STRANGERS; i++) {
        Sequence *q = &b->sequence[i];
        q->position = 0;
        q->tables[0] = NULL;
        q->tables[1] = q->pages;
        for (int page = 0; page < PAGES; page++) q->pages[page] = -1;
        for (int page = 0; page * KV_PAGE_TOKENS < q->tokens; page++) {
            q->pages[page] = dealt++ * 29 % PAGES;
            memset(cache.memory + (size_t)q->pages[page] * cache.layer.page_stride + bytes, 0xff, bytes);
        }
    }
    if (dealt > PAGES) abort();
    return cache;
}

/* The next rows of a sequence for a step whose rows before them are row: their inputs go behind those of the rows
 * before. positions: [POSITION_DIMS_MAX][rows], filled where the sequence has places of its own, borrowed until
 * step_of(). */
static inline StepSequence next_rows(
    const Bench *b, Sequence *seq, int rows, int row, int32_t *positions, float *const *in) {
    static const int32_t zeros[ROWS_MAX];
    const Shape *s = b->shape;
    const int widths[4] = {q_width(s), k_width(s), v_width(s), out_width(s)};
    const float *const from[4] = {seq->q, seq->k, seq->v, seq->q_latent};
    for (int i = 0; i < (s->latent ? 4 : 3); i++)
        memcpy(
            in[i] + row * widths[i], from[i] + seq->position * widths[i], sizeof(float) * (size_t)(rows * widths[i]));
    for (int i = 0; seq->places && i < POSITION_DIMS_MAX * rows; i++) {
        const int axis = b->position_dims > 1 ? i / rows : 0;
        positions[i] = seq->places[axis * seq->tokens + seq->position + i % rows];
    }
    StepSequence next = {.rows = rows,
        .position = seq->position,
        .tables = seq->tables,
        .quant = seq->quant,
        .tokens = zeros,
        .positions = seq->places ? positions : NULL};
    const BidirectionalSpan *span = seq->spans, *end = seq->spans + seq->span_count;
    while (span < end && span->begin < seq->position) span++;
    for (next.spans = span; span < end && span->begin < seq->position + rows; span++) next.span_count++;
    /* pages that the window has left */
    const int oldest = s->window ? seq->position - s->window + 1 : 0;
    for (int page = 0; (page + 1) * KV_PAGE_TOKENS <= oldest; page++) seq->pages[page] = -1;
    return next;
}

static inline Attention attention_of(const Bench *b, const KvLayer *layer) {
    const Shape *s = b->shape;
    return (Attention){.heads = s->heads,
        .kv = *layer,
        .scale = 1.0f / sqrtf((float)(s->head_dim + (s->latent ? s->value_dim : 0))),
        .softcap = s->softcap,
        .window = s->window,
        .chunked = b->sequence[0].chunked,
        .span_rule = b->sequence[0].span_rule,
        .q_norm = s->norm ? &b->q_norm : NULL,
        .k_norm = s->norm ? &b->k_norm : NULL,
        .norm_full = s->norm == NORM_FULL,
        .rope = s->rope ? &b->rope : NULL,
        .sinks = s->sinks ? b->sinks : NULL,
        .slopes = b->alibi ? b->slopes : NULL,
        .slopes_bf16 = b->alibi == SLOPES_BF16 ? 0.7f : 0,
        .selection = b->selection};
}

/* Appends rows[i] tokens of each sequence in one step (0: not in it); outputs of sequence 0 go to out. */
static inline void advance(Backend *backend, Bench *b, const Cache *cache, const int rows[1 + STRANGERS], float *out) {
    static float q[ROWS_MAX * 5000], k[ROWS_MAX * 2048], v[ROWS_MAX * 2048], q_latent[ROWS_MAX * 5000],
        y[ROWS_MAX * 5000];
    static int32_t positions[POSITION_DIMS_MAX * ROWS_MAX], chosen[ROWS_MAX * 64];
    const int choices = chosen_width(b);
    float *const in[4] = {q, k, v, q_latent};
    StepSequence sequences[1 + STRANGERS];
    int count = 0, total = 0, own = -1;
    for (int n = STRANGERS; n >= 0; n--) { /* the sequence under test in the middle */
        const int i = (n + 4) % (1 + STRANGERS);
        if (rows[i] == 0) continue;
        sequences[count] = next_rows(b, &b->sequence[i], rows[i], total, positions + POSITION_DIMS_MAX * total, in);
        sequences[count++].decode = b->decode_rows && own < 0;
        if (i == 0) own = total;
        if (choices > 0)
            memcpy(chosen + total * choices, b->sequence[i].chosen + b->sequence[i].position * choices,
                (size_t)(rows[i] * choices) * sizeof *chosen);
        total += rows[i];
    }
    Attention op = attention_of(b, &cache->layer);
    op.q = q;
    op.k = k;
    op.v = v;
    op.q_latent = b->shape->latent ? q_latent : NULL;
    op.out = y;
    op.selection.chosen = chosen;
    Error error;
    backend->ops->begin(backend, step_of(count, sequences));
    backend->ops->attention(backend, &op);
    if (!backend->ops->wait(backend, backend->ops->submit(backend), &error)) TEST_MSG(false, "%s", error.text);
    const int width = out_width(b->shape);
    memcpy(out + b->sequence[0].position * width, y + own * width, sizeof *y * (size_t)(rows[0] * width));
    for (int i = 0; i <= STRANGERS; i++) b->sequence[i].position += rows[i];
}

/* How many rows a step of some `wanted` takes from a sequence: spans stay whole. */
static inline int rows_of_step(const Sequence *seq, int wanted) {
    int end = seq->position + wanted < seq->tokens ? seq->position + wanted : seq->tokens;
    for (int i = 0; i < seq->span_count; i++)
        if (seq->spans[i].begin < end && end < seq->spans[i].end) end = seq->spans[i].end;
    return end - seq->position;
}

/* The whole of sequence 0 in steps of `chunk` tokens; with strangers beside it: as many of theirs as there are left,
 * one of each beside single ones. */
static inline void compute(Backend *backend, Bench *b, int chunk, bool strangers, float *out) {
    Cache cache = cache_make(backend, b);
    while (b->sequence[0].position < b->sequence[0].tokens) {
        int rows[1 + STRANGERS] = {0};
        for (int i = 0; i <= (strangers ? STRANGERS : 0); i++) {
            rows[i] = rows_of_step(&b->sequence[i], i == 0 || chunk == 1 ? chunk : 1 + i * 3 % 8);
        }
        advance(backend, b, &cache, rows, out);
    }
    backend->ops->release(backend, cache.memory);
}

/* Scores are sums of head_dim products of size ≤ 4 scaled by 1/√head_dim: both sides round them to some 1e-6, exp
 * passes that on as a relative error, and the result is a mean of values ≤ 1. With 16-bit pages a key or value that was
 * computed (normed, rotated) may round to the neighbouring number: 2⁻¹¹ or 2⁻⁸ of its size. */
static inline double tolerance(const Shape *s) {
    if (s->dtype == DTYPE_F32 || (s->rope == PLAIN && s->norm == NO_NORM)) return 2e-5;
    return s->dtype == DTYPE_F16 ? 1e-3 : 8e-3;
}

/* Devices round queries to f16 as well, on average by 0.4 · 2⁻¹¹ of a number's size, so that the error of a score has
 * that part of the score's own standard deviation, the mean size of q times that of k. A result moves most where two
 * keys have half of the weight each and values of 1 and −1: by 0.7 of the scores' error. Five standard deviations. */
static inline double tolerance_on(const char *backend, const Shape *s) {
    const double plain = 4.0 / 3, normed = 1.0 / 3; /* mean squares of numbers within ±2, and of weights within ±1 */
    const double score = (s->norm ? normed : plain) * (s->rope ? 1.25 * 1.25 : 1);
    const double rounded =
        s->dtype == DTYPE_F16 && tolerance(s) > 2e-5 && is_device(backend) ? 5 * 0.7 * 0.4 * 0x1p-11 * score : 0;
    return fmax(tolerance(s), rounded);
}
