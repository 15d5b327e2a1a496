/* Checksums of bytes: XXH64 (Collet, xxHash), where only accidental differences must be detected, at the speed of
 * memory; the same on every machine. Where texts are chosen by users: base/sha256.h. */
#pragma once
#include <stddef.h>
#include <stdint.h>

uint64_t checksum64(const void *bytes, size_t size); /* XXH64 with seed 0 */
/* XXH64 with a seed: the checksum of the bytes before makes one of several pieces, which depends on their cuts. */
uint64_t checksum64_seeded(uint64_t seed, const void *bytes, size_t size);
