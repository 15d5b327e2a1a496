/* Remembers the ids of short words for all threads: two tables of cache lines, a word being in either. Each line is
 * under a sequence lock made of atomic words, so that readers never wait and a torn line is a miss. Internal to bpe*.c.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "text/tokenizer/bpe_tables.h"

enum {
    CACHE_LINE_BITS = 15,
    CACHE_LINES = 1 << CACHE_LINE_BITS, /* lines of a table */
    CACHE_TABLES = 2,
    CACHE_KEY_WORDS = 3, /* words of up to 24 bytes … */
    CACHE_ID_WORDS = 4,  /* … and up to 8 ids */
    CACHE_KEY_MAX = 8 * CACHE_KEY_WORDS,
    CACHE_IDS_MAX = 2 * CACHE_ID_WORDS,
    /* Bits of a line's head: bit 0 is set while the line is written; bits 1…7 are the kind of a key; 8 bits are the
     * number of ids; the rest is the version, which counts writes. 0: the line is empty. */
    CACHE_BUSY = 1,
    CACHE_SIZE_SHIFT = 1,
    CACHE_PART = 1 << 7, /* the key is a part of a word */
    CACHE_KIND = 0xFF,
    CACHE_COUNT_SHIFT = 8,
    CACHE_VERSION_SHIFT = 16,
};

typedef struct BpeCacheLine {
    _Alignas(64) _Atomic uint64_t head;
    _Atomic uint64_t key[CACHE_KEY_WORDS];
    _Atomic uint64_t ids[CACHE_ID_WORDS];
} BpeCacheLine;

typedef struct BpeCacheKey {
    uint64_t word[CACHE_KEY_WORDS]; /* the bytes, zeros behind them */
    uint64_t kind;                  /* size and CACHE_PART, as in a head */
    uint64_t hash;
} BpeCacheKey;

/* Whether merging a token's own text gives the token. */
typedef enum BpeWhole { WHOLE_UNKNOWN, WHOLE_YES, WHOLE_NO } BpeWhole;

typedef struct BpeCache {
    BpeCacheLine *lines;     /* [CACHE_TABLES][CACHE_LINES] */
    void *memory;            /* allocation that holds the lines */
    _Atomic uint8_t whole[]; /* by id: BpeWhole */
} BpeCache;

BpeCache *bpe_cache_new(uint32_t id_limit); /* NULL: no memory */
void bpe_cache_free(BpeCache *cache);       /* NULL allowed */
static inline BpeWhole bpe_cache_whole(const BpeCache *cache, int32_t id) {
    return (BpeWhole)atomic_load_explicit(&cache->whole[id], memory_order_relaxed);
}
static inline void bpe_cache_set_whole(BpeCache *cache, int32_t id, BpeWhole whole) {
    atomic_store_explicit(&cache->whole[id], (uint8_t)whole, memory_order_relaxed);
}

void bpe_cache_put(BpeCache *cache, const BpeCacheKey *key, const int32_t *ids, size_t count);

/* 1 ≤ size ≤ CACHE_KEY_MAX; readable ≥ size: bytes that may be read. part: 0 or CACHE_PART. */
static inline BpeCacheKey bpe_cache_key(uint64_t seed, const char *bytes, size_t size, size_t readable, unsigned part) {
    static const uint8_t ones_and_zeros[2 * CACHE_KEY_MAX] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    BpeCacheKey key = {.kind = (uint64_t)size << CACHE_SIZE_SHIFT | part};
    if (readable >= CACHE_KEY_MAX) {
        uint64_t mask[CACHE_KEY_WORDS];
        memcpy(key.word, bytes, CACHE_KEY_MAX);
        memcpy(mask, ones_and_zeros + CACHE_KEY_MAX - size, sizeof mask);
        for (int i = 0; i < CACHE_KEY_WORDS; i++) key.word[i] &= mask[i];
    } else {
        memcpy(key.word, bytes, size);
    }
    key.hash = bpe_mix(key.word[0] ^ seed, key.word[1] ^ key.word[2] * 0x9E3779B97F4A7C15u ^ 0xA0761D6478BD642Fu);
    return key;
}

/* The line of a table that a key may be in. */
static inline BpeCacheLine *bpe_cache_line(const BpeCache *cache, const BpeCacheKey *key, int table) {
    const uint64_t place = table == 0 ? key->hash >> (64 - CACHE_LINE_BITS) : key->hash & (CACHE_LINES - 1);
    return &cache->lines[table * CACHE_LINES + place];
}

/* Fetches what bpe_cache_get() will read. */
static inline void bpe_cache_fetch(const BpeCache *cache, const BpeCacheKey *key) {
    for (int table = 0; table < CACHE_TABLES; table++) __builtin_prefetch(bpe_cache_line(cache, key, table));
}

/* 0: the line has the key. */
static inline uint64_t bpe_cache_differs(const BpeCacheLine *line, const BpeCacheKey *key, uint64_t *head) {
    *head = atomic_load_explicit(&line->head, memory_order_acquire);
    uint64_t other = (*head & CACHE_KIND) ^ key->kind;
    other |= atomic_load_explicit(&line->key[0], memory_order_acquire) ^ key->word[0];
    other |= atomic_load_explicit(&line->key[1], memory_order_acquire) ^ key->word[1];
    return other | (atomic_load_explicit(&line->key[2], memory_order_acquire) ^ key->word[2]);
}

/* The number of ids copied, 0: not there. */
static inline size_t bpe_cache_get(const BpeCache *cache, const BpeCacheKey *key, int32_t ids[CACHE_IDS_MAX]) {
    uint64_t head;
    const BpeCacheLine *line = bpe_cache_line(cache, key, 0);
    if (bpe_cache_differs(line, key, &head)) {
        line = bpe_cache_line(cache, key, 1);
        if (bpe_cache_differs(line, key, &head)) return 0;
    }
    const size_t count = head >> CACHE_COUNT_SHIFT & 0xFF;
    uint64_t two[CACHE_ID_WORDS];
    two[0] = atomic_load_explicit(&line->ids[0], memory_order_acquire);
    two[1] = atomic_load_explicit(&line->ids[1], memory_order_acquire);
    memcpy(ids, two, 2 * sizeof *two);
    if (count > 4) {
        two[2] = atomic_load_explicit(&line->ids[2], memory_order_acquire);
        two[3] = atomic_load_explicit(&line->ids[3], memory_order_acquire);
        memcpy(ids + 4, two + 2, 2 * sizeof *two);
    }
    return atomic_load_explicit(&line->head, memory_order_relaxed) == head ? count : 0;
}
