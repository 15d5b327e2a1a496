#include "hub/digest.h"

#include <openssl/evp.h>
#include <stdio.h>

enum { SHA256_DIGITS = 64 };

static bool failed(Error *error) { return fail(error, ERROR_MEMORY, "libcrypto cannot compute a hash"); }

bool digest_begin(Digest *digest, const char *etag, size_t size, Error *error) {
    const bool large = strlen(etag) == SHA256_DIGITS;
    char head[40];
    digest_free(digest);
    digest->state = EVP_MD_CTX_new();
    if (!digest->state || !EVP_DigestInit_ex(digest->state, large ? EVP_sha256() : EVP_sha1(), NULL))
        return failed(error);
    const int length = snprintf(head, sizeof head, "blob %zu", size) + 1; /* with its NUL */
    return large || digest_add(digest, (Slice){head, (size_t)length}, error);
}

bool digest_add(Digest *digest, Slice bytes, Error *error) {
    return EVP_DigestUpdate(digest->state, bytes.data, bytes.size) || failed(error);
}

bool digest_end(Digest *digest, char hex[DIGEST_DIGITS_MAX + 1], Error *error) {
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    if (!EVP_DigestFinal_ex(digest->state, bytes, &size)) return failed(error);
    for (unsigned int i = 0; i < size && i < DIGEST_DIGITS_MAX / 2; i++) snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

void digest_free(Digest *digest) {
    EVP_MD_CTX_free(digest->state);
    digest->state = NULL;
}
