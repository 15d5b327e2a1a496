/* The prefix cache against a shadow: what every row of every sequence sees, found or computed, exact or as codes, must
 * be what its text alone says, whatever was left, found and evicted before. */
#include "cache/prefix.h"

#include <stdlib.h>

#include "cache/fake_pages.h"
#include "test.h"

enum { ENTRIES = 3, WINDOW = 200, CONTEXT = 1536, STEP_MAX = 300, SLOTS = 6, HEADS = 2, TEXTS = 5 };
enum { PAGE_BYTES = KV_PAGE_TOKENS * sizeof(uint64_t) };

/* ---- a backend whose codes tell what they were made from ---- */

static size_t fake_code_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values) {
    return (size_t)(KV_PAGE_TOKENS / 2 + 8 * form + values) * sizeof(uint64_t); /* of every page half its tokens */
}

static uint64_t *exact_page(const KvLayer *layer, int32_t page) {
    return (uint64_t *)(void *)(layer->base + (size_t)page * layer->page_stride + layer->layer_offset);
}
static uint64_t *code_page(const KvStore *store, int32_t page) {
    return (uint64_t *)(void *)(store->base + (size_t)page * store->stride);
}

/* Depends on every token surveyed. */
static void survey_expected(uint64_t last, int layer, KvForm *k, uint64_t pairs[HEADS]) {
    uint64_t state = last + (uint64_t)layer;
    *k = test_random(&state) % 2 ? KV_Q5 : KV_Q4;
    for (int h = 0; h < HEADS; h++) pairs[h] = test_random(&state);
}
static void fake_survey(Backend *backend, int count, const KvCalibration *calibration) {
    for (int i = 0; i < count; i++) {
        const KvCalibration *s = &calibration[i];
        const int last = s->tokens - 1;
        const uint64_t seen = exact_page(s->layer, s->table[last / KV_PAGE_TOKENS])[last % KV_PAGE_TOKENS];
        KvForm k;
        survey_expected(seen, s->layer->index, &k, s->code->bias_pairs);
        if (s->raise) s->code->k = k;
    }
}

static uint64_t encoded(uint64_t value, KvForm form, bool values, uint64_t pairs) {
    return value * 0x9e3779b97f4a7c15u + (uint64_t)form * 2 + values + pairs;
}
static void fake_encode(Backend *backend, int count, const KvQuantise *encode) {
    for (int i = 0; i < count; i++) {
        const KvQuantise *e = &encode[i];
        const uint64_t *from = exact_page(e->layer, e->from), pairs = e->code->bias_pairs[1];
        uint64_t *k = code_page(&e->layer->k_quant[e->code->k], e->k_to);
        uint64_t *v = code_page(&e->layer->v_quant[e->code->v], e->v_to);
        for (int t = 0; t < KV_PAGE_TOKENS; t += 2) k[t / 2] = encoded(from[t], e->code->k, false, pairs);
        for (int t = 0; t < KV_PAGE_TOKENS; t += 2) v[t / 2] = encoded(from[t], e->code->v, true, pairs);
    }
}

static const BackendOps fake_ops = {
    FAKE_PAGE_OPS, .kv_quant_bytes = fake_code_bytes, .kv_calibrate = fake_survey, .kv_quantise = fake_encode};
static Backend fake_backend = {.ops = &fake_ops, .rows_max = STEP_MAX};

static const CacheSpec specs[ENTRIES] = {
    {.kv_heads = HEADS, .head_dim = 1, .value_dim = 1},
    {.kv_heads = 1, .head_dim = 1, .value_dim = 1, .window = WINDOW},
    {.kv_heads = HEADS, .head_dim = 1, .value_dim = 1},
};

static KvPlan make_plan(int layers) {
    KvPlan plan;
    Backend *backends[ENTRIES];
    for (int i = 0; i < layers; i++) backends[i] = &fake_backend;
    TEST(kv_plan_make(&plan, specs, backends, layers, CONTEXT, NULL));
    return plan;
}

static const KvFormat turbo = {
    .k = KV_Q4, .v = KV_Q4, .raise = KV_RAISE_MEASURED, .after = 512, .hot = 128, .sink = 128};
static const KvFormat early = {.k = KV_Q8, .v = KV_Q3, .after = 256, .hot = 256};
enum { FORMATS = 3 };
static const KvFormat *const formats[FORMATS] = {NULL, &turbo, &early};

/* ---- sequences whose contents follow from their text ---- */

typedef struct Shadow {
    bool open;
    uint64_t salt;
    const KvFormat *format;
    KvSequence s;
    uint64_t text[CONTEXT];
    uint64_t value[CONTEXT]; /* of each position, from space and tokens up to it */
} Shadow;

static void set_text(Shadow *x, int from) {
    for (int i = from; i < CONTEXT; i++) {
        uint64_t state = (i ? x->value[i - 1] : x->salt * 77) * 31 + x->text[i] + 1;
        x->value[i] = test_random(&state);
    }
}

/* What row p sees of a layer. */
static int wrong_row(
    const KvPlan *plan, const KvCache *cache, const Shadow *x, const SequenceChunk *chunk, int l, int p) {
    const KvLayer *layer = &kv_entries(cache)[l];
    const int window = specs[l].window, first = window && p >= window ? p - window + 1 : 0;
    const KvQuantView *view = plan->group[layer->group].quantised ? chunk->quant : NULL;
    const int cold = kv_cold_end(view, p), sink = view ? view->sink : 0;
    if (view) {
        KvForm k = KV_Q4;
        uint64_t pairs[HEADS];
        survey_expected(x->value[view->after - 1] + (uint64_t)l, l, &k, pairs);
        const KvQuant *code = &view->layers[l];
        if (x->format->raise && code->k != k) return 1;
        if (memcmp(code->bias_pairs, pairs, sizeof pairs)) return 1;
    }
    for (int t = first; t <= p; t++) {
        const int page = t / KV_PAGE_TOKENS, at = t % KV_PAGE_TOKENS;
        const uint64_t value = x->value[t] + (uint64_t)l;
        if (t < sink || t >= cold) {
            const int32_t exact = chunk->tables[layer->group][page];
            if (exact < 0 || exact_page(layer, exact)[at] != value) return 1;
            continue;
        }
        const KvQuant *code = &view->layers[l];
        const int32_t k = view->k_pages[l][page], v = view->v_pages[l][page];
        if (k < 0 || v < 0) return 1;
        if (at % 2) continue;
        const uint64_t pairs = code->bias_pairs[1];
        if (code_page(&layer->k_quant[code->k], k)[at / 2] != encoded(value, code->k, false, pairs)) return 1;
        if (code_page(&layer->v_quant[code->v], v)[at / 2] != encoded(value, code->v, true, pairs)) return 1;
    }
    return 0;
}

/* Appends what the text says; checks the first and last row of each step. False: no room. */
static bool append(const KvPlan *plan, KvCache *cache, Shadow *x, int tokens) {
    const int layers = plan->entry_count;
    while (tokens > 0) {
        int rows = tokens < kv_step_rows(&x->s) ? tokens : kv_step_rows(&x->s);
        if (rows > STEP_MAX) rows = STEP_MAX;
        Error error = {0};
        if (!kv_reserve(cache, &x->s, rows, &error)) {
            TEST(error.code == ERROR_LIMIT);
            return false;
        }
        SequenceChunk chunk = {.rows = rows};
        kv_run(&x->s, &chunk);
        for (int p = chunk.position; p < chunk.position + rows; p++)
            for (int l = 0; l < layers; l++) {
                const KvLayer *layer = &kv_entries(cache)[l];
                exact_page(layer, chunk.tables[layer->group][p / KV_PAGE_TOKENS])[p % KV_PAGE_TOKENS] =
                    x->value[p] + (uint64_t)l;
            }
        for (int l = 0; l < layers; l++) {
            TEST(!wrong_row(plan, cache, x, &chunk, l, chunk.position));
            TEST(!wrong_row(plan, cache, x, &chunk, l, chunk.position + rows - 1));
        }
        kv_advance(cache, &x->s, rows);
        tokens -= rows;
    }
    return true;
}

static void start(KvCache *cache, Shadow *x, const KvFormat *format, uint64_t salt) {
    x->open = true;
    x->format = format;
    x->salt = salt;
    set_text(x, 0);
    TEST(kv_sequence_open(cache, format, &x->s, NULL));
}

static void stop(KvCache *cache, Shadow *x) {
    kv_sequence_close(cache, &x->s);
    x->open = false;
}

/* ---- tests ---- */

/* Begins like a common text, goes on like another from some position on: system prompts, turns, edits. */
static void mix_text(Shadow *x, uint64_t texts[TEXTS][CONTEXT], uint64_t *random) {
    int from = 0, text = (int)(test_random(random) % TEXTS);
    while (from < CONTEXT) {
        int end = from + 1 + (int)(test_random(random) % CONTEXT);
        if (end > CONTEXT) end = CONTEXT;
        memcpy(x->text + from, texts[text] + from, (size_t)(end - from) * sizeof *x->text);
        from = end;
        text = (int)(test_random(random) % TEXTS);
    }
}

/* With little memory pages run out and are evicted all the time; with more, much is found. */
static void test_random_life(int pages, int spaces) {
    static uint64_t texts[TEXTS][CONTEXT];
    KvPlan plan = make_plan(ENTRIES);
    KvCache *cache = kv_open(&plan, (size_t)pages * PAGE_BYTES, NULL);
    PrefixCache *prefix = prefix_open(cache, NULL);
    Shadow *x = calloc(SLOTS, sizeof *x);
    TEST(cache && prefix && x);
    uint64_t random = 1;
    int inside = 0, whole = 0, cold = 0, refused = 0;
    for (int t = 0; t < TEXTS; t++)
        for (int i = 0; i < CONTEXT; i++) texts[t][i] = test_random(&random) % (i % 128 ? 2 : 40);
    for (int step = 0; step < 6000; step++) {
        Shadow *a = &x[test_random(&random) % SLOTS];
        const uint64_t what = test_random(&random) % 16;
        if (!a->open) {
            mix_text(a, texts, &random);
            start(cache, a, formats[test_random(&random) % FORMATS], test_random(&random) % (uint64_t)spaces);
            const int wanted = 1 + (int)(test_random(&random) % CONTEXT);
            const int length = prefix_find(prefix, a->salt, a->text, wanted - 1, &a->s);
            TEST(length < wanted && a->s.length == length);
            *(length == 0 ? &cold : length % KV_PAGE_TOKENS ? &inside : &whole) += 1;
        } else if (what < 10) {
            int tokens = 1 + (int)(test_random(&random) % (what < 4 ? 20 : 2 * STEP_MAX));
            if (what % 2) tokens = (tokens + a->s.length) / KV_PAGE_TOKENS * KV_PAGE_TOKENS - a->s.length;
            if (tokens < 1) tokens = 1;
            if (tokens > CONTEXT - a->s.length) tokens = CONTEXT - a->s.length;
            if (!append(&plan, cache, a, tokens)) {
                refused++;
                stop(cache, a);
            }
        } else if (what < 14) {
            prefix_insert(prefix, a->salt, a->text, &a->s);
        } else {
            if (what == 14) prefix_insert(prefix, a->salt, a->text, &a->s);
            stop(cache, a);
        }
        if (step % 100 == 0) TEST(prefix_idle_bytes(prefix) <= kv_bytes_used(cache));
    }
    const PrefixStats stats = prefix_stats(prefix);
    TEST_MSG(inside > 20 && whole > 10 && (refused > 5) == (pages < 100) && cold > 50 && stats.evictions > 200,
        "%d inside, %d whole, %d cold, %d refused, %llu evictions", inside, whole, cold, refused,
        (unsigned long long)stats.evictions);
    for (int i = 0; i < SLOTS; i++)
        if (x[i].open) stop(cache, &x[i]);
    TEST(prefix_idle_bytes(prefix) == kv_bytes_used(cache) && prefix_stats(prefix).bytes >= kv_bytes_used(cache));
    prefix_clear(prefix);
    TEST(kv_bytes_used(cache) == 0);
    free(x);
    prefix_close(prefix);
    kv_close(cache);
    kv_plan_free(&plan);
}

static int found(PrefixCache *prefix, KvCache *cache, Shadow *x, const KvFormat *format, uint64_t salt, int count) {
    KvSequence s;
    TEST(kv_sequence_open(cache, format, &s, NULL));
    const int length = prefix_find(prefix, salt, x->text, count, &s);
    kv_sequence_close(cache, &s);
    return length;
}

/* Everything exact, no window: every beginning is there, also of a text that goes another way inside a page. */
static void test_exact(void) {
    KvPlan plan = make_plan(1);
    KvCache *cache = kv_open(&plan, (size_t)20 * PAGE_BYTES, NULL);
    PrefixCache *prefix = prefix_open(cache, NULL);
    Shadow *x = calloc(1, sizeof *x);
    for (int i = 0; i < CONTEXT; i++) x->text[i] = (uint64_t)i;
    start(cache, x, NULL, 5);
    TEST(kv_reserve(cache, &x->s, 300, NULL));
    kv_advance(cache, &x->s, 300);
    prefix_insert(prefix, 5, x->text, &x->s);
    TEST(kv_bytes_used(cache) == 3 * PAGE_BYTES && prefix_idle_bytes(prefix) == 0);
    TEST(found(prefix, cache, x, NULL, 5, 1000) == 300 && found(prefix, cache, x, NULL, 5, 299) == 299);
    TEST(found(prefix, cache, x, NULL, 5, 256) == 256 && found(prefix, cache, x, NULL, 5, 0) == 0);
    TEST(found(prefix, cache, x, NULL, 4, 300) == 0); /* another space */
    x->text[200] = 7;
    TEST(found(prefix, cache, x, NULL, 5, 1000) == 200);
    x->text[200] = 200;

    /* The sequence goes on in a copy; the page that had ended becomes the longer one. */
    TEST(kv_reserve(cache, &x->s, 20, NULL) && kv_bytes_used(cache) == 4 * PAGE_BYTES);
    kv_advance(cache, &x->s, 20);
    prefix_insert(prefix, 5, x->text, &x->s);
    TEST(kv_bytes_used(cache) == 3 * PAGE_BYTES && prefix_stats(prefix).nodes == 3);
    TEST(found(prefix, cache, x, NULL, 5, 1000) == 320);
    stop(cache, x);
    TEST(kv_bytes_used(cache) == 3 * PAGE_BYTES && prefix_idle_bytes(prefix) == 3 * PAGE_BYTES);

    /* What was used last goes last. */
    Shadow *y = calloc(1, sizeof *y);
    start(cache, y, NULL, 5);
    TEST(kv_reserve(cache, &y->s, 1000, NULL));
    kv_advance(cache, &y->s, 1000);
    y->text[0] = UINT64_MAX;
    prefix_insert(prefix, 5, y->text, &y->s);
    stop(cache, y);
    TEST(found(prefix, cache, x, NULL, 5, 1000) == 320);
    start(cache, y, NULL, 5);
    TEST(kv_reserve(cache, &y->s, 14 * KV_PAGE_TOKENS > CONTEXT ? CONTEXT : 14 * KV_PAGE_TOKENS, NULL));
    TEST(found(prefix, cache, x, NULL, 5, 1000) == 320);
    x->text[0] = UINT64_MAX;
    const int left = found(prefix, cache, y, NULL, 5, 1000);
    TEST_MSG(left < 1000, "%d", left);
    stop(cache, y);
    free(y);
    free(x);
    prefix_close(prefix);
    TEST(kv_bytes_used(cache) == 0);
    kv_close(cache);
    kv_plan_free(&plan);
}

/* A coded sequence leaves codes, its first pages and its hot window; earlier ends give their exact pages first. */
static void test_coded(void) {
    KvPlan plan = make_plan(1);
    KvCache *cache = kv_open(&plan, (size_t)26 * PAGE_BYTES, NULL);
    PrefixCache *prefix = prefix_open(cache, NULL);
    Shadow *x = calloc(1, sizeof *x);
    start(cache, x, &turbo, 0);
    TEST(append(&plan, cache, x, 500));
    prefix_insert(prefix, 0, x->text, &x->s);
    TEST(found(prefix, cache, x, &turbo, 0, 1000) == 500 && found(prefix, cache, x, &turbo, 0, 130) == 128);
    TEST(append(&plan, cache, x, 700)); /* 1200: exact 0…127 and from 1024 on, codes between */
    prefix_insert(prefix, 0, x->text, &x->s);
    KvUse use = {0};
    kv_sequence_use(cache, &x->s, &use);
    TEST(use.pages[KV_FULL] == 3 && use.pages[KV_Q4] + use.pages[KV_Q5] == 2 * 7);
    TEST(found(prefix, cache, x, &turbo, 0, 1000) == 500); /* nothing exact before 1000 */
    prefix_insert(prefix, 0, x->text, &x->s);
    stop(cache, x);
    TEST(found(prefix, cache, x, &turbo, 0, 1300) == 1200 && found(prefix, cache, x, &turbo, 0, 1199) == 1199);
    TEST(found(prefix, cache, x, &early, 0, 1300) == 0 && found(prefix, cache, x, NULL, 0, 1300) == 0);
    KvSequence fresh;
    TEST(kv_sequence_open(cache, &turbo, &fresh, NULL) && prefix_forgets(prefix, &fresh));
    TEST(prefix_common(prefix, 0, x->text, 1300, &fresh) == 1200 &&
        prefix_common(prefix, 0, x->text, 900, &fresh) == 900);
    TEST(prefix_common(prefix, 1, x->text, 1300, &fresh) == 0);
    kv_sequence_close(cache, &fresh);
    TEST(kv_sequence_open(cache, NULL, &fresh, NULL) && !prefix_forgets(prefix, &fresh));
    TEST(prefix_common(prefix, 0, x->text, 1300, &fresh) == 0);
    kv_sequence_close(cache, &fresh);
    KvUse all = {0};
    kv_use(cache, &all);
    TEST(all.pages[KV_FULL] == 3 + 3 && all.pages[KV_Q4] + all.pages[KV_Q5] == 2 * 7);

    /* Two pages serve the end at 500 only: they go before anything of the end at 1200. */
    Shadow *y = calloc(1, sizeof *y);
    start(cache, y, NULL, 1);
    const size_t rest = (kv_bytes_total(cache) - kv_bytes_used(cache)) / PAGE_BYTES;
    TEST(kv_reserve(cache, &y->s, (int)(rest + 2) * KV_PAGE_TOKENS, NULL) && prefix_stats(prefix).evictions == 2);
    TEST(found(prefix, cache, x, &turbo, 0, 1300) == 1200 && found(prefix, cache, x, &turbo, 0, 1000) == 128);
    stop(cache, y);
    free(y);

    /* Two texts that share fewer than `after` tokens are decided each for itself; append() checks that. */
    for (int i = 0; i < 8; i++) {
        x->text[400 + i] = 1;
        start(cache, x, &turbo, 0);
        TEST(prefix_find(prefix, 0, x->text, 1299, &x->s) <= 400 + i);
        TEST(append(&plan, cache, x, 1300 - x->s.length));
        prefix_insert(prefix, 0, x->text, &x->s);
        stop(cache, x);
        TEST(found(prefix, cache, x, &turbo, 0, 1400) == 1300);
    }
    free(x);
    prefix_close(prefix);
    TEST(kv_bytes_used(cache) == 0);
    kv_close(cache);
    kv_plan_free(&plan);
}

/* Every third text begins alike, and the second of these is left where it parts from the first: the others find it
 * there, though there is room for a few texts only. */
static void test_parting(void) {
    enum { SHARED = 700, POINT = SHARED / KV_PAGE_TOKENS * KV_PAGE_TOKENS };
    KvPlan plan = make_plan(1);
    KvCache *cache = kv_open(&plan, (size_t)60 * PAGE_BYTES, NULL);
    PrefixCache *prefix = prefix_open(cache, NULL);
    Shadow *x = calloc(1, sizeof *x);
    for (int number = 0; number < 24; number++) {
        for (int i = 0; i < CONTEXT; i++) x->text[i] = (uint64_t)(i < SHARED && number % 3 == 0 ? i : number);
        start(cache, x, &turbo, 0);
        const int length = prefix_find(prefix, 0, x->text, 1199, &x->s);
        TEST_MSG(number % 3 ? length == 0 : number < 6 || length == POINT, "text %d: %d found", number, length);
        for (int end = number == 3 ? POINT : 1200; x->s.length < 1200; end = 1200) {
            TEST(append(&plan, cache, x, end - x->s.length));
            prefix_insert(prefix, 0, x->text, &x->s);
        }
        stop(cache, x);
    }
    TEST(prefix_stats(prefix).evictions > 50);
    free(x);
    prefix_close(prefix);
    TEST(kv_bytes_used(cache) == 0);
    kv_close(cache);
    kv_plan_free(&plan);
}

int main(void) {
    test_exact();
    test_coded();
    test_parting();
    test_random_life(80, 1);
    test_random_life(700, 2);
    return test_done();
}
