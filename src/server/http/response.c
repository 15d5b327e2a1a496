#include "server/http/response.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "server/api/endpoint.h"
#include "server/http/http.h"
#include "server/admin/metrics.h"
#include "server/routes.h"
#include "server/http/transport.h"

#ifndef POLLRDHUP
#define POLLRDHUP 0 /* where there is none, POLLHUP comes when the client has ended its side */
#endif

/* Not by reading: bytes of the next request may precede the end of the connection. */
bool response_client_gone(const Exchange *x) {
    struct pollfd client = {.fd = x->transport->fd, .events = POLLRDHUP};
    return poll(&client, 1, 0) > 0;
}

static const char *reason_of(int status) {
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {{200, "OK"}, {204, "No Content"}, {304, "Not Modified"}, {400, "Bad Request"}, {401, "Unauthorized"},
        {403, "Forbidden"}, {404, "Not Found"}, {405, "Method Not Allowed"}, {408, "Request Timeout"},
        {409, "Conflict"}, {413, "Content Too Large"}, {414, "URI Too Long"}, {415, "Unsupported Media Type"},
        {417, "Expectation Failed"}, {429, "Too Many Requests"}, {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"}, {503, "Service Unavailable"}, {504, "Gateway Timeout"},
        {507, "Insufficient Storage"}, {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < COUNT_OF(reasons); i++)
        if (reasons[i].status == status) return reasons[i].reason;
    return "";
}

/* All but the headers that say where the body ends. */
static void write_head(Exchange *x, int status, const char *type) {
    char date[64];
    struct tm utc;
    const time_t seconds = time(NULL);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&seconds, &utc));
    buffer_printf(&x->response,
        "HTTP/1.1 %d %s\r\nDate: %s\r\n%s%s%sx-request-id: %s\r\nopenai-processing-ms: %lld\r\n"
        "X-Content-Type-Options: nosniff\r\n%s",
        status, reason_of(status), date, type ? "Content-Type: " : "", type ? type : "", type ? "\r\n" : "",
        x->request_id, (long long)((clock_ns() - x->started_ns) / 1000000), x->last ? "Connection: close\r\n" : "");
    if (x->cors)
        buffer_printf(&x->response,
            "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\nAccess-Control-Expose-Headers: x-request-id, "
            "x-stream-id, x-ignored-params, Retry-After\r\n",
            x->cors);
    if (x->ignored[0]) buffer_printf(&x->response, "x-ignored-params: %s\r\n", x->ignored);
    metrics_note_status(x->server->metrics, status);
    x->record.status = status;
}

static bool respond(Exchange *x, int status, const char *type, Buffer *body, const char *allow) {
    const bool request_head_only = x->request->method && !strcmp(x->request->method, "HEAD");
    bool ok = !body->failed && body->data;
    if (ok) {
        write_head(x, status, type);
        if (status == 429 || status == 503) buffer_text(&x->response, "Retry-After: 1\r\nretry-after-ms: 1000\r\n");
        if (status == 504) buffer_text(&x->response, "x-should-retry: false\r\n"); /* clients of OpenAI's kind would */
        if (allow) buffer_printf(&x->response, "Allow: %s\r\n", allow);
        if (status == 401) buffer_text(&x->response, "WWW-Authenticate: Bearer\r\n");
        buffer_printf(&x->response, "Content-Length: %zu\r\n\r\n", body->size);
        if (!request_head_only) buffer_slice(&x->response, buffer_view(body));
        ok = !x->response.failed;
    }
    buffer_free(body);
    return ok;
}

static const char json[] = "application/json";

bool response_json(Exchange *x, int status, Buffer *body) { return respond(x, status, json, body, NULL); }
bool response_text(Exchange *x, const char *type, Buffer *body) { return respond(x, 200, type, body, NULL); }

bool response_file(Exchange *x, int status, const char *type, const char *headers, Slice bytes) {
    write_head(x, status, type);
    buffer_text(&x->response, headers);
    if (status != 304 && status != 204) buffer_printf(&x->response, "Content-Length: %zu\r\n", bytes.size);
    buffer_text(&x->response, "\r\n");
    if (status != 304 && status != 204 && strcmp(x->request->method, "HEAD") != 0) buffer_slice(&x->response, bytes);
    return !x->response.failed;
}

bool response_error(Exchange *x, const ApiError *error) {
    Buffer body = {0};
    const Endpoint *endpoint = x->route ? x->route->endpoint : route_endpoint(x->request->path);
    if (endpoint && endpoint->write_error)
        endpoint->write_error(x, error, &body);
    else
        api_write_error(&body, error);
    x->record.code = error->code;
    return respond(x, error->status, json, &body, error->status == 405 ? x->allowed : NULL);
}

void response_stream_head(Exchange *x) {
    write_head(x, 200, x->endpoint && x->endpoint->media ? x->endpoint->media : "text/event-stream");
    buffer_text(&x->response, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    if (x->resumable) buffer_printf(&x->response, "x-stream-id: %s\r\n", x->id);
    buffer_text(&x->response, x->request->old ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n");
}

/* RFC 9112, 7.1; to HTTP/1.0, bytes up to the connection's end. */
void response_stream_chunk(Exchange *x, Slice bytes, bool last) {
    char digits[2 * sizeof bytes.size + 2];
    size_t at = sizeof digits, size = bytes.size;
    digits[--at] = '\n';
    digits[--at] = '\r';
    do digits[--at] = "0123456789abcdef"[size % 16];
    while (size /= 16);
    const bool chunks = !x->request->old, some = bytes.size > 0;
    if (chunks && some) buffer_append(&x->response, digits + at, sizeof digits - at);
    buffer_slice(&x->response, bytes);
    if (chunks && some) buffer_text(&x->response, "\r\n");
    if (chunks && last) buffer_text(&x->response, "0\r\n\r\n");
}

bool response_send_some(Transport *transport, const Buffer *bytes, size_t *sent) {
    while (*sent < bytes->size) {
        const ssize_t now = transport_send(transport, bytes->data + *sent, bytes->size - *sent);
        if (now < 0 && errno == EINTR) continue;
        if (now < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
        *sent += (size_t)now;
    }
    return true;
}

bool response_send(Exchange *x) {
    size_t sent = 0;
    while (!x->response.failed && response_send_some(x->transport, &x->response, &sent)) {
        struct pollfd client = {.fd = x->transport->fd, .events = POLLOUT};
        if (sent == x->response.size) {
            buffer_clear(&x->response);
            return true;
        }
        const int ready = poll(&client, 1, READER_DEADLINE_S * 1000);
        if (ready == 0 || (ready < 0 && errno != EINTR)) break;
    }
    return false;
}
