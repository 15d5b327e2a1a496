/* The page cache against a shadow: every sequence's visible positions must hold what was written there, whatever forks,
 * truncations and refusals came between. */
#include "test.h"

#include <stdlib.h>

#include "model/kv_cache.h"
#include "model/model_internal.h"

enum { LAYERS = 4, WINDOW = 200, CONTEXT = 2000, SLOTS = 6, STEP_MAX = 300 };

static size_t bytes_per_token = 8;

static size_t fake_layer_bytes(Backend *backend, const KvLayout *layout) { return KV_PAGE_TOKENS * bytes_per_token; }

static const BackendOps fake_ops = {.name = "fake", .kv_layer_bytes = fake_layer_bytes};

/* Layers 0 and 2 keep everything, 1 and 3 see a window. */
static void make_model(Model *model, Layer layers[LAYERS], Backend *backend) {
    memset(model, 0, sizeof *model);
    memset(layers, 0, LAYERS * sizeof *layers);
    *backend = (Backend){.ops = &fake_ops, .rows_max = STEP_MAX};
    for (int i = 1; i < LAYERS; i += 2) layers[i].attention.op.window = WINDOW;
    model->spec = (Spec){.layers = layers, .layer_count = LAYERS};
    model->backend = backend;
    model->context = CONTEXT;
    TEST(spec_finish(&model->spec, NULL));
    TEST(model->spec.kv_group_count == 2);
}

static uint64_t *token_memory(const Layer *layer, const KvSequence *s, int position) {
    const KvLayer *kv = &layer->attention.op.kv;
    const int32_t page = s->tables[kv->group][position / KV_PAGE_TOKENS];
    if (page < 0) return NULL;
    uint8_t *memory = kv->base + (size_t)page * kv->page_stride + kv->layer_offset;
    return (uint64_t *)(void *)(memory + (size_t)(position % KV_PAGE_TOKENS) * bytes_per_token);
}

typedef struct Shadow {
    bool open;
    KvSequence s;
    uint64_t value[CONTEXT + KV_PAGE_TOKENS];
} Shadow;

static bool append(KvCache *cache, const Layer *layers, Shadow *x, int tokens, uint64_t *random) {
    const int before = x->s.length, reserved = x->s.reserved;
    const size_t used = kv_bytes_used(cache);
    Error error = {0};
    if (!kv_reserve(cache, &x->s, tokens, &error)) {
        TEST(error.code == ERROR_LIMIT);
        TEST(x->s.length == before && x->s.reserved == reserved);
        TEST(kv_bytes_used(cache) <= used + 2 * 2 * KV_PAGE_TOKENS * bytes_per_token); /* at most an own copy more */
        return false;
    }
    for (int i = 0; i < tokens; i++) {
        x->value[before + i] = test_random(random);
        for (int l = 0; l < LAYERS; l++)
            *token_memory(&layers[l], &x->s, before + i) = x->value[before + i] + (uint64_t)l;
    }
    kv_advance(cache, &x->s, tokens);
    return true;
}

/* Number of positions that are not what was written; −1 when a visible page is gone. */
static int wrong_positions(const Layer *layers, const Shadow *x) {
    int wrong = 0;
    for (int l = 0; l < LAYERS; l++) {
        const int window = layers[l].attention.op.window;
        const int first = window && x->s.length >= window ? x->s.length - window + 1 : 0;
        for (int i = first; i < x->s.length; i++) {
            const uint64_t *memory = token_memory(&layers[l], &x->s, i);
            if (!memory) return -1;
            wrong += *memory != x->value[i] + (uint64_t)l;
        }
    }
    return wrong;
}

static void test_random_life(void) {
    Model model;
    Layer layers[LAYERS];
    Backend backend;
    make_model(&model, layers, &backend);
    const size_t page = 2 * KV_PAGE_TOKENS * bytes_per_token;
    KvCache *cache = kv_open(&model, 60 * page, NULL);
    Shadow *x = calloc(SLOTS, sizeof *x);
    TEST(cache && x);
    uint64_t random = 1;
    int refused = 0, forked = 0, truncated = 0, kept = 0;
    for (int step = 0; step < 4000; step++) {
        Shadow *a = &x[test_random(&random) % SLOTS], *b = &x[test_random(&random) % SLOTS];
        const uint64_t what = test_random(&random) % 16;
        if (!a->open) {
            a->open = kv_sequence_open(cache, &a->s, NULL);
        } else if (what < 9) {
            const int tokens = 1 + (int)(test_random(&random) % (what < 6 ? 40 : STEP_MAX));
            if (a->s.length + tokens <= CONTEXT) refused += !append(cache, layers, a, tokens, &random);
        } else if (what < 12 && !b->open) {
            TEST(kv_sequence_open(cache, &b->s, NULL));
            if (kv_fork(cache, &a->s, &b->s, NULL)) {
                memcpy(b->value, a->value, sizeof a->value);
                forked++;
            }
            b->open = true;
        } else if (what < 14 && a->s.length > 0) {
            const int length =
                a->s.length - (int)(test_random(&random) % (uint64_t)(a->s.length < 160 ? a->s.length : 160));
            const bool ok = kv_truncate(cache, &a->s, length);
            truncated += ok;
            kept += !ok;
        } else if (what == 15) {
            kv_sequence_close(cache, &a->s);
            a->open = false;
        }
        if (a->open) TEST(wrong_positions(layers, a) == 0);
        if (b->open) TEST(wrong_positions(layers, b) == 0);
    }
    TEST_MSG(
        refused > 10 && forked > 10 && truncated > 10 && kept > 10, "%d %d %d %d", refused, forked, truncated, kept);
    for (int i = 0; i < SLOTS; i++) kv_sequence_close(cache, &x[i].s);
    TEST(kv_bytes_used(cache) == 0);
    free(x);
    kv_close(cache);
}

static void test_counts(void) {
    Model model;
    Layer layers[LAYERS];
    Backend backend;
    make_model(&model, layers, &backend);
    const size_t page = 2 * KV_PAGE_TOKENS * bytes_per_token;
    uint64_t random = 2;
    KvCache *cache = kv_open(&model, 7 * page, NULL);
    Shadow *x = calloc(2, sizeof *x), *y = x + 1;
    TEST(kv_bytes_total(cache) == 7 * page);
    TEST(kv_sequence_open(cache, &x->s, NULL) && kv_sequence_open(cache, &y->s, NULL));

    TEST(append(cache, layers, x, 128, &random) && kv_bytes_used(cache) == 2 * page);
    TEST(append(cache, layers, x, 1, &random) && kv_bytes_used(cache) == 4 * page);
    TEST(append(cache, layers, x, 197, &random) &&
        kv_bytes_used(cache) == 6 * page); /* 326: position 127 is still seen */
    TEST(append(cache, layers, x, 1, &random) && kv_bytes_used(cache) == 5 * page); /* 327: only 128 on */
    TEST(x->s.tables[0][0] >= 0 && x->s.tables[1][0] == -1);

    /* A fork costs the page being filled, in both groups; what is full is shared. */
    TEST(kv_fork(cache, &x->s, &y->s, NULL) && kv_bytes_used(cache) == 7 * page);
    TEST(y->s.tables[0][0] == x->s.tables[0][0] && y->s.tables[1][1] == x->s.tables[1][1]);
    TEST(y->s.tables[0][2] != x->s.tables[0][2]);
    /* Truncating into a shared page and writing on must not be seen by the other; here no room is left for the copy. */
    TEST(!kv_truncate(cache, &y->s, 127)); /* its window is gone */
    TEST(kv_truncate(cache, &y->s, 327) && kv_truncate(cache, &y->s, 326 + 1));
    TEST(!append(cache, layers, y, 128, &random));
    kv_sequence_close(cache, &y->s);
    TEST(kv_bytes_used(cache) == 5 * page);

    /* More than the context. */
    Error error = {0};
    TEST(!kv_reserve(cache, &x->s, CONTEXT, &error) && error.code == ERROR_LIMIT);
    TEST(kv_bytes_used(cache) == 5 * page);
    kv_sequence_close(cache, &x->s);
    TEST(kv_bytes_used(cache) == 0);
    free(x);
    kv_close(cache);

    TEST(kv_bytes_for(&model, 1) == 2 * page && kv_bytes_for(&model, 129) == 4 * page);
    TEST(kv_bytes_for(&model, 1280) == (10 + (WINDOW + STEP_MAX + 128 + 127) / 128) * page);
    TEST(!kv_open(&model, page - 1, &error) && error.code == ERROR_LIMIT);
}

static void test_memory_returns(void) {
    bytes_per_token = 1024; /* pages above the size from which freed memory goes back */
    Model model;
    Layer layers[LAYERS];
    Backend backend;
    make_model(&model, layers, &backend);
    KvCache *cache = kv_open(&model, (size_t)1 << 36, NULL); /* address space only */
    TEST(cache != NULL);
    Shadow *x = calloc(1, sizeof *x);
    uint64_t random = 3;
    TEST(kv_sequence_open(cache, &x->s, NULL) && append(cache, layers, x, 100, &random));
    const uint64_t *memory = token_memory(&layers[0], &x->s, 5);
    TEST(*memory == x->value[5]);
    kv_sequence_close(cache, &x->s);
    TEST(*memory == 0);
    free(x);
    kv_close(cache);
}

int main(void) {
    test_random_life();
    test_counts();
    test_memory_returns();
    return test_done();
}
