#include "base/digest.h"

#include <string.h>

static const uint64_t P1 = 0x9E3779B185EBCA87u, P2 = 0xC2B2AE3D27D4EB4Fu, P3 = 0x165667B19E3779F9u,
                      P4 = 0x85EBCA77C2B2AE63u, P5 = 0x27D4EB2F165667C5u;

static uint64_t turn64(uint64_t x, int by) { return x << by | x >> (64 - by); }

/* Numbers are little-endian, as every machine here is. */
static uint64_t word(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t mix(uint64_t sum, uint64_t input) { return turn64(sum + input * P2, 31) * P1; }

static uint64_t finish(uint64_t hash, const uint8_t *at, size_t left) {
    for (; left >= 8; left -= 8, at += 8) hash = turn64(hash ^ mix(0, word(at)), 27) * P1 + P4;
    if (left >= 4) {
        uint32_t half;
        memcpy(&half, at, sizeof half);
        hash = turn64(hash ^ half * P1, 23) * P2 + P3;
        left -= 4;
        at += 4;
    }
    for (; left > 0; left--, at++) hash = turn64(hash ^ *at * P5, 11) * P1;
    hash = (hash ^ hash >> 33) * P2;
    hash = (hash ^ hash >> 29) * P3;
    return hash ^ hash >> 32;
}

uint64_t checksum64_seeded(uint64_t seed, const void *bytes, size_t size) {
    const uint8_t *at = bytes;
    uint64_t hash = seed + P5;
    size_t left = size;
    if (size >= 32) {
        uint64_t v[4] = {seed + P1 + P2, seed + P2, seed, seed - P1};
        for (; left >= 32; left -= 32, at += 32)
            for (int i = 0; i < 4; i++) v[i] = mix(v[i], word(at + 8 * i));
        hash = turn64(v[0], 1) + turn64(v[1], 7) + turn64(v[2], 12) + turn64(v[3], 18);
        for (int i = 0; i < 4; i++) hash = (hash ^ mix(0, v[i])) * P1 + P4;
    }
    return finish(hash + size, at, left);
}

uint64_t checksum64(const void *bytes, size_t size) { return checksum64_seeded(0, bytes, size); }
