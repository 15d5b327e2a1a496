#include "cache/kv_page.h"

#include <string.h>

#include "cache/kv_internal.h"

typedef bool KvPageUse(Backend *backend, const KvLayer *entry, int32_t page, int tokens, uint8_t *bytes);

/* Tokens of an entry's page that are in use at this length: of its last page that has any. */
static int used_tokens(const KvLayer *entry, int length) { return (length - 1) % entry->page_tokens + 1; }

/* Calls with the last page before position `end` of each entry that is recurrent or is not, the tokens that it has
 * then, and the place of their canonical bytes, until a call returns false. *bytes: behind them afterwards. */
static bool each_entry(
    const KvCache *cache, const KvSequence *sequence, bool recurrent, int end, uint8_t **bytes, KvPageUse *use) {
    const KvPlan *plan = cache->plan;
    bool ok = true;
    for (int i = 0; ok && i < plan->entry_count; i++) {
        const KvLayer *entry = &cache->entries[i];
        if (plan->group[entry->group].recurrent != recurrent) continue;
        const int32_t page = sequence->tables[entry->group][(end - 1) / entry->page_tokens];
        const int tokens = used_tokens(entry, end);
        CHECK(page >= 0);
        ok = use(plan->group[entry->group].backend, entry, page, tokens, *bytes);
        *bytes += kv_canonical_bytes(&entry->layout, tokens);
    }
    return ok;
}

/* The parts of a state, one after the other. */
static bool each_part(const KvCache *cache, const KvSequence *sequence, int length, uint8_t *bytes, KvPageUse *use) {
    const bool begun = length % KV_PAGE_TOKENS > 0;
    return (!begun || each_entry(cache, sequence, false, length, &bytes, use)) &&
        each_entry(cache, sequence, true, length, &bytes, use);
}

static size_t canonical_bytes(const KvPlan *plan, bool recurrent, int length) {
    size_t bytes = 0;
    for (int i = 0; i < plan->entry_count; i++)
        if (plan->group[plan->entries[i].group].recurrent == recurrent)
            bytes += kv_canonical_bytes(&plan->entries[i].layout, used_tokens(&plan->entries[i], length));
    return bytes;
}

size_t kv_page_bytes(const KvPlan *plan) { return canonical_bytes(plan, false, KV_PAGE_TOKENS); }

size_t kv_state_bytes(const KvPlan *plan, int length) {
    const size_t states = canonical_bytes(plan, true, length);
    return states && length % KV_PAGE_TOKENS > 0 ? states + canonical_bytes(plan, false, length) : states;
}

size_t kv_state_bytes_most(const KvPlan *plan) {
    size_t most = 0;
    for (int length = 1; length <= KV_PAGE_TOKENS; length++)
        most = kv_state_bytes(plan, length) > most ? kv_state_bytes(plan, length) : most;
    return most;
}

/* Whether no number is infinite or NaN: the exponents of those are all ones. */
static bool all_finite(const uint8_t *at, size_t count, DType dtype) {
    const uint32_t wide = 0x7f800000;
    const uint16_t narrow = dtype == DTYPE_F16 ? 0x7c00 : 0x7f80;
    unsigned bad = 0;
    for (size_t i = 0; dtype == DTYPE_F32 && i < count; i++) {
        uint32_t x;
        memcpy(&x, at + i * sizeof x, sizeof x);
        bad |= (x & wide) == wide;
    }
    for (size_t i = 0; dtype != DTYPE_F32 && i < count; i++) {
        uint16_t x;
        memcpy(&x, at + i * sizeof x, sizeof x);
        bad |= (x & narrow) == narrow;
    }
    return !bad;
}

static bool read_entry(Backend *backend, const KvLayer *entry, int32_t page, int tokens, uint8_t *bytes) {
    const KvLayout *l = &entry->layout;
    const size_t numbers = l->kv_heads ? (size_t)tokens * (size_t)l->kv_heads * (size_t)(l->head_dim + l->value_dim)
                                       : kv_canonical_bytes(l, tokens) / sizeof(float);
    return backend->ops->page_read(backend, entry, page, tokens, bytes) && all_finite(bytes, numbers, l->dtype);
}

static bool write_entry(Backend *backend, const KvLayer *entry, int32_t page, int tokens, uint8_t *bytes) {
    return backend->ops->page_write(backend, entry, page, tokens, bytes);
}

bool kv_page_read(const KvCache *cache, const KvSequence *sequence, int page, void *out) {
    uint8_t *bytes = out;
    return each_entry(cache, sequence, false, (page + 1) * KV_PAGE_TOKENS, &bytes, read_entry);
}

bool kv_state_read(const KvCache *cache, const KvSequence *sequence, void *out) {
    CHECK(sequence->length > 0);
    return each_part(cache, sequence, sequence->length, out, read_entry);
}

bool kv_page_write(KvCache *cache, KvSequence *sequence, const void *from, Error *error) {
    const int end = (sequence->length / KV_PAGE_TOKENS + 1) * KV_PAGE_TOKENS, tokens = end - sequence->length;
    uint8_t *bytes = (uint8_t *)from;
    if (!kv_reserve(cache, sequence, tokens, error)) return false;
    if (!each_entry(cache, sequence, false, end, &bytes, write_entry))
        return fail(error, ERROR_DEVICE, "a page cannot be written");
    kv_advance(cache, sequence, tokens);
    return true;
}

bool kv_state_write(KvCache *cache, KvSequence *sequence, int length, const void *state, Error *error) {
    const int tokens = length - sequence->length;
    CHECK(tokens >= 0 && tokens < KV_PAGE_TOKENS && length > 0);
    if (!kv_reserve(cache, sequence, tokens, error)) return false;
    if (!each_part(cache, sequence, length, (uint8_t *)state, write_entry))
        return fail(error, ERROR_DEVICE, "a state cannot be written");
    kv_advance(cache, sequence, tokens);
    return true;
}
