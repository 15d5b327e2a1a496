#include "base/digest.h"

#include <string.h>

/* ---- SHA-256 ---- */

/* The first 32 bits of the fractions of the cube roots of the first 64 primes. */
static const uint32_t constants[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7,
    0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c,
    0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int by) { return x >> by | x << (32 - by); }

static uint32_t big_endian(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void sha256_block(uint32_t state[8], const uint8_t *block) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++) w[i] = big_endian(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        const uint32_t a = v[0], e = v[4];
        const uint32_t one =
            v[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + constants[i] + w[i];
        const uint32_t two = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++) state[i] += v[i];
}

void sha256_begin(Sha256 *sha) {
    *sha = (Sha256){
        .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void sha256_add(Sha256 *sha, const void *bytes, size_t size) {
    const uint8_t *at = bytes;
    while (size > 0) {
        const size_t used = sha->size % SHA256_BLOCK, room = SHA256_BLOCK - used, count = size < room ? size : room;
        memcpy(sha->block + used, at, count);
        sha->size += count;
        at += count;
        size -= count;
        if (count == room) sha256_block(sha->state, sha->block);
    }
}

void sha256_end(Sha256 *sha, uint8_t out[SHA256_BYTES]) {
    static const uint8_t padding[SHA256_BLOCK] = {0x80};
    const uint64_t bits = sha->size * 8;
    const size_t used = sha->size % SHA256_BLOCK;
    sha256_add(sha, padding, used < 56 ? 56 - used : 120 - used);
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(sha, length, sizeof length);
    for (int i = 0; i < SHA256_BYTES; i++) out[i] = (uint8_t)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}

/* ---- XXH64 ---- */

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
