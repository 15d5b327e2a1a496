/* SHA-256 (FIPS 180-4), where collisions must be infeasible to construct; computed by OpenSSL's libcrypto. Neither
 * function allocates or fails. Threads: any, one at a time for each Sha256. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32 };

typedef struct Sha256 {
    uint64_t context[16]; /* libcrypto's SHA256_CTX */
} Sha256;
void sha256_begin(Sha256 *sha);
void sha256_add(Sha256 *sha, const void *bytes, size_t size);
void sha256_end(Sha256 *sha, uint8_t out[SHA256_BYTES]);
