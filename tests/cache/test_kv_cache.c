/* The page cache against a shadow: every sequence's visible positions must hold what was written there, whatever forks,
 * truncations and refusals came between. */
#include "test.h"

#include <stdlib.h>

#include "cache/fake_pages.h"
#include "cache/kv_cache.h"

enum { ENTRIES = 4, WINDOW = 200, CONTEXT = 2000, SLOTS = 6, STEP_MAX = 300 };

static size_t fake_code_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values) { return 0; }

static size_t fake_code_bytes_some(Backend *backend, const KvLayout *layout, KvForm form, bool values) { return 64; }

static const BackendOps coding_ops = {FAKE_PAGE_OPS, .kv_quant_bytes = fake_code_bytes_some};
static const BackendOps fake_ops = {FAKE_PAGE_OPS, .kv_quant_bytes = fake_code_bytes};
static Backend fake_backend = {.ops = &fake_ops, .rows_max = STEP_MAX};

/* Entries 0 and 2 keep everything, 1 and 3 see a window. Layer 1 has two entries, layer 2 none. */
static const CacheSpec specs[ENTRIES] = {
    {.layer = 0, .kv_heads = 1, .head_dim = 1, .value_dim = 1},
    {.layer = 1, .kv_heads = 1, .head_dim = 1, .value_dim = 1, .window = WINDOW},
    {.layer = 1, .kv_heads = 1, .head_dim = 1, .value_dim = 1},
    {.layer = 3, .kv_heads = 1, .head_dim = 1, .value_dim = 1, .window = WINDOW},
};

static KvPlan make_plan(void) {
    KvPlan plan;
    Backend *backends[ENTRIES];
    for (int i = 0; i < ENTRIES; i++) backends[i] = &fake_backend;
    TEST(kv_plan_make(&plan, specs, backends, ENTRIES, CONTEXT, NULL));
    TEST(plan.group_count == 2 && plan.rows_max == STEP_MAX);
    for (int i = 0; i < ENTRIES; i++) TEST(plan.entries[i].index == i && plan.layers[i] == specs[i].layer);
    return plan;
}

static uint64_t *token_memory(const KvCache *cache, int layer, const KvSequence *s, int position) {
    const KvLayer *kv = &kv_entries(cache)[layer];
    const int32_t page = s->tables[kv->group][position / KV_PAGE_TOKENS];
    if (page < 0) return NULL;
    uint8_t *memory = kv->base + (size_t)page * kv->page_stride + kv->layer_offset;
    return (uint64_t *)(void *)(memory + (size_t)(position % KV_PAGE_TOKENS) * fake_token_bytes);
}

typedef struct Shadow {
    bool open;
    KvSequence s;
    uint64_t value[CONTEXT + KV_PAGE_TOKENS];
} Shadow;

static bool append(KvCache *cache, Shadow *x, int tokens, uint64_t *random) {
    const int before = x->s.length, reserved = x->s.reserved;
    const size_t used = kv_bytes_used(cache);
    Error error = {0};
    if (!kv_reserve(cache, &x->s, tokens, &error)) {
        TEST(error.code == ERROR_LIMIT);
        TEST(x->s.length == before && x->s.reserved == reserved);
        TEST(kv_bytes_used(cache) <= used + 2 * 2 * KV_PAGE_TOKENS * fake_token_bytes); /* at most an own copy more */
        return false;
    }
    for (int i = 0; i < tokens; i++) {
        x->value[before + i] = test_random(random);
        for (int l = 0; l < ENTRIES; l++)
            *token_memory(cache, l, &x->s, before + i) = x->value[before + i] + (uint64_t)l;
    }
    kv_advance(cache, &x->s, tokens);
    return true;
}

/* Number of positions that are not what was written; −1 when a visible page is gone. */
static int wrong_positions(const KvCache *cache, const Shadow *x) {
    int wrong = 0;
    for (int l = 0; l < ENTRIES; l++) {
        const int window = specs[l].window;
        const int first = window && x->s.length >= window ? x->s.length - window + 1 : 0;
        for (int i = first; i < x->s.length; i++) {
            const uint64_t *memory = token_memory(cache, l, &x->s, i);
            if (!memory) return -1;
            wrong += *memory != x->value[i] + (uint64_t)l;
        }
    }
    return wrong;
}

static void test_random_life(void) {
    KvPlan plan = make_plan();
    const size_t page = 2 * KV_PAGE_TOKENS * fake_token_bytes;
    KvCache *cache = kv_open(&plan, 60 * page, NULL);
    Shadow *x = calloc(SLOTS, sizeof *x);
    TEST(cache && x);
    uint64_t random = 1;
    int refused = 0, forked = 0, truncated = 0, kept = 0;
    for (int step = 0; step < 4000; step++) {
        Shadow *a = &x[test_random(&random) % SLOTS], *b = &x[test_random(&random) % SLOTS];
        const uint64_t what = test_random(&random) % 16;
        if (!a->open) {
            a->open = kv_sequence_open(cache, NULL, &a->s, NULL);
        } else if (what < 9) {
            const int tokens = 1 + (int)(test_random(&random) % (what < 6 ? 40 : STEP_MAX));
            if (a->s.length + tokens <= CONTEXT) refused += !append(cache, a, tokens, &random);
        } else if (what < 12 && !b->open) {
            TEST(kv_sequence_open(cache, NULL, &b->s, NULL));
            const size_t used = kv_bytes_used(cache);
            kv_fork(cache, &a->s, &b->s);
            TEST(kv_bytes_used(cache) == used);
            memcpy(b->value, a->value, sizeof a->value);
            forked++;
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
        if (a->open) TEST(wrong_positions(cache, a) == 0);
        if (b->open) TEST(wrong_positions(cache, b) == 0);
    }
    TEST_MSG(
        refused > 10 && forked > 10 && truncated > 10 && kept > 10, "%d %d %d %d", refused, forked, truncated, kept);
    for (int i = 0; i < SLOTS; i++) kv_sequence_close(cache, &x[i].s);
    TEST(kv_bytes_used(cache) == 0);
    free(x);
    kv_close(cache);
    kv_plan_free(&plan);
}

static void test_counts(void) {
    KvPlan plan = make_plan();
    const size_t page = 2 * KV_PAGE_TOKENS * fake_token_bytes;
    uint64_t random = 2;
    KvCache *cache = kv_open(&plan, 7 * page, NULL);
    Shadow *x = calloc(2, sizeof *x), *y = x + 1;
    TEST(kv_bytes_total(cache) == 7 * page);
    TEST(kv_sequence_open(cache, NULL, &x->s, NULL) && kv_sequence_open(cache, NULL, &y->s, NULL));

    TEST(append(cache, x, 128, &random) && kv_bytes_used(cache) == 2 * page);
    TEST(append(cache, x, 1, &random) && kv_bytes_used(cache) == 4 * page);
    TEST(append(cache, x, 197, &random) && kv_bytes_used(cache) == 6 * page); /* 326: position 127 is still seen */
    TEST(append(cache, x, 1, &random) && kv_bytes_used(cache) == 5 * page);   /* 327: only 128 on */
    TEST(x->s.tables[0][0] >= 0 && x->s.tables[1][0] == -1);

    /* A fork costs nothing until one of the two writes: then the page being filled, in both groups. */
    kv_fork(cache, &x->s, &y->s);
    TEST(kv_bytes_used(cache) == 5 * page && y->s.tables[0][2] == x->s.tables[0][2]);
    TEST(append(cache, y, 1, &random) && kv_bytes_used(cache) == 7 * page);
    TEST(y->s.tables[0][0] == x->s.tables[0][0] && y->s.tables[1][1] == x->s.tables[1][1]);
    TEST(y->s.tables[0][2] != x->s.tables[0][2] && y->s.tables[1][2] != x->s.tables[1][2]);
    memcpy(y->value, x->value, 327 * sizeof *x->value);
    TEST(append(cache, x, 1, &random) && kv_bytes_used(cache) == 7 * page); /* it is the only one now */
    TEST(wrong_positions(cache, x) == 0 && wrong_positions(cache, y) == 0);
    TEST(kv_truncate(cache, &x->s, 327));
    /* Truncating into a shared page and writing on must not be seen by the other; here no room is left for the copy. */
    TEST(!kv_truncate(cache, &y->s, 127)); /* its window is gone */
    TEST(kv_truncate(cache, &y->s, 327));
    TEST(!append(cache, y, 128, &random));
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

    TEST(kv_bytes_for(&plan, NULL, 1) == 2 * page && kv_bytes_for(&plan, NULL, 129) == 4 * page);
    TEST(kv_bytes_for(&plan, NULL, 1280) == (10 + (WINDOW + STEP_MAX + 128 + 127) / 128) * page);
    TEST(!kv_open(&plan, page - 1, &error) && error.code == ERROR_LIMIT);
    kv_plan_free(&plan);
}

static void test_memory_returns(void) {
    fake_token_bytes = 1 << 14; /* a page of a group is two huge pages */
    KvPlan plan = make_plan();
    KvCache *cache = kv_open(&plan, (size_t)1 << 33, NULL); /* address space only */
    TEST(cache != NULL);
    Shadow *x = calloc(1, sizeof *x);
    uint64_t random = 3;
    TEST(kv_sequence_open(cache, NULL, &x->s, NULL) && append(cache, x, 100, &random));
    const uint64_t *memory = token_memory(cache, 0, &x->s, 5);
    TEST(*memory == x->value[5]);
    fake_decommited = 0;
    kv_sequence_close(cache, &x->s);
    TEST_MSG(fake_decommited == 2 * plan.group[0].page_bytes, "%zu", fake_decommited);
    free(x);
    kv_close(cache);
    kv_plan_free(&plan);
    fake_token_bytes = 8;
}

/* What a backend that takes memory at once must give for a budget: never more than pages of its groups can be in use.
 */
static void test_taken(void) {
    const size_t page = 2 * KV_PAGE_TOKENS * fake_token_bytes, budget = 12 * page;
    KvPlan plan = make_plan();
    TEST(kv_taken_bytes(&plan, &fake_backend, budget) == 12 * page + 6 * page); /* one can have all, the window half */
    kv_plan_free(&plan);
    Backend upper = fake_backend, *backends[ENTRIES];
    for (int i = 0; i < ENTRIES; i++) backends[i] = i < 2 ? &fake_backend : &upper;
    TEST(kv_plan_make(&plan, specs, backends, ENTRIES, CONTEXT, NULL) && plan.group_count == 4);
    /* Groups of half such pages on each: those without a window hold alike, six of each size together. */
    TEST(kv_taken_bytes(&plan, &fake_backend, budget) == 6 * page + 3 * page);
    TEST(kv_taken_bytes(&plan, &upper, budget) == 6 * page + 3 * page);
    KvCache *cache = kv_open(&plan, budget, NULL);
    KvSequence s;
    TEST(cache && kv_sequence_open(cache, NULL, &s, NULL) && kv_reserve(cache, &s, 6 * KV_PAGE_TOKENS, NULL));
    TEST(kv_bytes_used(cache) == budget);
    kv_sequence_close(cache, &s);
    kv_close(cache);
    kv_plan_free(&plan);
}

static bool late_commit(Backend *backend, void *memory, size_t bytes) { return true; }

/* Pages of keys may be quantised, so pages of states can have the whole budget as well as those of keys: a device whose
 * memory comes with the pages gives it once. */
static void test_taken_of_states(void) {
    const CacheSpec hybrid[] = {{.layer = 0, .kv_heads = 1, .head_dim = 1, .value_dim = 1},
        {.layer = 1, .page_tokens = KV_PAGE_TOKENS / 4, .anchor_bytes = 1 << 20, .row_bytes = 64}};
    static const BackendOps late_ops = {FAKE_PAGE_OPS, .commit = late_commit, .kv_quant_bytes = fake_code_bytes_some};
    const size_t budget = (size_t)64 << 20;
    Backend at_once = {.ops = &coding_ops, .rows_max = STEP_MAX}, late = {.ops = &late_ops, .rows_max = STEP_MAX};
    for (int i = 0; i < 2; i++) {
        Backend *backend = i ? &late : &at_once, *const backends[] = {backend, backend};
        KvPlan plan;
        TEST(kv_plan_make(&plan, hybrid, backends, 2, CONTEXT, NULL) && plan.group_count == 2);
        TEST(plan.group[0].quantised && plan.group[1].recurrent);
        const size_t taken = kv_taken_bytes(&plan, backend, budget);
        TEST_MSG(i ? taken == budget : taken > budget + budget / 2, "%zu", taken);
        kv_plan_free(&plan);
    }
}

/* Where one backend can code pages and the other cannot, all stay exact: else a sequence's exact pages of the one would
 * go with codes of the other, and a device would have to take the whole budget. */
static void test_taken_beside_codes(void) {
    const size_t page = KV_PAGE_TOKENS * fake_token_bytes, budget = 12 * page;
    Backend lower = {.ops = &coding_ops, .rows_max = STEP_MAX}, upper = fake_backend, *backends[ENTRIES];
    KvPlan plan;
    for (int i = 0; i < ENTRIES; i++) backends[i] = &lower;
    TEST(kv_plan_make(&plan, specs, backends, ENTRIES, CONTEXT, NULL) && plan.group[0].quantised &&
        !plan.group[1].quantised);
    kv_plan_free(&plan);
    for (int i = 2; i < ENTRIES; i++) backends[i] = &upper;
    TEST(kv_plan_make(&plan, specs, backends, ENTRIES, CONTEXT, NULL) && plan.group_count == 4);
    for (int g = 0; g < plan.group_count; g++) TEST(!plan.group[g].quantised);
    TEST(kv_taken_bytes(&plan, &upper, budget) == 6 * page + 3 * page);
    kv_plan_free(&plan);
}

int main(void) {
    test_taken();
    test_taken_beside_codes();
    test_taken_of_states();
    test_random_life();
    test_counts();
    test_memory_returns();
    return test_done();
}
