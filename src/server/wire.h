/* What a connection's bytes go through: a socket, or TLS over one (OpenSSL; 1.2 and later). Nothing here waits.
 * Threads: one at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

/* Certificate and key of a server. */
typedef struct Tls Tls;
/* Files in PEM; the certificate's chain behind it. */
NODISCARD Tls *tls_open(const char *certificate, const char *key, Error *error);
void tls_close(Tls *tls); /* NULL is fine */

typedef struct Wire {
    int fd;
    struct ssl_st *tls; /* NULL: bytes go as they are */
} Wire;

/* tls: NULL for none. The socket is the wire's then, also on failure. */
NODISCARD bool wire_open(Wire *wire, int fd, Tls *tls);
/* As recv and send: −1 with EAGAIN when it has to wait. */
ssize_t wire_receive(Wire *wire, void *bytes, size_t size);
ssize_t wire_send(Wire *wire, const void *bytes, size_t size);
bool wire_pending(const Wire *wire); /* it holds bytes that waiting for the socket would not tell of */
bool wire_greets(const Wire *wire);  /* within its handshake */
void wire_end(Wire *wire);           /* nothing more will be sent */
void wire_close(Wire *wire);
