/* Pages as others see them: the canonical order, the same values after any journey between pages and backends, on every
 * backend and in every type; and keys that another call of attention has appended. */
#include "backend/steps.h"
#include "attend.h"

enum { BACKENDS_MAX = 6 };
static const char *const names[BACKENDS_MAX] = {"ref", "avx2", "avx512", "amx", "neon", "cuda"};

static const Shape shapes[] = {
    {"even", 4, 2, 64, 64, DTYPE_F16, 300, 0, 0, PLAIN, 0, NO_NORM, false, false},
    {"odd widths", 5, 1, 18, 50, DTYPE_F16, 150, 0, 0, PLAIN, 0, NO_NORM, false, false},
    {"values narrower", 6, 3, 96, 40, DTYPE_BF16, 257, 0, 0, PLAIN, 0, NO_NORM, false, false},
    {"full width", 4, 2, 40, 32, DTYPE_F32, 200, 0, 0, PLAIN, 0, NO_NORM, false, false},
    {"turned", 4, 2, 64, 64, DTYPE_BF16, 200, 0, 0, ROPE_HALF, 64, NORM_HEAD, false, false},
};

static int tokens_in_page(const Sequence *seq, int page) {
    const int left = seq->position - page * KV_PAGE_TOKENS;
    return left < KV_PAGE_TOKENS ? left : KV_PAGE_TOKENS;
}

static size_t canonical_bytes(const Shape *s, int tokens) {
    const KvLayout layout = {
        .kv_heads = s->kv_heads, .head_dim = s->head_dim, .value_dim = s->value_dim, .dtype = s->dtype};
    return kv_canonical_bytes(&layout, tokens);
}

/* All pages of a sequence, one after another, each in its canonical order. */
static uint8_t *read_all(Backend *backend, const Cache *cache, const Shape *s, const Sequence *seq, size_t *size) {
    uint8_t *out = malloc(canonical_bytes(s, seq->position) + 1);
    if (!out) abort();
    *size = 0;
    for (int page = 0; page * KV_PAGE_TOKENS < seq->position; page++) {
        const int tokens = tokens_in_page(seq, page);
        out[*size + canonical_bytes(s, tokens)] = 0xa5;
        TEST(backend->ops->page_read(backend, &cache->layer, seq->pages[page], tokens, out + *size));
        *size += canonical_bytes(s, tokens);
        TEST_MSG(out[*size] == 0xa5, "%s: a page reads more than it has", s->name);
    }
    return out;
}

static void write_all(Backend *backend, const Cache *cache, const Shape *s, const Sequence *seq, const uint8_t *from) {
    for (int page = 0; page * KV_PAGE_TOKENS < seq->position; page++) {
        TEST(backend->ops->page_write(backend, &cache->layer, seq->pages[page], tokens_in_page(seq, page), from));
        from += canonical_bytes(s, tokens_in_page(seq, page));
    }
}

/* The mean over the query heads of a kv head of |q·scale|². A rotation keeps it but for the rope's scale; a normed head
 * is left alone here. f32 sums of some hundred squares: some 1e-6. */
static bool energy_fits(const Shape *s, const Sequence *seq, int t, int kv_head, const uint8_t *at) {
    const int group = s->heads / s->kv_heads;
    const float *q = seq->q + t * q_width(s) + kv_head * group * s->head_dim;
    double expected = 0;
    for (int i = 0; i < group * s->head_dim; i++) expected += (double)q[i] * q[i] / s->head_dim / group;
    float energy;
    memcpy(&energy, at, sizeof energy);
    return s->norm ? energy > 0 : fabs(energy - expected) <= 1e-5 * expected;
}

/* What attention appended, in the order that backend.h says. Where it was computed (normed, rotated) only the values.
 */
static void check_order(const char *name, const Shape *s, const Sequence *seq, const uint8_t *canonical) {
    uint8_t *expected = malloc(canonical_bytes(s, seq->position));
    size_t size = 0;
    bool same = true;
    if (!expected) abort();
    for (int first = 0; first < seq->position; first += KV_PAGE_TOKENS) {
        const int tokens = tokens_in_page(seq, first / KV_PAGE_TOKENS), keys = tokens * k_width(s);
        floats_from_f32(expected + size, s->dtype, seq->k + first * k_width(s), keys);
        const size_t values = size + (size_t)keys * dtype_bytes(s->dtype);
        floats_from_f32(expected + values, s->dtype, seq->v + first * v_width(s), tokens * v_width(s));
        const size_t from = s->rope || s->norm ? values : size;
        const size_t energies = values + (size_t)(tokens * v_width(s)) * dtype_bytes(s->dtype);
        size += canonical_bytes(s, tokens);
        for (int i = 0; i < tokens * s->kv_heads; i++)
            same = same &&
                energy_fits(s, seq, first + i / s->kv_heads, i % s->kv_heads, canonical + energies + (size_t)i * 4);
        same = same && !memcmp(canonical + from, expected + from, energies - from);
    }
    TEST_MSG(same, "%s: %s: not what was appended, or not in order", name, s->name);
    free(expected);
}

/* Sequence 0 but its last rows; gives the cache. */
static Cache fill(Backend *backend, Bench *b, int tokens) {
    static float out[1300 * 5000];
    Cache cache = cache_make(backend, b);
    while (b->sequence[0].position < tokens) {
        int rows[1 + STRANGERS] = {0};
        rows[0] = rows_of_step(
            &b->sequence[0], tokens - b->sequence[0].position < 64 ? tokens - b->sequence[0].position : 64);
        advance(backend, b, &cache, rows, out);
    }
    return cache;
}

/* The rest of the sequence, from where it stands: [rest][out_width]. */
static void finish(Backend *backend, Bench *b, const Cache *cache, float *out) {
    static float all[1300 * 5000];
    Sequence *seq = &b->sequence[0];
    const int from = seq->position, width = out_width(b->shape);
    while (seq->position < seq->tokens) advance(backend, b, cache, (int[1 + STRANGERS]){1}, all);
    memcpy(out, all + from * width, (size_t)((seq->tokens - from) * width) * sizeof *out);
}

/* The sequence moves into other pages, in memory of its own on `other`, and reads the same there; there and back again
 * it goes on with the same bits as if it had stayed. */
static void check_journey(Backend *one, Backend *other, const Shape *s) {
    enum { REST = 9 };
    Bench b = bench_make(s);
    Sequence *seq = &b.sequence[0];
    const int held = s->tokens - REST;
    const int64_t count = (int64_t)REST * out_width(s);
    float *stayed = random_floats(count, 0), *moved = random_floats(count, 0);
    size_t size;
    Cache cache = fill(one, &b, held);
    uint8_t *before = read_all(one, &cache, s, seq, &size);
    check_order(one->ops->name, s, seq, before);
    finish(one, &b, &cache, stayed);
    one->ops->release(one, cache.memory);

    Cache there = cache_make(other, &b), again = cache_make(one, &b); /* NaN, and no tokens */
    seq->position = held;
    for (int page = 0; page * KV_PAGE_TOKENS < held; page++) seq->pages[page] = (seq->pages[page] + 7) % PAGES;
    write_all(other, &there, s, seq, before);
    uint8_t *after = read_all(other, &there, s, seq, &size);
    TEST_MSG(
        !memcmp(before, after, size), "%s to %s: %s: the values changed", one->ops->name, other->ops->name, s->name);
    write_all(one, &again, s, seq, after);
    finish(one, &b, &again, moved);
    TEST_MSG(same_bits(stayed, moved, count), "%s by way of %s: %s: goes on with other numbers", one->ops->name,
        other->ops->name, s->name);
    other->ops->release(other, there.memory);
    one->ops->release(one, again.memory);
    free(before);
    free(after);
    free(stayed);
    free(moved);
    bench_free(&b);
}

/* A page's bytes copied to another page hold the same tokens. */
static void check_copy(Backend *backend, const Shape *s) {
    Bench b = bench_make(s);
    Sequence *seq = &b.sequence[0];
    size_t size;
    Cache cache = fill(backend, &b, s->tokens);
    uint8_t *before = read_all(backend, &cache, s, seq, &size);
    for (int page = 0; page * KV_PAGE_TOKENS < seq->position; page++) {
        const int32_t from = seq->pages[page], to = PAGES - 1 - page;
        backend->ops->copy(backend, cache.memory + (size_t)to * cache.layer.page_stride,
            cache.memory + (size_t)from * cache.layer.page_stride, cache.layer.page_stride);
        seq->pages[page] = to;
    }
    uint8_t *after = read_all(backend, &cache, s, seq, &size);
    TEST_MSG(!memcmp(before, after, size), "%s: %s: copied pages differ", backend->ops->name, s->name);
    backend->ops->release(backend, cache.memory);
    free(before);
    free(after);
    bench_free(&b);
}

/* A second call without k and v reads what the first has appended: as if it had appended the same. */
static void check_shared(Backend *backend, const Shape *s) {
    enum { ROWS = 40 };
    Bench b = bench_make(s);
    const int64_t q_count = ROWS * q_width(s), k_count = ROWS * k_width(s), count = ROWS * out_width(s);
    float *q[2], *k[2], *out[2];
    Cache cache = cache_make(backend, &b);
    const int32_t tokens[ROWS] = {0};
    const StepSequence sequence = {.rows = ROWS, .tables = b.sequence[0].tables, .tokens = tokens};
    backend->ops->begin(backend, step_of(1, &sequence));
    for (int i = 0; i < 2; i++) {
        q[i] = copy_floats(b.sequence[0].q, q_count);
        k[i] = copy_floats(b.sequence[0].k, k_count);
        out[i] = random_floats(count, 1);
        Attention op = attention_of(&b, &cache.layer);
        op.q = q[i];
        op.k = i ? NULL : k[i];
        op.v = i ? NULL : b.sequence[0].v;
        op.out = out[i];
        backend->ops->attention(backend, &op);
    }
    backend->ops->submit(backend);
    TEST_MSG(same_bits(out[0], out[1], count), "%s: %s: keys that another call appended", backend->ops->name, s->name);
    TEST_MSG(same_bits(k[1], b.sequence[0].k, k_count), "%s: %s: touched keys it was not given", backend->ops->name,
        s->name);
    backend->ops->release(backend, cache.memory);
    for (int i = 0; i < 2; i++) {
        free(q[i]);
        free(k[i]);
        free(out[i]);
    }
    bench_free(&b);
}

/* Keys come with their values, or neither does. */
static void check_plan(void) {
    Error error = {0};
    float x = 0;
    size_t bytes;
    const Attention both = {.heads = 2, .kv.layout = {2, 32, 32, DTYPE_F16}, .q = &x, .k = &x, .v = &x, .out = &x};
    for (int given = 0; given < 4; given++) {
        Attention op = both;
        Backend *plan = plan_open(1, &error);
        if (!plan) abort();
        if (given % 2) op.k = NULL;
        if (given / 2) op.v = NULL;
        plan->ops->attention(plan, &op);
        const bool ok = plan_result(plan, &bytes, &error);
        TEST_MSG(ok == (given == 0 || given == 3), "case %d: %s", given, error.text);
        backend_close(plan);
    }
}

int main(void) {
    check_plan();
    Backend *backends[BACKENDS_MAX];
    int count = 0;
    for (int i = 0; i < BACKENDS_MAX; i++) {
        backends[count] = open_backend(names[i], 2, false, ROWS_MAX);
        count += backends[count] != NULL;
    }
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int one = 0; one < count; one++) {
            for (int other = 0; other < count; other++) check_journey(backends[one], backends[other], &shapes[i]);
            check_copy(backends[one], &shapes[i]);
            check_shared(backends[one], &shapes[i]);
        }
    for (int i = 0; i < count; i++) backend_close(backends[i]);
    return test_done();
}
