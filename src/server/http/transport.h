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

typedef struct Transport {
    int fd;
    struct ssl_st *tls; /* NULL: bytes go as they are */
} Transport;

/* tls: NULL for none. The socket is the wire's then, also on failure. */
NODISCARD bool transport_open(Transport *transport, int fd, Tls *tls);
/* As recv and send: −1 with EAGAIN when it has to wait. */
ssize_t transport_receive(Transport *transport, void *bytes, size_t size);
ssize_t transport_send(Transport *transport, const void *bytes, size_t size);
bool transport_pending(const Transport *transport); /* it holds bytes that waiting for the socket would not tell of */
bool transport_in_handshake(const Transport *transport); /* within its handshake */
void transport_end(Transport *transport);                /* nothing more will be sent */
void transport_close(Transport *transport);
