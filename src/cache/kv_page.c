#include "cache/kv_page.h"

#include <string.h>

#include "cache/kv_internal.h"

typedef bool KvPageUse(Backend *backend, const KvLayer *entry, int32_t page, uint8_t *bytes);

/* Calls with the last page before position `end` of each entry that is recurrent or is not, and the place of its
 * canonical bytes, until a call returns false. */
static bool each_entry(
    const KvCache *cache, const KvSequence *sequence, bool recurrent, int end, uint8_t *bytes, KvPageUse *use) {
    const KvPlan *plan = cache->plan;
    bool ok = true;
    for (int i = 0; ok && i < plan->entry_count; i++) {
        const KvLayer *entry = &cache->entries[i];
        if (plan->group[entry->group].recurrent != recurrent) continue;
        const int32_t page = sequence->tables[entry->group][(end - 1) / entry->page_tokens];
        CHECK(page >= 0);
        ok = use(plan->group[entry->group].backend, entry, page, bytes);
        bytes += kv_canonical_bytes(&entry->layout, entry->page_tokens);
    }
    return ok;
}

static size_t canonical_bytes(const KvPlan *plan, bool recurrent) {
    size_t bytes = 0;
    for (int i = 0; i < plan->entry_count; i++)
        if (plan->group[plan->entries[i].group].recurrent == recurrent)
            bytes += kv_canonical_bytes(&plan->entries[i].layout, plan->entries[i].page_tokens);
    return bytes;
}

size_t kv_page_bytes(const KvPlan *plan) { return canonical_bytes(plan, false); }
size_t kv_state_bytes(const KvPlan *plan) { return canonical_bytes(plan, true); }

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

static bool read_entry(Backend *backend, const KvLayer *entry, int32_t page, uint8_t *bytes) {
    const KvLayout *l = &entry->layout;
    const size_t numbers = l->kv_heads
        ? (size_t)entry->page_tokens * (size_t)l->kv_heads * (size_t)(l->head_dim + l->value_dim)
        : kv_canonical_bytes(l, entry->page_tokens) / sizeof(float);
    return backend->ops->page_read(backend, entry, page, entry->page_tokens, bytes) &&
        all_finite(bytes, numbers, l->dtype);
}

static bool write_entry(Backend *backend, const KvLayer *entry, int32_t page, uint8_t *bytes) {
    return backend->ops->page_write(backend, entry, page, entry->page_tokens, bytes);
}

bool kv_page_read(const KvCache *cache, const KvSequence *sequence, int page, void *out) {
    return each_entry(cache, sequence, false, (page + 1) * KV_PAGE_TOKENS, out, read_entry);
}

bool kv_state_read(const KvCache *cache, const KvSequence *sequence, void *out) {
    CHECK(sequence->length > 0 && sequence->length % KV_PAGE_TOKENS == 0);
    return each_entry(cache, sequence, true, sequence->length, out, read_entry);
}

bool kv_page_write(KvCache *cache, KvSequence *sequence, const void *from, const void *state, Error *error) {
    const int end = (sequence->length / KV_PAGE_TOKENS + 1) * KV_PAGE_TOKENS, tokens = end - sequence->length;
    if (!kv_reserve(cache, sequence, tokens, error)) return false;
    bool ok = each_entry(cache, sequence, false, end, (uint8_t *)from, write_entry);
    if (ok && state) ok = each_entry(cache, sequence, true, end, (uint8_t *)state, write_entry);
    if (!ok) return fail(error, ERROR_DEVICE, "a page cannot be written");
    kv_advance(cache, sequence, tokens);
    return true;
}
