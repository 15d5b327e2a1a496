#include "hub/http.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"
#include "hub/name.h"

enum {
    BODY_BYTES_MAX = 64 << 20, /* a page of 1000 files is some 200 KB */
    RETRY_FIRST_MS = 250,
    RETRY_LONGEST_MS = 8000,
    RETRY_AFTER_MAX_S = 60, /* a server that wants more time gets an error that says so */
    WAIT_STEP_MS = 100,
};

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static CURLcode curl_ready;
static void curl_begin(void) { curl_ready = curl_global_init(CURL_GLOBAL_DEFAULT); }

bool http_start_curl(Error *error) {
    pthread_once(&curl_once, curl_begin);
    return curl_ready == CURLE_OK || fail(error, ERROR_IO, "cannot start libcurl: %s", curl_easy_strerror(curl_ready));
}

bool http_open(HttpClient *client, const HubSettings *settings, const HubWatch *watch, Error *error) {
    *client = (HttpClient){.settings = settings, .watch = watch, .progress.eta_s = -1};
    if (!http_start_curl(error)) return false;
    client->plain = curl_slist_append(NULL, "Accept-Encoding: identity"); /* sizes and ranges are those of the file */
    if (client->plain && settings->token) {
        Buffer line = {0};
        buffer_printf(&line, "Authorization: Bearer %s", settings->token);
        client->with_token = line.failed ? NULL : curl_slist_append(NULL, line.data);
        struct curl_slist *both =
            client->with_token ? curl_slist_append(client->with_token, "Accept-Encoding: identity") : NULL;
        buffer_free(&line);
        if (both) return true;
    } else if (client->plain) {
        return true;
    }
    http_close(client);
    return fail(error, ERROR_MEMORY, "no memory for a request");
}

void http_close(HttpClient *client) {
    curl_slist_free_all(client->plain);
    curl_slist_free_all(client->with_token);
    *client = (HttpClient){0};
}

/* --- Addresses --------------------------------------------------------------------------------------------------- */

typedef struct Origin {
    char *scheme, *host, *port;
} Origin;

static void origin_free(Origin *origin) {
    curl_free(origin->scheme);
    curl_free(origin->host);
    curl_free(origin->port);
}

/* libcurl's own parser, so that what is checked is what will be asked. */
static bool origin_of(const char *url, Origin *origin) {
    *origin = (Origin){0};
    CURLU *parts = curl_url();
    const bool ok = parts && !curl_url_set(parts, CURLUPART_URL, url, 0) &&
        !curl_url_get(parts, CURLUPART_SCHEME, &origin->scheme, 0) &&
        !curl_url_get(parts, CURLUPART_HOST, &origin->host, 0) &&
        !curl_url_get(parts, CURLUPART_PORT, &origin->port, CURLU_DEFAULT_PORT);
    curl_url_cleanup(parts);
    return ok;
}

static bool origin_is_http(const Origin *o) {
    return !strcasecmp(o->scheme, "http") || !strcasecmp(o->scheme, "https");
}

static bool origin_equal(const Origin *a, const Origin *b) {
    return !strcasecmp(a->scheme, b->scheme) && !strcasecmp(a->host, b->host) && !strcmp(a->port, b->port);
}

void http_escape(Buffer *url, const char *text, bool slashes) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    for (; *text; text++) {
        if (strchr(plain, *text) || (slashes && *text == '/'))
            buffer_byte(url, *text);
        else
            buffer_printf(url, "%%%02X", (unsigned char)*text);
    }
}

/* --- Headers ----------------------------------------------------------------------------------------------------- */

static Slice trim(Slice text) {
    while (text.size && strchr(" \t\r\n", text.data[0])) text = (Slice){text.data + 1, text.size - 1};
    while (text.size && strchr(" \t\r\n", text.data[text.size - 1])) text.size--;
    return text;
}

/* Into a message for a terminal: without control characters. */
static void keep_text(char *to, size_t size, Slice value) {
    size_t n = 0;
    for (size_t i = 0; i < value.size && n + 1 < size; i++)
        if ((unsigned char)value.data[i] >= 0x20 && value.data[i] != 0x7F) to[n++] = value.data[i];
    to[n] = '\0';
}

/* <https://…>; rel="next", and others of the kind, between commas */
static void keep_next(HttpHead *head, const char *value) {
    for (const char *open = strchr(value, '<'); open; open = strchr(open + 1, '<')) {
        const char *close = strchr(open, '>');
        if (!close) return;
        const char *end = strchr(close, ',');
        const char *rel = strstr(close, "rel=\"next\"");
        if (!rel || (end && rel > end)) continue;
        const size_t size = (size_t)(close - open - 1);
        if (size < sizeof head->next) keep_text(head->next, size + 1, (Slice){open + 1, size});
        return;
    }
}

static void keep_seconds(HttpHead *head, const char *text) {
    enum { SECONDS_MAX = 365 * 86400 };
    const long seconds = strtol(text, NULL, 10);
    head->retry_after_s = seconds < 0 ? 0 : seconds < SECONDS_MAX ? seconds : SECONDS_MAX;
}

static void keep_field(HttpHead *head, const char *name, const char *value) {
    if (!strcasecmp(name, "x-error-code")) {
        keep_text(head->code, sizeof head->code, slice_of(value));
    } else if (!strcasecmp(name, "x-error-message")) {
        keep_text(head->message, sizeof head->message, slice_of(value));
    } else if (!strcasecmp(name, "link")) {
        keep_next(head, value);
    } else if (!strcasecmp(name, "content-range")) {
        int64_t begin, end, total;
        if (sscanf(value, "bytes %" SCNd64 "-%" SCNd64 "/%" SCNd64, &begin, &end, &total) == 3) {
            head->range_begin = begin;
            head->range_total = total;
        }
    } else if (!strcasecmp(name, "retry-after")) {
        if (isdigit((unsigned char)value[0])) keep_seconds(head, value); /* a date is rare, and the custom will do */
    } else if (!strcasecmp(name, "ratelimit") && head->retry_after_s < 0) {
        const char *t = strstr(value, ";t="), *left = strstr(value, ";r=0");
        if (t && left) keep_seconds(head, t + 3);
    }
}

void http_head_line(HttpHead *head, Slice line) {
    char text[HTTP_URL_MAX + 64];
    line = trim(line);
    if (slice_starts(line, SLICE("HTTP/"))) { /* a new response begins: an interim one may precede the final one */
        *head = (HttpHead){.range_begin = -1, .range_total = -1, .retry_after_s = -1};
        const char *space = memchr(line.data, ' ', line.size);
        for (const char *c = space ? space + 1 : ""; c < line.data + line.size && isdigit((unsigned char)*c); c++)
            if (head->status < 1000) head->status = head->status * 10 + (*c - '0');
        return;
    }
    const char *colon = line.size < sizeof text ? memchr(line.data, ':', line.size) : NULL;
    if (!colon) return;
    const size_t name = (size_t)(colon - line.data);
    memcpy(text, line.data, line.size);
    text[name] = text[line.size] = '\0';
    keep_field(head, text, text + line.size - trim((Slice){colon + 1, line.size - name - 1}).size);
}

static size_t take_header(char *data, size_t one, size_t size, void *context) {
    http_head_line(context, (Slice){data, size * one});
    return size * one;
}

/* --- One request ------------------------------------------------------------------------------------------------- */

bool http_reset(CURL *easy, const char *url) {
    curl_easy_reset(easy);
#if LIBCURL_VERSION_NUM >= 0x075500
    bool ok = !curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    bool ok = !curl_easy_setopt(easy, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    return ok && !curl_easy_setopt(easy, CURLOPT_URL, url) && !curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L) &&
        !curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) &&
        !curl_easy_setopt(easy, CURLOPT_USERAGENT, "apus/" APUS_VERSION);
}

bool http_prepare(const HttpClient *client, CURL *easy, const char *url, HttpHead *head, Error *error) {
    Origin here, endpoint;
    const bool known = origin_of(url, &here) && origin_is_http(&here);
    const bool own = known && origin_of(client->settings->endpoint, &endpoint);
    const bool token = own && client->with_token && origin_equal(&here, &endpoint);
    if (own) origin_free(&endpoint);
    origin_free(&here);
    if (!known) return fail(error, ERROR_FORMAT, "not an address to download from: %.200s", url);
    *head = (HttpHead){.range_begin = -1, .range_total = -1, .retry_after_s = -1};
    bool ok = http_reset(easy, url);
    ok = ok && !curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header) &&
        !curl_easy_setopt(easy, CURLOPT_HEADERDATA, head) &&
        !curl_easy_setopt(easy, CURLOPT_HTTPHEADER, token ? client->with_token : client->plain) &&
        !curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)client->settings->connect_s) &&
        !curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L) &&
        !curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)client->settings->stall_s) &&
        /* several connections, not several streams of one */
        !curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) &&
        !curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    if (client->settings->certificates)
        ok = ok && !curl_easy_setopt(easy, CURLOPT_CAINFO, client->settings->certificates);
    return ok || fail(error, ERROR_MEMORY, "no memory for a request");
}

bool http_redirect(CURL *easy, char *url, Error *error) {
    const char *target = NULL, *asked = NULL;
    curl_easy_getinfo(easy, CURLINFO_REDIRECT_URL, &target);
    curl_easy_getinfo(easy, CURLINFO_EFFECTIVE_URL, &asked);
    if (!target || strlen(target) >= HTTP_URL_MAX)
        return fail(error, ERROR_FORMAT, "the server sends elsewhere without saying where");
    Origin from, to;
    const bool parsed = (int)origin_of(asked ? asked : "", &from) & (int)origin_of(target, &to);
    const bool http = parsed && origin_is_http(&to);
    const bool safe = http && (!strcasecmp(to.scheme, "https") || !strcasecmp(from.scheme, "http"));
    origin_free(&from);
    origin_free(&to);
    if (!http)
        return fail(error, ERROR_FORMAT, "the server sends to %.200s, which is no http address: refused", target);
    if (!safe) return fail(error, ERROR_FORMAT, "the server sends from https to %.200s: refused", target);
    memcpy(url, target, strlen(target) + 1);
    return true;
}

/* --- Waiting and reporting --------------------------------------------------------------------------------------- */

bool http_report(HttpClient *client, HubPhase phase, const char *why, Error *error) {
    client->progress.phase = phase;
    client->progress.why = why;
    if (!client->watch || !client->watch->progress ||
        client->watch->progress(client->watch->context, &client->progress))
        return true;
    return fail(error, ERROR_CANCELLED, "stopped; the same command goes on from here");
}

bool http_transient(long status) { return status == 408 || status == 429 || status >= 500; }

int64_t http_delay_ms(const HttpHead *head, int failures) {
    const int64_t custom = (int64_t)RETRY_FIRST_MS << (failures < 8 ? failures - 1 : 7);
    if (http_transient(head->status) && head->retry_after_s >= 0) return head->retry_after_s * 1000;
    return custom < RETRY_LONGEST_MS ? custom : RETRY_LONGEST_MS;
}

bool http_wait(HttpClient *client, int64_t ms, const char *why, Error *error) {
    if (ms > RETRY_AFTER_MAX_S * 1000)
        return fail(error, ERROR_BUSY, "%s: try again in %" PRId64 " s%s", why, ms / 1000,
            client->settings->token ? "" : "; with a token (HF_TOKEN) the limit is higher");
    const int64_t end = clock_ns() + ms * 1000000;
    for (;;) {
        if (!http_report(client, HUB_WAITING, why, error)) return false;
        const int64_t left_ns = end - clock_ns();
        if (left_ns <= 0) return true;
        const int64_t step_ns = left_ns < WAIT_STEP_MS * 1000000 ? left_ns : WAIT_STEP_MS * 1000000;
        nanosleep(&(struct timespec){.tv_nsec = (long)step_ns}, NULL);
    }
}

/* --- Whole answers
 * ---------------------------------------------------------------------------------------------------- */

typedef struct Asking {
    HttpClient *client;
    const char *range; /* bytes that are asked for, "FIRST-LAST"; NULL: all */
    Buffer *body;
    Error *error;
    bool stopped;
} Asking;

static size_t take_body(char *data, size_t one, size_t size, void *context) {
    Asking *asking = context;
    buffer_append(asking->body, data, size * one);
    return asking->body->failed ? 0 : size * one;
}

static int on_progress(void *context, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up_now) {
    Asking *asking = context;
    asking->stopped = !http_report(asking->client, HUB_ASKING, NULL, asking->error);
    return asking->stopped;
}

/* One address, redirects followed. *network: it failed on the way, which may be another time better. */
static bool get_once(Asking *asking, CURL *easy, const char *first, HttpHead *head, bool *network) {
    char url[HTTP_URL_MAX], reason[CURL_ERROR_SIZE] = "";
    if (strlen(first) >= sizeof url)
        return fail(asking->error, ERROR_LIMIT, "an address is longer than %d", HTTP_URL_MAX);
    memcpy(url, first, strlen(first) + 1);
    for (int hop = 0;; hop++) {
        if (!http_prepare(asking->client, easy, url, head, asking->error)) return false;
        buffer_clear(asking->body);
        curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
        curl_easy_setopt(easy, CURLOPT_WRITEDATA, asking);
        curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_progress);
        curl_easy_setopt(easy, CURLOPT_XFERINFODATA, asking);
        curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
        curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, reason);
        if (asking->range) curl_easy_setopt(easy, CURLOPT_RANGE, asking->range);
        const CURLcode code = curl_easy_perform(easy);
        curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, NULL);
        if (asking->stopped) return false;
        if (asking->body->failed)
            return fail(asking->error, buffer_failure(asking->body), "the answer of %.200s does not fit", url);
        *network = code != CURLE_OK && code != CURLE_PEER_FAILED_VERIFICATION && code != CURLE_SSL_CACERT_BADFILE;
        if (code != CURLE_OK)
            return fail(asking->error, ERROR_IO, "cannot reach %s: %s", asking->client->settings->endpoint,
                reason[0] ? reason : curl_easy_strerror(code));
        if (head->status < 300 || head->status >= 400) return true;
        if (hop == HTTP_HOPS_MAX)
            return fail(asking->error, ERROR_FORMAT, "%.200s: more than %d redirects", first, hop);
        if (!http_redirect(easy, url, asking->error)) return false;
    }
}

static bool get(Asking asking, const char *url, HttpHead *head) {
    HttpClient *client = asking.client;
    Error *error = asking.error;
    CURL *easy = curl_easy_init();
    if (!easy) return fail(error, ERROR_MEMORY, "no memory for a request");
    bool ok = false;
    for (int failures = 1;; failures++) {
        bool network = false;
        ok = get_once(&asking, easy, url, head, &network);
        const bool again = network || (ok && http_transient(head->status));
        if (!again || failures == HTTP_TRIES_MAX) break;
        char why[96];
        snprintf(why, sizeof why, network ? "no answer" : "the server says %ld", head->status);
        Error waited = {0};
        if (!http_wait(client, http_delay_ms(head, failures), why, &waited)) {
            *error = waited;
            ok = false;
            break;
        }
    }
    curl_easy_cleanup(easy);
    return ok;
}

bool http_get(HttpClient *client, const char *url, Buffer *body, HttpHead *head, Error *error) {
    body->limit = BODY_BYTES_MAX;
    return get((Asking){.client = client, .body = body, .error = error}, url, head);
}

bool http_get_part(
    HttpClient *client, const char *url, uint64_t begin, uint64_t size, Buffer *body, HttpHead *head, Error *error) {
    char range[64];
    snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, begin, begin + size - 1);
    body->limit = (size_t)size;
    return get((Asking){.client = client, .range = range, .body = body, .error = error}, url, head);
}
