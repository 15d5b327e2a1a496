#include "server/http/request_head.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "server/http/body.h"
#include "server/http/deadlines.h"
#include "server/lan/devices.h"
#include "server/routes.h"
#include "server/web.h"

static const char *header(const Exchange *x, const char *name) { return http_request_header(x->request, name); }

enum { LOADING_WAIT_S = 60 };

/* The name part of "name:port" or "[v6]:port". */
static Slice host_name(const char *host) {
    const char *end = host[0] == '[' ? strchr(host, ']') : strrchr(host, ':');
    if (host[0] == '[') return end ? (Slice){host + 1, (size_t)(end - host - 1)} : slice_of("");
    return end ? (Slice){host, (size_t)(end - host)} : slice_of(host);
}

/* Names of this machine itself: a site whose DNS name points here (DNS rebinding) has another name. */
static bool is_loopback_name(Slice name) {
    char text[INET_ADDRSTRLEN] = "";
    struct in_addr address;
    if (name.size < sizeof text) memcpy(text, name.data, name.size);
    return (name.size == 9 && !strncasecmp(name.data, "localhost", 9)) || slice_is(name, "::1") ||
        (inet_pton(AF_INET, text, &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
}

static const char *find_key(const Exchange *x) {
    const char *bearer = header(x, "Authorization"), *plain = header(x, "x-api-key");
    return bearer && !strncasecmp(bearer, "Bearer ", 7) ? bearer + 7 : plain;
}

/* While they are read anew, those of before count. */
static bool key_given(const Exchange *x) {
    Server *server = x->server;
    mutex_lock(&server->lock);
    const bool open = !server->keys.count && !server->devices;
    const bool given = open || (x->key && server->keys.count && keys_have(&server->keys, x->key));
    mutex_unlock(&server->lock);
    return given || (x->key && server->devices && devices_have(server->devices, x->key, NULL));
}

/* Whether a list of words with spaces between them has the text, or "*". */
static bool is_listed(const char *list, Slice text) {
    for (const char *at = list ? list : ""; *at; at += strspn(at, " ")) {
        const size_t size = strcspn(at, " ");
        if ((size == 1 && *at == '*') || (size == text.size && !strncasecmp(at, text.data, size))) return true;
        at += size;
    }
    return false;
}

/* A page of this server's own, or of a site that may use it. */
static bool origin_allowed(const Exchange *x, const char *origin) {
    const char *name = strstr(origin, "://"), *host = x->request->host;
    return (name && host && !strcasecmp(name + 3, host)) ||
        is_listed(x->server->options.allowed_origins, slice_of(origin));
}

static bool check_headers(Exchange *x, ApiError *error) {
    const char *host = x->request->host, *origin = header(x, "Origin");
    const ServerOptions *o = &x->server->options;
    if (x->server->loopback && host && !is_loopback_name(host_name(host)) &&
        !is_listed(o->allowed_hosts, host_name(host)))
        return api_fail(error, 403, "host_not_allowed", NULL,
            "The host '%.200s' is not a name of this server. The option --allow-host %.*s allows it.", host,
            SLICE_SHOWN(host_name(host)));
    if (origin && !origin_allowed(x, origin))
        return api_fail(error, 403, "origin_not_allowed", NULL,
            "Requests from the web site '%.200s' are not allowed. The option --allow-origin %.200s allows them.",
            origin, origin);
    x->cors = origin && is_listed(o->allowed_origins, slice_of(origin)) ? origin : NULL;
    return true;
}

static bool check_body_headers(Exchange *x, ApiError *error) {
    static const char form[] = "multipart/form-data";
    const char *type = header(x, "Content-Type"), *encoding = header(x, "Content-Encoding");
    if (x->route && x->route->form) {
        if (!type || strncasecmp(type, form, sizeof form - 1))
            return api_fail(error, 415, NULL, NULL, "The Content-Type of the request must be %s.", form);
        type = "application/json"; /* and what follows holds for both */
    }
    const size_t json = strlen("application/json");
    /* Some clients name no type, or as curl does that of a form. A browser, on behalf of some web site, names the site.
     */
    if (!header(x, "Origin") && !header(x, "Sec-Fetch-Site") &&
        (!type || !strncasecmp(type, "application/x-www-form-urlencoded", 33)))
        type = "application/json";
    if (!type || strncasecmp(type, "application/json", json) || (type[json] && !strchr("; \t", type[json])))
        return api_fail(error, 415, NULL, NULL, "The Content-Type of the request must be application/json.");
    if (encoding && strcasecmp(encoding, "identity"))
        return api_fail(error, 415, NULL, NULL, "The request body must not be compressed.");
    return body_fits(x->server, x->request->length, error);
}

static bool check_route(Exchange *x, const char *url, const char *method, ApiError *error) {
    x->route = web_page(x);
    if (!x->route) x->route = route_find(url, method, &x->allowed);
    x->key = find_key(x);
    const bool open = x->route && (x->route->public || (x->server->options.open_metrics && x->route->metrics));
    x->trusted = key_given(x);
    if (!open && !x->trusted)
        return api_fail(error, 401, "invalid_api_key", NULL,
            "Incorrect or missing API key. Send it as 'Authorization: Bearer KEY'.");
    if (x->route) return true;
    if (x->allowed)
        return api_fail(error, 405, NULL, NULL, "The method %s is not allowed here; use %s.", method, x->allowed);
    char nearest[API_PARAM_MAX];
    if (route_nearest(url, nearest, sizeof nearest))
        return api_fail(
            error, 404, NULL, NULL, "Unknown request URL: %s %.200s - did you mean %s ?", method, url, nearest);
    return api_fail(error, 404, NULL, NULL, "Unknown request URL: %s %.200s", method, url);
}

void request_head_take_id(Exchange *x) {
    const char *given = header(x, "x-request-id");
    size_t length = 0;
    while (given && given[length] > ' ' && given[length] < 127 && given[length] != '"' && given[length] != '\\')
        length++;
    if (given && length > 0 && !given[length] && length < sizeof x->request_id) {
        memcpy(x->request_id, given, length + 1);
        return;
    }
    unsigned char random[12];
    if (getentropy(random, sizeof random)) memset(random, 0, sizeof random);
    memcpy(x->request_id, "req_", 5);
    for (size_t i = 0; i < sizeof random; i++) snprintf(x->request_id + 4 + 2 * i, 3, "%02x", random[i]);
}

/* A request that would be refused for lack of room is refused before its body is read. */
static bool check_queue(const Exchange *x, ApiError *error) {
    int waiting = 0;
    bool any = false;
    for (int i = 0; i < MODELS_MAX; i++) {
        ModelStatus status;
        if (!models_status(x->server->models, i, &status)) continue;
        if (!status.stats.full) return true;
        any = true;
        waiting += status.stats.waiting;
    }
    if (!any) return true;
    return api_fail(error, 429, "queue_full", NULL, "The server is busy: %d requests wait already.", waiting);
}

static bool still_loading(ApiError *error) {
    return api_fail(error, 503, "loading", NULL, "The server is loading its models. Please try again.");
}

bool request_head_wait(Exchange *x, ApiError *error) {
    Server *server = x->server;
    int64_t end_ns = x->started_ns + LOADING_WAIT_S * INT64_C(1000000000);
    if (x->deadline_ns && x->deadline_ns < end_ns) end_ns = x->deadline_ns;
    if (x->route->public || __atomic_load_n(&server->loaded, __ATOMIC_ACQUIRE)) return true;
    mutex_lock(&server->lock);
    bool loaded, waits = true;
    while (!(loaded = __atomic_load_n(&server->loaded, __ATOMIC_ACQUIRE)) && waits) {
        const int64_t left_ns = end_ns - clock_ns();
        waits = left_ns > 0 && !__atomic_load_n(&server->stopping, __ATOMIC_RELAXED) &&
            condition_wait_ms(&server->woken, &server->lock, left_ns / 1000000 + 1);
    }
    mutex_unlock(&server->lock);
    return loaded || still_loading(error);
}

bool request_head_check(Exchange *x, ApiError *error) {
    const char *method = x->request->method;
    if (!check_headers(x, error)) return false;
    const bool whole = !strcmp(x->request->path, "*"); /* OPTIONS * is about the server, not about a path of it */
    if (!strcmp(method, "OPTIONS") && (whole || x->cors || header(x, "Access-Control-Request-Method"))) {
        x->route = route_preflight();
        return true;
    }
    if (!check_route(x, x->request->path, method, error)) return false;
    const bool loaded = __atomic_load_n(&x->server->loaded, __ATOMIC_ACQUIRE);
    if (!x->route->public && !loaded && !x->server->restarted) return still_loading(error);
    if (!deadlines_set(x, error)) return false;
    if (strcmp(method, "POST") != 0) return true;
    if (__atomic_load_n(&x->server->draining, __ATOMIC_RELAXED))
        return api_fail(
            error, 503, "restarting", NULL, "The server restarts, as its device has failed. Please try again.");
    if (__atomic_load_n(&x->server->stopping, __ATOMIC_RELAXED))
        return api_fail(error, 503, "shutting_down", NULL, "The server is shutting down.");
    return check_body_headers(x, error) && (!x->route->completes || !loaded || check_queue(x, error));
}
