/* The hashes that name blobs, by OpenSSL's libcrypto: SHA-256 of the bytes, or git's SHA-1 of "blob SIZE\0" and the
 * bytes. */
#pragma once
#include "base/error.h"
#include "base/slice.h"

enum { DIGEST_DIGITS_MAX = 64 };

typedef struct Digest {
    struct evp_md_ctx_st *state;
} Digest;

/* For the hash that etag is (64 digits: SHA-256, 40: git's), of a file of `size` bytes. */
NODISCARD bool digest_begin(Digest *digest, const char *etag, size_t size, Error *error);
NODISCARD bool digest_add(Digest *digest, Slice bytes, Error *error);
NODISCARD bool digest_end(Digest *digest, char hex[DIGEST_DIGITS_MAX + 1], Error *error);
void digest_free(Digest *digest); /* safe on a zeroed one */
