/* Remembers the ids of short words for all threads: a direct-mapped table of cache lines, each under a sequence lock
 * made of atomic words, so that readers never wait and a torn line is a miss. Internal to bpe.c. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    CACHE_LINES = 1 << 14,
    CACHE_KEY_WORDS = 3, /* words of up to 24 bytes … */
    CACHE_ID_WORDS = 4,  /* … and up to 8 ids */
    CACHE_KEY_MAX = 8 * CACHE_KEY_WORDS,
    CACHE_IDS_MAX = 2 * CACHE_ID_WORDS,
};

typedef struct BpeCacheLine {
    _Alignas(
        64) _Atomic uint64_t head; /* bit 0: being written; 8 bits size, 8 bits count, then the version. 0: empty */
    _Atomic uint64_t key[CACHE_KEY_WORDS];
    _Atomic uint64_t ids[CACHE_ID_WORDS];
} BpeCacheLine;

typedef struct BpeCacheKey {
    uint64_t word[CACHE_KEY_WORDS];
    uint32_t size;
} BpeCacheKey;

/* Whether merging a token's own text gives the token. */
typedef enum BpeWhole { WHOLE_UNKNOWN, WHOLE_YES, WHOLE_NO } BpeWhole;

typedef struct BpeCache {
    BpeCacheLine lines[CACHE_LINES];
    _Atomic uint8_t whole[]; /* by id: BpeWhole */
} BpeCache;

BpeCache *bpe_cache_new(uint32_t id_limit); /* NULL: no memory; freed by free() */
static inline BpeWhole bpe_cache_whole(const BpeCache *cache, int32_t id) {
    return (BpeWhole)atomic_load_explicit(&cache->whole[id], memory_order_relaxed);
}
static inline void bpe_cache_set_whole(BpeCache *cache, int32_t id, BpeWhole whole) {
    atomic_store_explicit(&cache->whole[id], (uint8_t)whole, memory_order_relaxed);
}

void bpe_cache_put(BpeCache *cache, uint64_t hash, const BpeCacheKey *key, const int32_t *ids, size_t count);

/* size ≤ CACHE_KEY_MAX */
static inline BpeCacheKey bpe_cache_key(const char *bytes, size_t size) {
    BpeCacheKey key = {.size = (uint32_t)size};
    memcpy(key.word, bytes, size);
    return key;
}

/* The number of ids copied, 0: not there. */
static inline size_t bpe_cache_get(BpeCache *cache, uint64_t hash, const BpeCacheKey *key, int32_t ids[CACHE_IDS_MAX]) {
    const BpeCacheLine *line = &cache->lines[hash >> 32 & (CACHE_LINES - 1)];
    uint64_t head = atomic_load_explicit(&line->head, memory_order_acquire);
    if (head & 1 || (head >> 1 & 0xFF) != key->size) return 0;
    for (int i = 0; i < CACHE_KEY_WORDS; i++) {
        if (atomic_load_explicit(&line->key[i], memory_order_acquire) != key->word[i]) return 0;
    }
    size_t count = head >> 9 & 0xFF;
    for (size_t i = 0; i < (count + 1) / 2; i++) {
        uint64_t two = atomic_load_explicit(&line->ids[i], memory_order_acquire);
        memcpy(ids + 2 * i, &two, sizeof two);
    }
    return atomic_load_explicit(&line->head, memory_order_relaxed) == head ? count : 0;
}
