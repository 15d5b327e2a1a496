/* libmicrohttpd and the rules in front of the API: routes, methods, media type, sizes, Host, Origin, key. A request is
 * refused from its headers, answered only after its body was read (so that the connection lives on), and every answer
 * is JSON. */
#include "server/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/guard.h"

enum {
    BODY_BYTES_MAX = 32 << 20,
    BODY_DISCARD_MAX = 64 << 20, /* of a body already refused: then the connection is closed */
    HEADERS_MAX = 100,
    HEADER_BYTES_MAX = 64 << 10, /* request line and headers of a connection */
    CONNECTIONS_MAX = 512,
    THREAD_STACK_BYTES = 4 << 20, /* templates recurse */
    STREAM_BLOCK_BYTES = 16 << 10,
};

typedef enum MHD_Result (*RouteHandler)(Exchange *x, Slice rest);
typedef struct Route {
    const char *method, *path; /* a path ending in '/' takes what follows it as `rest` */
    RouteHandler answer;
    bool public; /* needs no key */
} Route;

static GuardEntry *guard_entry(const Exchange *x) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

void http_touch(Exchange *x) { guard_deadline(x->server->guard, guard_entry(x), READER_DEADLINE_S); }

int http_socket(const Exchange *x) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

bool http_client_gone(const Exchange *x) {
    char byte;
    const ssize_t got = recv(http_socket(x), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* ---- answers ---- */

static void add_common_headers(Exchange *x, struct MHD_Response *response, const char *type) {
    char milliseconds[32];
    snprintf(milliseconds, sizeof milliseconds, "%lld", (long long)((clock_ns() - x->started_ns) / 1000000));
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "x-request-id", x->request_id);
    MHD_add_response_header(response, "openai-processing-ms", milliseconds);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
}

static enum MHD_Result queue(Exchange *x, int status, struct MHD_Response *response) {
    x->answered = true;
    http_touch(x);
    const enum MHD_Result result = MHD_queue_response(x->connection, (unsigned)status, response);
    MHD_destroy_response(response);
    return result;
}

enum MHD_Result http_reply(Exchange *x, int status, Buffer *body) {
    struct MHD_Response *response = body->failed || !body->data
        ? NULL
        : MHD_create_response_from_buffer(body->size, body->data, MHD_RESPMEM_MUST_COPY);
    buffer_free(body);
    if (!response) return MHD_NO;
    add_common_headers(x, response, "application/json");
    if (status == 429 || status == 503) {
        MHD_add_response_header(response, "Retry-After", "1");
        MHD_add_response_header(response, "retry-after-ms", "1000");
    }
    if (status == 405 && x->route) MHD_add_response_header(response, "Allow", x->route->method);
    if (status == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    return queue(x, status, response);
}

enum MHD_Result http_reply_error(Exchange *x, const ApiError *error) {
    Buffer body = {0};
    api_write_error(&body, error);
    log_debug("refused id=%s status=%d code=%s param=%s", x->request_id, error->status, error->code ? error->code : "",
        error->param);
    return http_reply(x, error->status, &body);
}

enum MHD_Result http_reply_stream(Exchange *x, MHD_ContentReaderCallback read) {
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read, x, NULL);
    if (!response) return MHD_NO;
    add_common_headers(x, response, "text/event-stream");
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    MHD_add_response_header(response, "X-Accel-Buffering", "no");
    return queue(x, 200, response);
}

/* ---- routes ---- */

static enum MHD_Result answer_chat(Exchange *x, Slice rest) { return completion_answer(x, &endpoint_chat); }
static enum MHD_Result answer_completions(Exchange *x, Slice rest) {
    return completion_answer(x, &endpoint_completion);
}

static enum MHD_Result answer_health(Exchange *x, Slice rest) {
    const EngineStats stats = engine_stats(x->server->engine);
    const bool stopping = __atomic_load_n(&x->server->stopping, __ATOMIC_RELAXED) > 0;
    Buffer body = {0};
    buffer_printf(&body, "{\"status\":\"%s\",\"running\":%d,\"waiting\":%d,\"kv_bytes\":%zu,\"kv_bytes_total\":%zu}",
        stopping ? "stopping" : "ok", stats.running, stats.waiting, stats.kv_bytes, stats.kv_bytes_total);
    return http_reply(x, stopping ? 503 : 200, &body);
}

static void write_model(Exchange *x, Buffer *out) {
    buffer_text(out, "{\"id\":");
    json_write_string(out, slice_of(x->server->model_name));
    buffer_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"apus\",\"context_length\":%d}",
        (long long)x->server->created, model_context(engine_model(x->server->engine)));
}

static enum MHD_Result answer_models(Exchange *x, Slice rest) {
    Buffer body = {0};
    buffer_text(&body, "{\"object\":\"list\",\"data\":[");
    write_model(x, &body);
    buffer_text(&body, "]}");
    return http_reply(x, 200, &body);
}

static enum MHD_Result answer_model(Exchange *x, Slice rest) {
    if (!slice_is(rest, x->server->model_name)) {
        ApiError error = {0};
        api_fail(&error, 404, "model_not_found", "model", "The model '%.*s' does not exist; this server has '%s'.",
            rest.size < 200 ? (int)rest.size : 200, rest.data, x->server->model_name);
        return http_reply_error(x, &error);
    }
    Buffer body = {0};
    write_model(x, &body);
    return http_reply(x, 200, &body);
}

static enum MHD_Result answer_root(Exchange *x, Slice rest) {
    Buffer body = {0};
    buffer_text(&body, "{\"name\":\"apus\",\"model\":");
    json_write_string(&body, slice_of(x->server->model_name));
    buffer_text(&body, ",\"api\":[\"/v1/chat/completions\",\"/v1/completions\",\"/v1/models\",\"/health\"]}");
    return http_reply(x, 200, &body);
}

static const Route routes[] = {
    {"GET", "/", answer_root, false},
    {"GET", "/health", answer_health, true},
    {"GET", "/v1/models", answer_models, false},
    {"GET", "/v1/models/", answer_model, false},
    {"POST", "/v1/chat/completions", answer_chat, false},
    {"POST", "/v1/completions", answer_completions, false},
};

static bool path_matches(const Route *route, const char *url) {
    const size_t length = strlen(route->path);
    if (length > 1 && route->path[length - 1] == '/') return !strncmp(url, route->path, length) && url[length];
    return !strcmp(url, route->path);
}

/* ---- guards, from the headers alone ---- */

typedef struct HeaderScan {
    int count, hosts, lengths, encodings;
    bool chunked_only;
} HeaderScan;

static enum MHD_Result scan_header(void *cls, enum MHD_ValueKind kind, const char *key, const char *value) {
    HeaderScan *scan = cls;
    scan->count++;
    if (!strcasecmp(key, "Host")) scan->hosts++;
    if (!strcasecmp(key, "Content-Length")) scan->lengths++;
    if (!strcasecmp(key, "Transfer-Encoding")) {
        scan->encodings++;
        scan->chunked_only = value && !strcasecmp(value, "chunked");
    }
    return MHD_YES;
}

static const char *header(const Exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

/* The name part of "name:port" or "[v6]:port". */
static Slice host_name(const char *host) {
    const char *end = host[0] == '[' ? strchr(host, ']') : strrchr(host, ':');
    if (host[0] == '[') return end ? (Slice){host + 1, (size_t)(end - host - 1)} : slice_of("");
    return end ? (Slice){host, (size_t)(end - host)} : slice_of(host);
}

static bool is_loopback_name(Slice name) {
    return (name.size == 9 && !strncasecmp(name.data, "localhost", 9)) || slice_is(name, "127.0.0.1") ||
        slice_is(name, "::1");
}

/* The key must match in time that depends on its own length only. */
static bool key_equal(const char *key, const char *given) {
    const size_t length = strlen(key), given_length = strlen(given);
    unsigned char difference = length != given_length;
    for (size_t i = 0; i < length; i++)
        difference |= (unsigned char)(key[i] ^ given[i < given_length ? i : given_length]);
    return difference == 0;
}

static bool key_given(const Exchange *x) {
    const char *bearer = header(x, "Authorization"), *plain = header(x, "x-api-key");
    if (bearer && !strncasecmp(bearer, "Bearer ", 7)) return key_equal(x->server->api_key, bearer + 7);
    return plain && key_equal(x->server->api_key, plain);
}

static bool check_headers(Exchange *x, ApiError *error) {
    HeaderScan scan = {0};
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, scan_header, &scan);
    if (scan.count > HEADERS_MAX) return api_fail(error, 431, NULL, NULL, "Too many headers: at most %d.", HEADERS_MAX);
    if (scan.hosts != 1) return api_fail(error, 400, NULL, NULL, "The request must have exactly one Host header.");
    if (scan.lengths > 1 || scan.encodings > 1 || (scan.lengths && scan.encodings) ||
        (scan.encodings && !scan.chunked_only))
        return api_fail(error, 400, NULL, NULL, "The length of the request body is given in more than one way.");
    const char *host = header(x, "Host"), *origin = header(x, "Origin");
    if (x->server->loopback && !is_loopback_name(host_name(host)))
        return api_fail(error, 403, NULL, NULL, "The Host header does not name this server.");
    if (origin) {
        const char *name = strstr(origin, "://");
        if (!name || strcasecmp(name + 3, host))
            return api_fail(error, 403, NULL, NULL, "Requests from other web sites are not allowed.");
    }
    return true;
}

/* What the client announces, however large; 0 when it does not say. */
static uint64_t content_length(const Exchange *x) {
    const char *length = header(x, "Content-Length");
    return !length ? 0 : strlen(length) > 18 ? UINT64_MAX : strtoull(length, NULL, 10);
}

static bool check_body_headers(Exchange *x, ApiError *error) {
    const char *type = header(x, "Content-Type"), *encoding = header(x, "Content-Encoding");
    const size_t json = strlen("application/json");
    if (!type || strncasecmp(type, "application/json", json) || (type[json] && !strchr("; \t", type[json])))
        return api_fail(error, 415, NULL, NULL, "The Content-Type of the request must be application/json.");
    if (encoding && strcasecmp(encoding, "identity"))
        return api_fail(error, 415, NULL, NULL, "The request body must not be compressed.");
    if (content_length(x) > BODY_BYTES_MAX)
        return api_fail(error, 413, NULL, NULL, "The request body is larger than %d bytes.", BODY_BYTES_MAX);
    return true;
}

static bool check_route(Exchange *x, const char *url, const char *method, ApiError *error) {
    const Route *other = NULL;
    for (size_t i = 0; i < COUNT_OF(routes) && !x->route; i++) {
        if (!path_matches(&routes[i], url)) continue;
        other = &routes[i];
        if (!strcmp(method, other->method) || (!strcmp(method, "HEAD") && !strcmp(other->method, "GET")))
            x->route = other;
    }
    const bool known = x->route != NULL;
    if (x->server->api_key && !(known && x->route->public) && !key_given(x))
        return api_fail(error, 401, "invalid_api_key", NULL,
            "Incorrect or missing API key. Send it as 'Authorization: Bearer KEY'.");
    if (known) return true;
    x->route = other;
    if (other)
        return api_fail(error, 405, NULL, NULL, "The method %s is not allowed here; use %s.", method, other->method);
    return api_fail(error, 404, NULL, NULL, "Unknown request URL: %s %.200s.", method, url);
}

static void take_request_id(Exchange *x) {
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

/* ---- libmicrohttpd's callbacks ---- */

static enum MHD_Result begin(Server *server, struct MHD_Connection *connection, const char *url, const char *method,
    const char *version, void **state) {
    Exchange *x = calloc(1, sizeof *x);
    if (!x) return MHD_NO;
    x->server = server;
    x->connection = connection;
    x->started_ns = clock_ns();
    x->chunked = strcmp(version, "HTTP/1.0") > 0;
    x->body.limit = BODY_BYTES_MAX;
    *state = x;
    guard_deadline(server->guard, guard_entry(x), BODY_DEADLINE_S);
    take_request_id(x);
    ApiError *error = &x->refusal;
    if (!check_headers(x, error) || !check_route(x, url, method, error)) return MHD_YES;
    if (!strcmp(method, "POST")) {
        if (__atomic_load_n(&server->stopping, __ATOMIC_RELAXED))
            api_fail(error, 503, "shutting_down", NULL, "The server is shutting down.");
        else if (!check_body_headers(x, error) && error->status == 413 && content_length(x) > BODY_DISCARD_MAX)
            return http_reply_error(x, error); /* before the body: an honest client waits for "100 Continue" */
    }
    return MHD_YES;
}

static enum MHD_Result take_body(Exchange *x, const char *data, size_t *size) {
    if (x->refusal.status || x->body.failed) {
        x->discarded += *size;
    } else {
        buffer_append(&x->body, data, *size);
        if (x->body.failed)
            api_fail(&x->refusal, 413, NULL, NULL, "The request body is larger than %d bytes.", BODY_BYTES_MAX);
    }
    *size = 0;
    return x->discarded > BODY_DISCARD_MAX ? MHD_NO : MHD_YES;
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
    const char *version, const char *data, size_t *size, void **state) {
    Exchange *x = *state;
    if (!x) return begin(cls, connection, url, method, version, state);
    if (*size > 0) return take_body(x, data, size);
    if (x->answered) return MHD_YES;
    http_touch(x);
    guard_deadline(x->server->guard, guard_entry(x), 0); /* the wait is ours now */
    if (x->refusal.status) return http_reply_error(x, &x->refusal);
    return x->route->answer(x, slice_of(url + strlen(x->route->path)));
}

static void completed(
    void *cls, struct MHD_Connection *connection, void **state, enum MHD_RequestTerminationCode code) {
    Exchange *x = *state;
    if (!x) return;
    guard_deadline(x->server->guard, guard_entry(x), IDLE_DEADLINE_S);
    log_debug("done id=%s ms=%lld", x->request_id, (long long)((clock_ns() - x->started_ns) / 1000000));
    generation_close(&x->generation);
    if (x->endpoint) __atomic_fetch_sub(&x->server->answering, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < x->prompt_count; i++) tokens_free(&x->prompts[i]);
    buffer_free(&x->body);
    buffer_free(&x->head);
    buffer_free(&x->out);
    arena_free(&x->arena);
    free(x);
    *state = NULL;
}

static void connection_event(
    void *cls, struct MHD_Connection *connection, void **context, enum MHD_ConnectionNotificationCode code) {
    Server *server = cls;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *context = info ? guard_add(server->guard, info->connect_fd) : NULL;
    } else {
        guard_remove(server->guard, *context);
        *context = NULL;
    }
}

/* A path with an encoded NUL stays as it is, and so names nothing. */
static size_t unescape(void *cls, struct MHD_Connection *connection, char *text) {
    return strstr(text, "%00") ? strlen(text) : MHD_http_unescape(text);
}

bool http_start(Server *server, Error *error) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)server->port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)server->port)};
    const char *host = !strcmp(server->host, "localhost") ? "127.0.0.1" : server->host;
    const bool six = inet_pton(AF_INET6, host, &v6.sin6_addr) == 1;
    if (!six && inet_pton(AF_INET, host, &v4.sin_addr) != 1)
        return fail(error, ERROR_USAGE, "--host %s: not an IP address", server->host);
    server->loopback = six ? IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) : (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
    if (!server->loopback && !server->api_key)
        return fail(
            error, ERROR_USAGE, "--host %s can be reached from other machines: set --api-key as well", server->host);
    server->guard = guard_open(error);
    if (!server->guard) return false;
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC;
    if (six) flags |= MHD_USE_IPv6;
    errno = 0;
    server->daemon = MHD_start_daemon(flags, (uint16_t)server->port, NULL, NULL, handle, server, MHD_OPTION_SOCK_ADDR,
        six ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL,
        MHD_OPTION_NOTIFY_COMPLETED, completed, server, MHD_OPTION_NOTIFY_CONNECTION, connection_event, server,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HEADER_BYTES_MAX, MHD_OPTION_THREAD_STACK_SIZE, (size_t)THREAD_STACK_BYTES,
        MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (!server->daemon)
        return fail(error, ERROR_IO, "cannot listen on %s port %d: %s", server->host, server->port,
            errno ? strerror(errno) : "unknown reason");
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_BIND_PORT);
    if (info && info->port) server->port = info->port;
    return true;
}

void http_stop(Server *server) {
    if (server->daemon) MHD_stop_daemon(server->daemon);
    server->daemon = NULL;
    guard_close(server->guard);
    server->guard = NULL;
}
