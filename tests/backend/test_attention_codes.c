/* Attention to pages that are kept as codes: every vector backend near the reference, which decodes them, and a row's
 * result the same, bit for bit, in whatever steps its sequence is cut, beside whichever strangers, with any number of
 * threads. Exact pages are spoiled as soon as every row to come sees their codes. */
#include "attend.h"
#include "backend/kv_quant.h"

enum { AFTER = 384, HOT = 256, SINK = 128, KV_HEADS_MAX = 4 };

typedef struct Case {
    Shape shape;
    KvForm k, v;
    float bias; /* size of what is added to every key */
} Case;

static const Case cases[] = {
    {{"groups of 6", 6, 1, 128, 128, DTYPE_F16, 1200, 0, 0, PLAIN, 0, NO_NORM, false, false}, KV_Q4, KV_Q4, 0},
    {{"groups of 7, values of 3 bits", 14, 2, 64, 64, DTYPE_F16, 1300, 0, 0, PLAIN, 0, NO_NORM, false, false}, KV_Q4,
        KV_Q3, 0},
    {{"no groups, 5 and 6 bits", 2, 2, 80, 80, DTYPE_F32, 900, 0, 0, PLAIN, 0, NO_NORM, false, false}, KV_Q5, KV_Q6, 0},
    {{"8 bits, sinks, softcap", 4, 2, 96, 96, DTYPE_BF16, 900, 0, 30, PLAIN, 0, NO_NORM, true, false}, KV_Q8, KV_Q8, 0},
    {{"two groups of dims", 4, 1, 256, 160, DTYPE_F16, 800, 0, 0, PLAIN, 0, NO_NORM, false, false}, KV_Q6, KV_Q5, 0},
    {{"bias", 6, 2, 64, 64, DTYPE_F32, 1100, 0, 0, ROPE_HALF, 64, NO_NORM, false, false}, KV_Q4, KV_Q4, 40},
    {{"bias, interleaved", 12, 1, 128, 128, DTYPE_F32, 900, 0, 0, ROPE_INTERLEAVED, 96, NORM_HEAD, false, false}, KV_Q5,
        KV_Q4, 0},
    {{"one kv head for 50", 50, 1, 64, 64, DTYPE_F16, 700, 0, 0, PLAIN, 0, NO_NORM, false, false}, KV_Q4, KV_Q4, 0},
    {{"latents", 7, 1, 64, 512, DTYPE_F16, 650, 0, 0, ROPE_INTERLEAVED, 64, NO_NORM, false, true}, KV_Q4, KV_Q3, 0},
    {{"latents for 51", 51, 1, 16, 64, DTYPE_F32, 700, 0, 20, ROPE_HALF, 16, NO_NORM, true, true}, KV_Q6, KV_Q4, 0},
    {{"latents of 5 bits", 13, 1, 80, 192, DTYPE_BF16, 700, 0, 0, PLAIN, 0, NO_NORM, false, true}, KV_Q5, KV_Q8, 0},
    {{"latents of 8 bits", 1, 1, 32, 96, DTYPE_F16, 1300, 0, 0, PLAIN, 0, NO_NORM, false, true}, KV_Q8, KV_Q4, 0},
};

static const Case sloped = {
    {"ALiBi", 6, 2, 64, 64, DTYPE_F16, 900, 0, 0, PLAIN, 0, NO_NORM, false, false}, KV_Q4, KV_Q4, 0};

/* The coded side of sequence 0. */
typedef struct Codes {
    KvQuant code;
    uint64_t pairs[KV_HEADS_MAX];
    int32_t pages[PAGES], *table;
    KvQuantView quant;
    uint8_t *k, *v;
    int end; /* of what is coded */
} Codes;

static void codes_open(Backend *backend, const Case *c, Cache *cache, float *bias, const Rope *rope, Codes *codes) {
    KvLayer *layer = &cache->layer;
    *codes = (Codes){.code = {.k = c->k, .v = c->v, .bias_pairs = codes->pairs}, .end = SINK};
    codes->table = codes->pages;
    codes->quant = (KvQuantView){.after = AFTER,
        .hot = HOT,
        .sink = SINK,
        .layers = &codes->code,
        .k_pages = &codes->table,
        .v_pages = &codes->table};
    for (int i = 0; i < PAGES; i++) codes->pages[i] = -1;
    const size_t k = backend->ops->kv_quant_bytes(backend, &layer->layout, c->k, false),
                 v = backend->ops->kv_quant_bytes(backend, &layer->layout, c->v, true);
    Error error;
    codes->k = backend->ops->alloc(backend, PAGES * k, MEMORY_CACHE, &error);
    codes->v = backend->ops->alloc(backend, PAGES * v, MEMORY_CACHE, &error);
    if (!k || !v || !codes->k || !codes->v) abort();
    layer->k_quant[c->k] = (KvStore){codes->k, k};
    layer->v_quant[c->v] = (KvStore){codes->v, v};
    if (c->bias > 0) layer->k_bias = bias;
    layer->rope = c->shape.rope ? rope : NULL;
}

/* What kv_quant_pages_reserve does before a step: decides once, then codes what its rows see as codes. */
static void code_until(Backend *backend, const Cache *cache, Sequence *seq, Codes *codes, int rows) {
    const int end = kv_cold_end(&codes->quant, seq->position + rows - 1);
    if (codes->end == SINK && end > SINK) {
        const KvCalibration calibration = {&cache->layer, seq->pages, AFTER, false, &codes->code};
        backend->ops->kv_calibrate(backend, 1, &calibration);
    }
    for (; codes->end < end; codes->end += KV_PAGE_TOKENS) {
        const int page = codes->end / KV_PAGE_TOKENS;
        codes->pages[page] = (page * 5 + 3) % PAGES;
        const KvQuantise encode = {
            &cache->layer, &codes->code, codes->end, seq->pages[page], codes->pages[page], codes->pages[page]};
        backend->ops->kv_quantise(backend, 1, &encode);
    }
    for (int page = SINK / KV_PAGE_TOKENS; page < kv_cold_end(&codes->quant, seq->position) / KV_PAGE_TOKENS; page++) {
        if (seq->pages[page] < 0) continue;
        memset(cache->memory + (size_t)seq->pages[page] * cache->layer.page_stride + cache->layer.layer_offset, 0xff,
            backend->ops->kv_layer_bytes(backend, &cache->layer.layout));
        seq->pages[page] = -1;
    }
}

static int rows_allowed(const Sequence *seq, int wanted) {
    const int at = seq->position, left = seq->tokens - at;
    const int most = at < AFTER ? AFTER - at : at / KV_PAGE_TOKENS * KV_PAGE_TOKENS + KV_PAGE_TOKENS + HOT - at;
    const int rows = wanted < most ? wanted : most;
    return rows < left ? rows : left;
}

static void compute_coded(
    Backend *backend, const Case *c, Bench *b, float *bias, int chunk, bool strangers, float *out) {
    Cache cache = cache_make(backend, b);
    Sequence *seq = &b->sequence[0];
    Codes codes;
    codes_open(backend, c, &cache, bias, &b->rope, &codes);
    seq->quant = &codes.quant;
    while (seq->position < seq->tokens) {
        int rows[1 + STRANGERS] = {rows_allowed(seq, chunk)};
        for (int i = 1; i <= (strangers ? STRANGERS : 0); i++) rows[i] = rows_of_step(&b->sequence[i], 1 + i * 3 % 8);
        code_until(backend, &cache, seq, &codes, rows[0]);
        advance(backend, b, &cache, rows, out);
    }
    TEST_MSG(c->bias == 0 || codes.pairs[0], "%s: no pair has a bias that matters", c->shape.name);
    seq->quant = NULL;
    backend->ops->release(backend, cache.memory);
    backend->ops->release(backend, codes.k);
    backend->ops->release(backend, codes.v);
}

static double mean_square(const float *a, const float *b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += ((double)a[i] - (b ? b[i] : 0)) * ((double)a[i] - (b ? b[i] : 0));
    return sqrt(sum / (double)count);
}

/* How far codes are from what they stand for, in rows that see some. A code of 4 bits is 9.7 % off, and each bit more
 * halves that; of latents both the scores and the sums are, √2 of it. Of 8 bits, uniform steps, a percent. */
static void check_distortion(Backend *ref, const Case *c, Bench *b, const float *coded) {
    static const double most[KV_FORMS] = {[KV_Q4] = 0.137, [KV_Q5] = 0.07, [KV_Q6] = 0.037, [KV_Q8] = 0.014};
    const int64_t width = out_width(&c->shape), from = (AFTER + HOT) * width, count = c->shape.tokens * width - from;
    float *exact = random_floats(c->shape.tokens * width, 0);
    compute(ref, b, 512, false, exact);
    const double far = mean_square(coded + from, exact + from, count) / mean_square(exact + from, NULL, count);
    TEST_MSG(far > 0.001 && far <= most[c->k], "%s: codes are %g off", c->shape.name, far);
    printf("%s: %d bits, %.4f off\n", c->shape.name, kv_form_bits(c->k), far);
    free(exact);
}

/* Rows that lie behind their prompts, in steps of some and of one, alone and beside strangers of both kinds. */
static void check_generated(
    const Case *c, Bench *b, float *bias, const char *name, const float *expected, bool in_short) {
    static const struct {
        int chunk;
        bool strangers;
    } cuts[] = {{7, false}, {50, true}, {1, false}, {3, true}, {1, true}};
    const Shape *s = &c->shape;
    const int64_t count = (int64_t)s->tokens * out_width(s);
    float *first = random_floats(count, 0), *other = random_floats(count, 0);
    Backend *backend = open_backend(name, 1, false, ROWS_MAX);
    b->decode_rows = true;
    for (size_t i = 0; backend->decode_rows_max && i < (in_short ? 2 : COUNT_OF(cuts)); i++) {
        float *out = i == 0 ? first : other;
        memset(out, 0, (size_t)count * sizeof *out);
        compute_coded(backend, c, b, bias, cuts[i].chunk, cuts[i].strangers, out);
        const double far = mean_square(out, expected, count), size = mean_square(expected, NULL, count);
        TEST_MSG(far <= 0.01 * size, "%s: %s: generated: %g from ref, of %g", name, s->name, far, size);
        TEST_MSG(same_bits(first, out, count), "%s: %s: generated: steps of %d%s: %g away", name, s->name,
            cuts[i].chunk, cuts[i].strangers ? " beside strangers" : "", distance(out, first, count));
    }
    b->decode_rows = false;
    backend_close(backend);
    free(first);
    free(other);
}

/* Every so-many-th cut, from one of them on. */
static void check_case(const Case *c, int alibi, size_t first_cut, size_t stride) {
    static const struct {
        int threads, chunk;
        bool strangers;
    } cuts[] = {{1, 100, true}, {2, 7, true}, {1, 1, false}, {2, 1, true}, {3, 128, false}, {4, 300, true}};
    const Shape *s = &c->shape;
    Bench b = bench_make(s);
    b.alibi = alibi;
    float *bias = random_floats(k_width(s), c->bias);
    for (int64_t i = 0; i < (int64_t)s->tokens * k_width(s) && c->bias > 0; i++)
        b.sequence[0].k[i] += bias[i % k_width(s)];
    const int64_t count = (int64_t)s->tokens * out_width(s);
    float *expected = random_floats(count, 0), *first = random_floats(count, 0), *other = random_floats(count, 0);
    Backend *ref = open_backend("ref", 1, false, ROWS_MAX);
    compute_coded(ref, c, &b, bias, 512, false, expected);
    if (s->latent) check_distortion(ref, c, &b, expected);
    backend_close(ref);
    for (size_t n = 0; n < COUNT_OF(vector_names); n++) {
        if (is_device(vector_names[n]) && s->latent) continue; /* it keeps latents exact */
        Backend *single = open_backend(vector_names[n], 1, false, ROWS_MAX);
        if (!single) continue;
        compute_coded(single, c, &b, bias, 512, false, first);
        const double far = mean_square(first, expected, count), size = mean_square(expected, NULL, count);
        /* A query is rounded by at most 1/254 of its largest element, weights by 1/126 or less of the page's heaviest.
         */
        TEST_MSG(far <= 0.01 * size, "%s: %s: %g from ref, of %g", vector_names[n], s->name, far, size);
        backend_close(single);
        check_generated(c, &b, bias, vector_names[n], expected, stride > 1);
        for (size_t i = first_cut % stride; i < COUNT_OF(cuts); i += stride) {
            Backend *backend = open_backend(vector_names[n], cuts[i].threads, false, ROWS_MAX);
            memset(other, 0, (size_t)count * sizeof *other);
            compute_coded(backend, c, &b, bias, cuts[i].chunk, cuts[i].strangers, other);
            TEST_MSG(same_bits(first, other, count), "%s: %s: %d threads, steps of %d%s: %g away", vector_names[n],
                s->name, cuts[i].threads, cuts[i].chunk, cuts[i].strangers ? " beside strangers" : "",
                distance(other, first, count));
            backend_close(backend);
        }
    }
    free(bias);
    free(expected);
    free(first);
    free(other);
    bench_free(&b);
}

/* short: for an emulator. */
int main(int argc, char **argv) {
    const bool in_short = argc > 1 && !strcmp(argv[1], "short");
    enum { CUTS = 6 };
    for (size_t i = 0; i < COUNT_OF(cases); i += in_short ? 3 : 1)
        check_case(&cases[i], NO_SLOPES, in_short ? 0 : i, in_short || test_sampled() ? CUTS : 1);
    check_case(&sloped, SLOPES, 0, in_short || test_sampled() ? CUTS : 1);
    return test_done();
}
