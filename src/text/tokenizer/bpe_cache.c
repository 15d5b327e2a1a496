/* The word cache's writing side. */
#include "text/tokenizer/bpe_cache.h"

#include <stdlib.h>

BpeCache *bpe_cache_new(uint32_t id_limit) {
    size_t size = (sizeof(BpeCache) + id_limit + 63) / 64 * 64;
    BpeCache *cache = aligned_alloc(64, size);
    if (cache) memset((void *)cache, 0, size);
    return cache;
}

void bpe_cache_put(BpeCache *cache, uint64_t hash, const BpeCacheKey *key, const int32_t *ids, size_t count) {
    if (count == 0 || count > CACHE_IDS_MAX) return;
    BpeCacheLine *line = &cache->lines[hash >> 32 & (CACHE_LINES - 1)];
    uint64_t head = atomic_load_explicit(&line->head, memory_order_relaxed);
    /* Another writer is there: its word is as good. */
    if (head & 1 ||
        !atomic_compare_exchange_strong_explicit(
            &line->head, &head, head | 1, memory_order_acq_rel, memory_order_relaxed)) {
        return;
    }
    for (int i = 0; i < CACHE_KEY_WORDS; i++) atomic_store_explicit(&line->key[i], key->word[i], memory_order_release);
    for (size_t i = 0; i < count; i += 2) {
        int32_t pair[2] = {ids[i], i + 1 < count ? ids[i + 1] : 0};
        uint64_t two;
        memcpy(&two, pair, sizeof two);
        atomic_store_explicit(&line->ids[i / 2], two, memory_order_release);
    }
    uint64_t version = (head >> 17) + 1;
    atomic_store_explicit(&line->head, version << 17 | count << 9 | (uint64_t)key->size << 1, memory_order_release);
}
