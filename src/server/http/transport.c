#include "server/http/transport.h"

#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* the signal is ignored anyway */
#endif

static SSL_CTX *context_of(Tls *tls) { return (SSL_CTX *)tls; }

/* ALPN: only HTTP/1.1 is offered. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_size, const unsigned char *offered,
    unsigned size, void *context) {
    static const unsigned char ours[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, out_size, ours, sizeof ours, offered, size) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

Tls *tls_open(const char *certificate, const char *key, Error *error) {
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    const char *wrong = !context || !SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) ? "OpenSSL"
        : SSL_CTX_use_certificate_chain_file(context, certificate) != 1                     ? "--tls-cert"
        : SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1                  ? "--tls-key"
        : SSL_CTX_check_private_key(context) != 1 ? "--tls-key of another certificate"
                                                  : NULL;
    if (!wrong) {
        SSL_CTX_set_mode(
            context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
        /* One record per read: a client that only renegotiates keys does not occupy the thread. */
        SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
        SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION);
        SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
        return (Tls *)context;
    }
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    fail(error, ERROR_USAGE, "%s (%s, %s): %s", wrong, certificate, key, reason ? reason : "cannot be used");
    ERR_clear_error();
    SSL_CTX_free(context);
    return NULL;
}

void tls_close(Tls *tls) { SSL_CTX_free(context_of(tls)); }

bool transport_open(Transport *transport, int fd, Tls *tls) {
    *transport = (Transport){.fd = fd};
    if (!tls) return true;
    transport->tls = SSL_new(context_of(tls));
    if (transport->tls && SSL_set_fd(transport->tls, fd) == 1) {
        SSL_set_accept_state(transport->tls); /* the handshake is part of the first reading */
        return true;
    }
    transport_close(transport);
    return false;
}

/* OpenSSL's result in the form of recv() and send(). OpenSSL waits for writing only within a handshake, whose few bytes
 * fit every socket's buffer. */
static ssize_t result(Transport *transport, int got) {
    if (got > 0) return got;
    const int why = SSL_get_error(transport->tls, got);
    ERR_clear_error(); /* the error queue belongs to the thread, which serves other connections, too */
    if (why == SSL_ERROR_ZERO_RETURN) return 0;
    errno = why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? EAGAIN : EPIPE;
    return -1;
}

ssize_t transport_receive(Transport *transport, void *bytes, size_t size) {
    if (!transport->tls) return recv(transport->fd, bytes, size, MSG_DONTWAIT);
    return result(transport, SSL_read(transport->tls, bytes, size < INT_MAX ? (int)size : INT_MAX));
}

ssize_t transport_send(Transport *transport, const void *bytes, size_t size) {
    if (!transport->tls) return send(transport->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    return result(transport, SSL_write(transport->tls, bytes, size < INT_MAX ? (int)size : INT_MAX));
}

bool transport_pending(const Transport *transport) { return transport->tls && SSL_pending(transport->tls) > 0; }

bool transport_in_handshake(const Transport *transport) {
    return transport->tls && !SSL_is_init_finished(transport->tls);
}

void transport_end(Transport *transport) {
    if (transport->tls && SSL_is_init_finished(transport->tls)) (void)SSL_shutdown(transport->tls);
    ERR_clear_error();
    shutdown(transport->fd, SHUT_WR);
}

void transport_close(Transport *transport) {
    SSL_free(transport->tls);
    close(transport->fd);
}
