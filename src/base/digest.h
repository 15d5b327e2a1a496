/* Digests of bytes: SHA-256 (FIPS 180-4) where collisions must be infeasible to construct, XXH64 (Collet, xxHash) where
 * only accidental differences must be detected, at the speed of memory. Both are the same on every machine. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_BLOCK = 64 };

typedef struct Sha256 {
    uint32_t state[8];
    uint64_t size; /* bytes so far */
    uint8_t block[SHA256_BLOCK];
} Sha256;
void sha256_begin(Sha256 *sha);
void sha256_add(Sha256 *sha, const void *bytes, size_t size);
void sha256_end(Sha256 *sha, uint8_t out[SHA256_BYTES]);

uint64_t checksum64(const void *bytes, size_t size); /* XXH64 with seed 0 */
/* XXH64 with a seed: the checksum of the bytes before makes one of several pieces, which depends on their cuts. */
uint64_t checksum64_seeded(uint64_t seed, const void *bytes, size_t size);
