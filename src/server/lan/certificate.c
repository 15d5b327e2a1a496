#include "server/lan/certificate.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "server/lan/address.h"

enum { DAYS = 825 /* the longest that Apple's systems accept */, DAY_S = 86400, LAST_DAYS = 30, SERIAL_BYTES = 16 };

static bool failed(const char *what, Error *error) {
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return fail(error, ERROR_IO, "the certificate could not be %s: %s", what, reason ? reason : strerror(errno));
}

static X509 *read_certificate(const char *path) {
    FILE *file = fopen(path, "re");
    X509 *found = file ? PEM_read_X509(file, NULL, NULL, NULL) : NULL;
    if (file) fclose(file);
    ERR_clear_error();
    return found;
}

static bool is_usable(const X509 *certificate, const char *address, const char *key) {
    time_t soon = time(NULL) + LAST_DAYS * DAY_S;
    struct stat info;
    return !stat(key, &info) && X509_cmp_time(X509_get0_notAfter(certificate), &soon) > 0 &&
        X509_check_ip_asc((X509 *)certificate, address, 0) == 1;
}

/* ---- making one ---- */

/* "IP:192.168.1.5,DNS:name.local,…" */
static void write_names(const char *address, Buffer *out) {
    char addresses[ADDRESSES_MAX][ADDRESS_MAX], host[256] = "";
    const int count = lan_addresses(addresses);
    buffer_printf(out, "IP:%s,IP:127.0.0.1,DNS:localhost", address);
    for (int i = 0; i < count; i++)
        if (strcmp(addresses[i], address) != 0) buffer_printf(out, ",IP:%s", addresses[i]);
    if (gethostname(host, sizeof host - 1)) return;
    host[strcspn(host, ".")] = '\0';
    const size_t plain = strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-");
    if (host[0] && !host[plain]) buffer_printf(out, ",DNS:%s,DNS:%s.local", host, host);
}

static bool add_extension(X509 *certificate, int kind, const char *value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, certificate, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, kind, value);
    const bool ok = extension && X509_add_ext(certificate, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return ok;
}

static bool fill(X509 *certificate, EVP_PKEY *key, const char *names) {
    unsigned char serial[SERIAL_BYTES];
    X509_NAME *name = X509_get_subject_name(certificate);
    if (RAND_bytes(serial, sizeof serial) != 1) return false;
    serial[0] = (unsigned char)((serial[0] & 0x7f) | 1);
    BIGNUM *number = BN_bin2bn(serial, sizeof serial, NULL);
    const bool numbered = number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate));
    BN_free(number);
    return numbered && X509_set_version(certificate, 2) == 1 &&
        X509_gmtime_adj(X509_getm_notBefore(certificate), -DAY_S) &&
        X509_gmtime_adj(X509_getm_notAfter(certificate), (long)DAYS * DAY_S - DAY_S) &&
        X509_set_pubkey(certificate, key) == 1 &&
        X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"apus", -1, -1, 0) == 1 &&
        X509_set_issuer_name(certificate, name) == 1 && add_extension(certificate, NID_subject_alt_name, names) &&
        add_extension(certificate, NID_basic_constraints, "critical,CA:FALSE") &&
        add_extension(certificate, NID_ext_key_usage, "serverAuth") && X509_sign(certificate, key, EVP_sha256()) > 0;
}

/* The file belongs to this user alone from its first byte on. */
static bool write_key(const char *path, EVP_PKEY *key) {
    unlink(path);
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file && fd >= 0) close(fd);
    bool ok = file && PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1;
    if (file) ok = !fclose(file) && ok;
    return ok;
}

static bool write_certificate(const char *path, X509 *certificate) {
    FILE *file = fopen(path, "we");
    bool ok = file && PEM_write_X509(file, certificate) == 1;
    if (file) ok = !fclose(file) && ok;
    return ok;
}

static X509 *make(const char *address, const char *path, const char *key_path, Error *error) {
    Buffer names = {0};
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    write_names(address, &names);
    const bool ok = key && certificate && !names.failed && fill(certificate, key, names.data) &&
        write_key(key_path, key) && write_certificate(path, certificate);
    if (!ok) failed("made", error);
    buffer_free(&names);
    EVP_PKEY_free(key);
    if (ok) return certificate;
    X509_free(certificate);
    return NULL;
}

bool certificate_ensure(const char *directory, const char *address, Buffer *path, Buffer *key,
    char fingerprint[FINGERPRINT_MAX], Error *error) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    buffer_printf(path, "%s/certificate.pem", directory);
    buffer_printf(key, "%s/key.pem", directory);
    if (path->failed || key->failed) return fail(error, ERROR_MEMORY, "no memory for the path of a certificate");
    X509 *certificate = read_certificate(path->data);
    if (certificate && !is_usable(certificate, address, key->data)) {
        X509_free(certificate);
        certificate = NULL;
    }
    if (!certificate) certificate = make(address, path->data, key->data, error);
    if (!certificate) return false;
    const bool ok = X509_digest(certificate, EVP_sha256(), digest, &size) == 1 || failed("read", error);
    for (unsigned i = 0; ok && i < size && 3 * i + 3 < FINGERPRINT_MAX; i++)
        snprintf(fingerprint + 3 * i, 4, "%02X%s", digest[i], i + 1 < size ? ":" : "");
    X509_free(certificate);
    return ok;
}
