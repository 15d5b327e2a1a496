#include "hub/fetch.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "hub/http.h"

/* ---- addresses ---- */

typedef struct Network {
    uint8_t bytes[16];
    int bits;
} Network;

/* IANA's registries of special-purpose addresses. */
static const Network networks4[] = {{{0}, 8}, {{10}, 8}, {{100, 64}, 10}, {{127}, 8}, {{169, 254}, 16}, {{172, 16}, 12},
    {{192, 0, 0}, 24}, {{192, 0, 2}, 24}, {{192, 88, 99}, 24}, {{192, 168}, 16}, {{198, 18}, 15}, {{198, 51, 100}, 24},
    {{203, 0, 113}, 24}, {{224}, 4}, {{240}, 4}};
/* Global unicast addresses of IPv6 are 2000::/3; of those: */
static const Network networks6[] = {{{0x20, 0x01, 0x00}, 23}, {{0x20, 0x01, 0x0D, 0xB8}, 32}, {{0x3F, 0xFF}, 20}};

static bool within(const uint8_t *address, const Network *network) {
    const int whole = network->bits / 8, rest = network->bits % 8;
    if (memcmp(address, network->bytes, (size_t)whole) != 0) return false;
    return rest == 0 || (address[whole] ^ network->bytes[whole]) >> (8 - rest) == 0;
}

static bool is_public4(const uint8_t *address) {
    for (size_t i = 0; i < COUNT_OF(networks4); i++)
        if (within(address, &networks4[i])) return false;
    return true;
}

static bool is_public6(const uint8_t *address) {
    static const Network mapped = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF}, 96}, /* ::ffff:a.b.c.d */
        translated = {{0x00, 0x64, 0xFF, 0x9B}, 96},                                /* 64:ff9b::a.b.c.d */
        six_to_four = {{0x20, 0x02}, 16}, global = {{0x20}, 3};
    if (within(address, &mapped) || within(address, &translated)) return is_public4(address + 12);
    if (within(address, &six_to_four)) return is_public4(address + 2);
    if (!within(address, &global)) return false;
    for (size_t i = 0; i < COUNT_OF(networks6); i++)
        if (within(address, &networks6[i])) return false;
    return true;
}

bool fetch_is_public(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, address, sizeof v4);
        return is_public4((const uint8_t *)&v4.sin_addr);
    }
    if (address->sa_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, address, sizeof v6);
        return is_public6(v6.sin6_addr.s6_addr);
    }
    return false;
}

bool fetch_allows(const FetchRule *rule, const char *host, int port) {
    enum { PORT_HTTP = 80, PORT_HTTPS = 443 };
    const size_t length = strlen(host);
    for (const char *at = rule->hosts ? rule->hosts : ""; *at;) {
        const size_t size = strcspn(at, " ");
        const bool same = size >= length && !strncasecmp(at, host, length);
        if (same && size == length && (port == PORT_HTTP || port == PORT_HTTPS)) return true;
        if (same && size > length && at[length] == ':' && strtol(at + length + 1, NULL, 10) == port) return true;
        at += size + (at[size] == ' ');
    }
    return false;
}

/* ---- a request ---- */

typedef struct Fetch {
    const FetchRule *rule;
    Buffer *out;
    size_t bytes_max;
    int64_t end_ns;
    bool refused, too_large;
} Fetch;

/* Called with each address to which a name was resolved, before it is connected to. */
static curl_socket_t open_socket(void *context, curlsocktype purpose, struct curl_sockaddr *address) {
    Fetch *fetch = context;
    bool (*may)(const struct sockaddr *) = fetch->rule->may_connect ? fetch->rule->may_connect : fetch_is_public;
    if (purpose != CURLSOCKTYPE_IPCXN || !may(&address->addr)) {
        fetch->refused = true;
        return CURL_SOCKET_BAD;
    }
    const int opened = socket(address->family, address->socktype, address->protocol);
    if (opened >= 0) (void)fcntl(opened, F_SETFD, FD_CLOEXEC);
    return opened < 0 ? CURL_SOCKET_BAD : opened;
}

static size_t take(char *data, size_t one, size_t size, void *context) {
    Fetch *fetch = context;
    fetch->too_large = size * one > fetch->bytes_max - fetch->out->size;
    if (!fetch->too_large) buffer_append(fetch->out, data, size * one);
    return fetch->too_large || fetch->out->failed ? 0 : size * one;
}

/* http or https, an allowed host and port, and no user name. */
static bool check_url(const FetchRule *rule, const char *url, Error *error) {
    CURLU *parts = curl_url();
    char *scheme = NULL, *host = NULL, *port = NULL, *user = NULL;
    const bool parsed = parts && !curl_url_set(parts, CURLUPART_URL, url, 0) &&
        !curl_url_get(parts, CURLUPART_SCHEME, &scheme, 0) && !curl_url_get(parts, CURLUPART_HOST, &host, 0) &&
        !curl_url_get(parts, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT);
    if (parsed) (void)curl_url_get(parts, CURLUPART_USER, &user, 0);
    const bool http = parsed && (!strcasecmp(scheme, "http") || !strcasecmp(scheme, "https")) && !user;
    const bool ok = http && fetch_allows(rule, host, (int)strtol(port, NULL, 10));
    if (!http)
        fail(error, ERROR_USAGE, "not an http or https address: %.200s", url);
    else if (!ok)
        fail(error, ERROR_USAGE, "the host %.200s is not allowed (--allow-media-from)", host);
    curl_url_cleanup(parts);
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_free(user);
    return ok;
}

static bool prepare(CURL *easy, Fetch *fetch, const char *url, char *reason, Error *error) {
    const int64_t left_ms = (fetch->end_ns - clock_ns()) / 1000000;
    if (left_ms <= 0) return fail(error, ERROR_IO, "the server takes longer than %d s", FETCH_SECONDS);
    bool ok = http_reset(easy, url);
    ok = ok && !curl_easy_setopt(easy, CURLOPT_PROXY, "") && /* a proxy would resolve names by itself */
        !curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_socket) &&
        !curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, fetch) &&
        !curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take) && !curl_easy_setopt(easy, CURLOPT_WRITEDATA, fetch) &&
        !curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)FETCH_CONNECT_S) &&
        !curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)left_ms) &&
        !curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, reason);
    return ok || fail(error, ERROR_MEMORY, "no memory for a request");
}

/* Asks one address; *status: of the answer. */
static bool ask(CURL *easy, Fetch *fetch, const char *url, long *status, Error *error) {
    char reason[CURL_ERROR_SIZE] = "";
    if (!prepare(easy, fetch, url, reason, error)) return false;
    buffer_clear(fetch->out);
    fetch->refused = fetch->too_large = false;
    const CURLcode code = curl_easy_perform(easy);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, NULL);
    if (fetch->too_large) return fail(error, ERROR_LIMIT, "the file has more than %zu bytes", fetch->bytes_max);
    if (fetch->out->failed) return fail(error, ERROR_MEMORY, "no memory for the file");
    if (code != CURLE_OK && fetch->refused)
        return fail(error, ERROR_USAGE, "its name leads to an address that is not public");
    if (code != CURLE_OK) return fail(error, ERROR_IO, "%s", reason[0] ? reason : curl_easy_strerror(code));
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, status);
    return true;
}

bool fetch_file(const FetchRule *rule, Slice url, size_t bytes_max, Buffer *out, Error *error) {
    enum { STATUS_OK = 200, STATUS_MOVED = 300, STATUS_MOVED_END = 400 };
    char at[FETCH_URL_MAX];
    Fetch fetch = {rule, out, bytes_max, clock_ns() + (int64_t)FETCH_SECONDS * 1000000000, false, false};
    if (url.size >= sizeof at || memchr(url.data, 0, url.size))
        return fail(
            error, ERROR_USAGE, "an address of %zu bytes, at most %d are possible", url.size, FETCH_URL_MAX - 1);
    memcpy(at, url.data, url.size);
    at[url.size] = 0;
    if (!http_start_curl(error)) return false;
    CURL *easy = curl_easy_init();
    if (!easy) return fail(error, ERROR_MEMORY, "no memory for a request");
    long status = 0;
    bool ok = false;
    for (int hop = 0; hop <= FETCH_REDIRECTS_MAX; hop++) {
        ok = check_url(rule, at, error) && ask(easy, &fetch, at, &status, error);
        if (!ok || status < STATUS_MOVED || status >= STATUS_MOVED_END) break;
        ok = http_redirect(easy, at, error);
        if (!ok) break;
    }
    curl_easy_cleanup(easy);
    if (ok && status >= STATUS_MOVED && status < STATUS_MOVED_END)
        return fail(error, ERROR_IO, "more than %d redirects", FETCH_REDIRECTS_MAX);
    return ok && (status == STATUS_OK || fail(error, ERROR_IO, "the server answers with status %ld", status));
}
