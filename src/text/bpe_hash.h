/* The hash of token bytes: a keyed multiply and fold, short and inlined, for millions of look-ups of a few bytes each.
 * Internal to bpe and the reader of tokenizer.json. */
#pragma once
#include <stdint.h>
#include <string.h>

uint64_t bpe_seed(void); /* of this process: keys from outside cannot be chosen to collide */

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
/* Tokens stored as spelled where the others are bytes hash apart from them. */
static inline uint64_t bpe_hash_literal(uint64_t hash, bool literal) { return literal ? ~hash : hash; }
