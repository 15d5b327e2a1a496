/* Bytes of a connection: a socket, or TLS over it (OpenSSL; TLS 1.2 and later). No function blocks. Threads: one at a
 * time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

/* Certificate and key of a server. */
typedef struct Tls Tls;
/* PEM files; the certificate's file contains its chain, too. */
NODISCARD Tls *tls_open(const char *certificate, const char *key, Error *error);
void tls_close(Tls *tls); /* NULL is fine */

typedef struct Transport {
    int fd;
    struct ssl_st *tls; /* NULL: no TLS */
} Transport;

/* tls: NULL: none. Takes ownership of the socket, also on failure. */
NODISCARD bool transport_open(Transport *transport, int fd, Tls *tls);
/* As recv and send: −1 with EAGAIN when they would block. */
ssize_t transport_receive(Transport *transport, void *bytes, size_t size);
ssize_t transport_send(Transport *transport, const void *bytes, size_t size);
bool transport_pending(const Transport *transport); /* decrypted bytes are waiting, which the poller does not see */
bool transport_in_handshake(const Transport *transport); /* the handshake is not complete */
void transport_end(Transport *transport);                /* ends the sending direction */
void transport_close(Transport *transport);
