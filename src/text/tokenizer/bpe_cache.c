/* The word cache's writing side. */
#include "text/tokenizer/bpe_cache.h"

#include <stdlib.h>

BpeCache *bpe_cache_new(uint32_t id_limit) {
    const size_t line = sizeof(BpeCacheLine);
    BpeCache *cache = calloc(1, sizeof *cache + id_limit);
    if (cache) cache->memory = calloc(CACHE_TABLES * CACHE_LINES + 1, line); /* pages come as they are used */
    if (!cache || !cache->memory) {
        free(cache);
        return NULL;
    }
    cache->lines = (BpeCacheLine *)(((uintptr_t)cache->memory + line - 1) / line * line);
    return cache;
}

void bpe_cache_free(BpeCache *cache) {
    if (cache) free(cache->memory);
    free(cache);
}

/* An empty line for the key, or each one in turn. */
static BpeCacheLine *line_to_write(BpeCache *cache, const BpeCacheKey *key, uint64_t *head) {
    uint64_t writes = 0;
    for (int table = 0; table < CACHE_TABLES; table++) {
        BpeCacheLine *line = bpe_cache_line(cache, key, table);
        *head = atomic_load_explicit(&line->head, memory_order_relaxed);
        if (!*head) return line;
        writes += *head >> CACHE_VERSION_SHIFT;
    }
    BpeCacheLine *line = bpe_cache_line(cache, key, (int)(writes % CACHE_TABLES));
    *head = atomic_load_explicit(&line->head, memory_order_relaxed);
    return line;
}

void bpe_cache_put(BpeCache *cache, const BpeCacheKey *key, const int32_t *ids, size_t count) {
    if (count == 0 || count > CACHE_IDS_MAX) return;
    uint64_t head;
    BpeCacheLine *line = line_to_write(cache, key, &head);
    /* Another writer is there: its word is as good. */
    if (head & CACHE_BUSY ||
        !atomic_compare_exchange_strong_explicit(
            &line->head, &head, head | CACHE_BUSY, memory_order_acq_rel, memory_order_relaxed)) {
        return;
    }
    for (int i = 0; i < CACHE_KEY_WORDS; i++) atomic_store_explicit(&line->key[i], key->word[i], memory_order_release);
    for (size_t i = 0; i < count; i += 2) {
        int32_t pair[2] = {ids[i], i + 1 < count ? ids[i + 1] : 0};
        uint64_t two;
        memcpy(&two, pair, sizeof two);
        atomic_store_explicit(&line->ids[i / 2], two, memory_order_release);
    }
    uint64_t version = (head >> CACHE_VERSION_SHIFT) + 1;
    atomic_store_explicit(
        &line->head, version << CACHE_VERSION_SHIFT | count << CACHE_COUNT_SHIFT | key->kind, memory_order_release);
}
