#include "cache/kv_page.h"

#include <string.h>

#include "cache/kv_internal.h"

bool kv_page_possible(const KvPlan *plan) {
    for (int g = 0; g < plan->group_count; g++)
        if (plan->group[g].kind != CACHE_PAGES) return false;
    return plan->group_count > 0;
}

size_t kv_page_bytes(const KvPlan *plan) {
    size_t bytes = 0;
    for (int i = 0; i < plan->entry_count; i++) bytes += kv_canonical_bytes(&plan->entries[i].layout, KV_PAGE_TOKENS);
    return bytes;
}

/* Whether none of these numbers is infinite or none: the bits of an exponent are all ones in those. */
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

bool kv_page_read(const KvCache *cache, const KvSequence *sequence, int page, void *out) {
    const KvPlan *plan = cache->plan;
    const KvLayer *entries = cache->entries;
    uint8_t *at = out;
    for (int i = 0; i < plan->entry_count; i++) {
        Backend *backend = plan->group[entries[i].group].backend;
        const int32_t number = sequence->tables[entries[i].group][page];
        CHECK(number >= 0);
        const KvLayout *l = &entries[i].layout;
        const size_t count = (size_t)KV_PAGE_TOKENS * (size_t)l->kv_heads * (size_t)(l->head_dim + l->value_dim);
        if (!backend->ops->page_read(backend, &entries[i], number, KV_PAGE_TOKENS, at) ||
            !all_finite(at, count, l->dtype))
            return false;
        at += kv_canonical_bytes(l, KV_PAGE_TOKENS);
    }
    return true;
}

bool kv_page_write(KvCache *cache, KvSequence *sequence, const void *from, Error *error) {
    const KvPlan *plan = cache->plan;
    const KvLayer *entries = cache->entries;
    const int page = sequence->length / KV_PAGE_TOKENS, tokens = (page + 1) * KV_PAGE_TOKENS - sequence->length;
    if (!kv_reserve(cache, sequence, tokens, error)) return false;
    const uint8_t *at = from;
    for (int i = 0; i < plan->entry_count; i++) {
        Backend *backend = plan->group[entries[i].group].backend;
        const int32_t number = sequence->tables[entries[i].group][page];
        if (!backend->ops->page_write(backend, &entries[i], number, KV_PAGE_TOKENS, at))
            return fail(error, ERROR_DEVICE, "a page cannot be written");
        at += kv_canonical_bytes(&entries[i].layout, KV_PAGE_TOKENS);
    }
    kv_advance(cache, sequence, tokens);
    return true;
}
