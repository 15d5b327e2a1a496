/* TLS of a connection against OpenSSL's own client over a pair of sockets. */
#include "server/http/transport.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/slice.h"
#include "test.h"

/* A key and its own certificate, in one file. */
static void write_certificate(int fd) {
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
    X509 *certificate = X509_new();
    CHECK(key && certificate && X509_set_version(certificate, 2));
    CHECK(ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1) && X509_set_pubkey(certificate, key));
    CHECK(
        X509_gmtime_adj(X509_getm_notBefore(certificate), 0) && X509_gmtime_adj(X509_getm_notAfter(certificate), 3600));
    CHECK(X509_sign(certificate, key, EVP_sha256()));
    FILE *file = fdopen(fd, "w");
    CHECK(file && PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) && PEM_write_X509(file, certificate));
    CHECK(fclose(file) == 0);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

/* A reading takes one record. A client that goes on changing its keys would else keep the thread of all connections. */
static void test_key_updates(Tls *tls) {
    enum { UPDATES = 50 };
    int ends[2], calls = 0;
    char bytes[16];
    ssize_t got = -1;
    Transport transport;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    for (int i = 0; i < 2; i++) CHECK(fcntl(ends[i], F_SETFL, O_NONBLOCK) == 0);
    CHECK(transport_open(&transport, ends[0], tls));
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *client = context ? SSL_new(context) : NULL;
    CHECK(client && SSL_set_fd(client, ends[1]));
    SSL_set_connect_state(client);
    for (int i = 0; i < 10; i++) {
        (void)SSL_do_handshake(client);
        TEST(transport_receive(&transport, bytes, sizeof bytes) < 0 && errno == EAGAIN);
    }
    for (int i = 0; i < UPDATES; i++)
        TEST(SSL_key_update(client, SSL_KEY_UPDATE_NOT_REQUESTED) == 1 && SSL_do_handshake(client) == 1);
    TEST(SSL_write(client, "x", 1) == 1);
    for (; got < 0 && calls <= UPDATES; calls++) got = transport_receive(&transport, bytes, sizeof bytes);
    TEST_MSG(got == 1 && bytes[0] == 'x' && calls == UPDATES + 1, "%zd bytes after %d readings", got, calls);
    SSL_free(client);
    SSL_CTX_free(context);
    close(ends[1]);
    transport_close(&transport);
}

int main(void) {
    char path[] = "/tmp/apus-wire-XXXXXX";
    Error error = {0};
    const int fd = mkstemp(path);
    CHECK(fd >= 0);
    write_certificate(fd);
    Tls *tls = tls_open(path, path, &error);
    TEST_MSG(tls != NULL, "%s", error.text);
    if (tls) test_key_updates(tls);
    tls_close(tls);
    unlink(path);
    return test_done();
}
