/* Look-ups in the tables of a Bpe, inlined: there are millions of a few nanoseconds each.
 * Internal to bpe*.c and the reader of tokenizer.json. */
#pragma once
#include <stdint.h>
#include <string.h>

#include "text/tokenizer/bpe.h"

enum {
    BPE_NO_RANK = INT32_MAX,
    BPE_ID_BITS = 20,
    BPE_RANK_BITS = 24,
    BPE_BIGRAM_BITS = 19, /* log2 size of the hash set of character pairs */
    BPE_EDGE_BITS = 16,   /* log2 size of the hash set of characters with the byte in front or behind */
};

/* --- The hash of token bytes: a keyed multiply and fold --------------------------------------------------------- */

uint64_t bpe_seed(void); /* random per process: colliding keys cannot be constructed from outside */

static inline uint64_t bpe_mix(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 Wide;
    Wide product = (Wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t bpe_hash(uint64_t seed, const char *bytes, size_t size) {
    uint64_t a = 0, b = 0, hash = seed;
    for (; size > 16; bytes += 16, size -= 16) {
        memcpy(&a, bytes, 8);
        memcpy(&b, bytes + 8, 8);
        hash = bpe_mix(a ^ seed ^ 0xA0761D6478BD642Fu, b ^ hash);
    }
    if (size >= 8) {
        memcpy(&a, bytes, 8);
        memcpy(&b, bytes + size - 8, 8);
    } else if (size >= 4) {
        uint32_t low, high;
        memcpy(&low, bytes, 4);
        memcpy(&high, bytes + size - 4, 4);
        a = low;
        b = high;
    } else if (size) {
        a = (uint64_t)(uint8_t)bytes[0] << 16 | (uint64_t)(uint8_t)bytes[size / 2] << 8 | (uint8_t)bytes[size - 1];
        b = 0;
    }
    hash = bpe_mix(a ^ 0xE7037ED1A0B428DBu ^ seed, b ^ hash ^ (uint64_t)size << 56);
    return bpe_mix(hash ^ 0x8EBC6AF09C88C6E3u, seed | 1);
}

static inline uint32_t bpe_hash_slot(uint64_t hash) { return (uint32_t)hash; }
static inline uint64_t bpe_hash_tag(uint64_t hash) { return hash >> 20; }
/* Tokens stored as spelled have other hashes than tokens stored as bytes. */
static inline uint64_t bpe_hash_literal(uint64_t hash, bool literal) { return literal ? ~hash : hash; }

/* --- Merges ----------------------------------------------------------------------------------------------------- */

static inline uint64_t pair_key(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << BPE_ID_BITS | (uint32_t)right;
}

static inline uint64_t pair_slot(const Bpe *bpe, uint64_t key) {
    uint64_t product = key * 0x9E3779B97F4A7C15u;
    return (product ^ product >> 32) & bpe->pairs_mask;
}

/* The rank of the merge of two ids, or BPE_NO_RANK. */
static inline int32_t pair_rank(const Bpe *bpe, int32_t left, int32_t right) {
    uint64_t key = pair_key(left, right);
    for (uint64_t i = pair_slot(bpe, key);; i = (i + 1) & bpe->pairs_mask) {
        uint64_t entry = bpe->pairs[i];
        if (entry >> BPE_RANK_BITS == key && entry) return (int32_t)(entry & ((1u << BPE_RANK_BITS) - 1)) - 1;
        if (!entry) return BPE_NO_RANK;
    }
}

/* --- Cuts ------------------------------------------------------------------------------------------------------- */

static inline bool is_wide_lead(uint8_t byte) { return (byte & 0xF0) == 0xE0; }
static inline bool is_continuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

/* The code point of a character of three bytes. */
static inline uint32_t wide_code(const char *three) {
    return ((uint8_t)three[0] & 0x0Fu) << 12 | ((uint8_t)three[1] & 0x3Fu) << 6 | ((uint8_t)three[2] & 0x3Fu);
}

/* The place of a character of three bytes in wide_ids. */
static inline size_t wide_place(const Bpe *bpe, uint32_t code) {
    const uint32_t block = bpe->wide_blocks[code >> BPE_WIDE_BLOCK_BITS];
    return (size_t)block << BPE_WIDE_BLOCK_BITS | (code & ((1u << BPE_WIDE_BLOCK_BITS) - 1));
}
static inline int32_t wide_id(const Bpe *bpe, const char *three) {
    return bpe->wide_ids[wide_place(bpe, wide_code(three))];
}

/* The bit of two adjacent characters of three bytes each. */
static inline uint32_t bigram_bit(const char *six) {
    uint32_t first, last; /* four bytes each: loads that no store of other sizes precedes */
    memcpy(&first, six, 4);
    memcpy(&last, six + 2, 4);
    const uint64_t bytes = (first & 0xFFFFFF) | (uint64_t)(last >> 8) << 24;
    return (uint32_t)(bytes * 0x9E3779B97F4A7C15u >> (64 - BPE_BIGRAM_BITS));
}

/* The bit of a character of three bytes and the byte in front of it or behind it: four bytes. */
static inline uint32_t edge_bit(const char *four, bool behind) {
    uint32_t bytes;
    memcpy(&bytes, four, sizeof bytes);
    return (uint32_t)((bytes | (uint64_t)behind << 32) * 0x9E3779B97F4A7C15u >> (64 - BPE_EDGE_BITS));
}

static inline bool has_bit(const uint64_t *bits, uint32_t bit) { return bits[bit >> 6] >> (bit & 63) & 1; }

static inline bool seam_has(const Bpe *bpe, uint8_t before, uint8_t byte) {
    return bpe->seams[before][byte >> 6] >> (byte & 63) & 1;
}
