/* A self-signed certificate for the addresses of this machine. */
#pragma once
#include "base/buffer.h"
#include "base/error.h"

enum { FINGERPRINT_MAX = 96 };

/* Appends the paths of certificate and key in a directory that exists, both PEM; the key's mode is 0600. They are made
 * where they are absent, near their end, or do not name `address`. fingerprint: SHA-256 of the certificate, as browsers
 * show it. */
NODISCARD bool certificate_ensure(const char *directory, const char *address, Buffer *certificate, Buffer *key,
    char fingerprint[FINGERPRINT_MAX], Error *error);
