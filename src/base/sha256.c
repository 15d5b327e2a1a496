#include "base/sha256.h"

/* These functions work in memory of the caller; those that replace them (EVP) allocate with every digest, and a step
 * must not. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include "base/error.h"

_Static_assert(sizeof(SHA256_CTX) <= sizeof(Sha256), "Sha256 holds libcrypto's context");

static SHA256_CTX *context(Sha256 *sha) { return (SHA256_CTX *)sha->context; }

void sha256_begin(Sha256 *sha) { CHECK(SHA256_Init(context(sha))); }

void sha256_add(Sha256 *sha, const void *bytes, size_t size) { CHECK(SHA256_Update(context(sha), bytes, size)); }

void sha256_end(Sha256 *sha, uint8_t out[SHA256_BYTES]) { CHECK(SHA256_Final(out, context(sha))); }
