/* A recurrent layer over fake pages, beside attention layers with and without a window: its state is a hash of all
 * inputs so far, and each row's output is the state behind it, so every output says whether pages held what they
 * should. The operation is written as cache/cache_spec.h describes it. */
#pragma once
#include "cache/disk_tier.h"
#include "cache/fake_pages.h"
#include "cache/kv_page.h"
#include "cache/prefix.h"
#include "test.h"

enum {
    R_CONTEXT = 1024,
    R_STEP_MAX = 300,
    R_TOKENS = 64,         /* of a state's page */
    R_ATTENTION_BYTES = 8, /* of a position in an attention page */
    R_ENTRIES = 3,
    R_WINDOW = 200,
};

static const uint64_t finite_bits = 0x3fff3fff3fff3fff; /* two f32, or four f16, without exponents of all ones */

static uint64_t r_next(uint64_t state, uint64_t input) {
    uint64_t seed = state * 31 + input;
    return test_random(&seed) & finite_bits;
}

static uint8_t *r_page(const KvLayer *entry, int32_t page) {
    return entry->base + (size_t)page * entry->page_stride + entry->layer_offset;
}

static bool r_read(Backend *backend, const KvLayer *entry, int32_t page, int tokens, void *out) {
    const KvLayout *l = &entry->layout;
    if (l->kv_heads == 0)
        memcpy(out, r_page(entry, page), kv_canonical_bytes(l, tokens));
    else
        memcpy(out, r_page(entry, page), (size_t)tokens * R_ATTENTION_BYTES);
    return true;
}
static bool r_write(Backend *backend, const KvLayer *entry, int32_t page, int tokens, const void *from) {
    const KvLayout *l = &entry->layout;
    if (l->kv_heads == 0)
        memcpy(r_page(entry, page), from, kv_canonical_bytes(l, tokens));
    else
        memcpy(r_page(entry, page), from, (size_t)tokens * R_ATTENTION_BYTES);
    return true;
}
static size_t r_quant_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values) { return 0; }

static const BackendOps r_ops = {
    FAKE_PAGE_OPS, .kv_quant_bytes = r_quant_bytes, .page_read = r_read, .page_write = r_write};
static Backend r_backend = {.ops = &r_ops, .rows_max = R_STEP_MAX};

static KvPlan r_plan(int rewind) {
    const CacheSpec specs[R_ENTRIES] = {
        {.kv_heads = 1, .head_dim = 2, .value_dim = 2},
        {.page_tokens = R_TOKENS, .anchor_bytes = sizeof(uint64_t), .row_bytes = sizeof(uint64_t), .rewind = rewind},
        {.kv_heads = 1, .head_dim = 2, .value_dim = 2, .window = R_WINDOW},
    };
    Backend *const backends[R_ENTRIES] = {&r_backend, &r_backend, &r_backend};
    KvPlan plan;
    TEST(kv_plan_make(&plan, specs, backends, R_ENTRIES, R_CONTEXT, NULL));
    TEST(plan.group_count == 3 && plan.group[1].page_tokens == R_TOKENS && plan.group[1].page_bytes == 9 * 64);
    return plan;
}

/* A sequence, the text it was given, and the state behind each position. */
typedef struct Recurrent {
    bool open;
    KvSequence s;
    uint64_t text[R_CONTEXT], state[R_CONTEXT + 1]; /* state[p]: before position p */
} Recurrent;

static inline void r_set_text(Recurrent *x, int from, uint64_t seed) {
    for (int p = from; p < R_CONTEXT; p++) {
        uint64_t random = seed * 1000 + (uint64_t)p;
        x->text[p] = test_random(&random) & finite_bits;
    }
    for (int p = from; p < R_CONTEXT; p++) x->state[p + 1] = r_next(x->state[p], x->text[p]);
}

static inline uint64_t *r_state_page(const KvCache *cache, const SequenceChunk *chunk, int position) {
    const KvLayer *entry = &kv_entries(cache)[1];
    const int32_t page = chunk->tables[entry->group][position / R_TOKENS];
    return page < 0 ? NULL : (uint64_t *)(void *)r_page(entry, page);
}

/* The state before the chunk, from the page of the position before it. */
static inline uint64_t r_resume(const KvCache *cache, const SequenceChunk *chunk) {
    if (chunk->position == 0) return 0;
    const uint64_t *page = r_state_page(cache, chunk, chunk->position - 1);
    CHECK(page);
    uint64_t state = page[0];
    for (int row = 0; row <= (chunk->position - 1) % R_TOKENS; row++) state = r_next(state, page[1 + row]);
    return state;
}

/* Computes a chunk; number of rows whose output is wrong, or whose attention sees a wrong or missing position. */
static inline int r_compute(const KvCache *cache, const Recurrent *x, const SequenceChunk *chunk) {
    int wrong = 0;
    uint64_t state = r_resume(cache, chunk);
    for (int p = chunk->position; p < chunk->position + chunk->rows; p++) {
        uint64_t *page = r_state_page(cache, chunk, p);
        if (page && p % R_TOKENS == 0) page[0] = state;
        if (page) page[1 + p % R_TOKENS] = x->text[p];
        state = r_next(state, x->text[p]);
        wrong += state != x->state[p + 1];
        for (int e = 0; e < R_ENTRIES; e += 2) {
            const KvLayer *entry = &kv_entries(cache)[e];
            const int32_t *table = chunk->tables[entry->group];
            const int first = e && p >= R_WINDOW ? p - R_WINDOW + 1 : 0;
            uint64_t *own = (uint64_t *)(void *)r_page(entry, table[p / KV_PAGE_TOKENS]) + p % KV_PAGE_TOKENS;
            *own = x->text[p];
            for (int t = first; t <= p; t += 37) {
                const int32_t seen = table[t / KV_PAGE_TOKENS];
                wrong +=
                    seen < 0 || ((const uint64_t *)(const void *)r_page(entry, seen))[t % KV_PAGE_TOKENS] != x->text[t];
            }
        }
    }
    return wrong;
}

/* One step of `rows`, of which `accepted` stay. False: the pool is full. */
static inline bool r_step(KvCache *cache, Recurrent *x, int rows, int accepted) {
    Error error = {0};
    if (!kv_reserve(cache, &x->s, rows, &error)) {
        TEST(error.code == ERROR_LIMIT);
        return false;
    }
    SequenceChunk chunk = {.rows = rows};
    kv_run(&x->s, &chunk);
    const int wrong = r_compute(cache, x, &chunk);
    TEST_MSG(wrong == 0, "%d wrong of rows %d to %d", wrong, x->s.length, x->s.length + rows);
    kv_advance(cache, &x->s, accepted);
    return true;
}

static inline void r_append(KvCache *cache, Recurrent *x, int rows) { TEST(r_step(cache, x, rows, rows)); }

static inline void r_open(KvCache *cache, Recurrent *x, uint64_t seed) {
    x->open = true;
    x->state[0] = 0;
    r_set_text(x, 0, seed);
    TEST(kv_sequence_open(cache, NULL, &x->s, NULL));
}

static inline void r_close(KvCache *cache, Recurrent *x) {
    kv_sequence_close(cache, &x->s);
    x->open = false;
}
