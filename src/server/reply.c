#include "server/reply.h"

#include <poll.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/endpoint.h"
#include "server/guard.h"
#include "server/metrics.h"
#include "server/routes.h"

#ifndef POLLRDHUP
#define POLLRDHUP 0 /* where there is none, POLLHUP comes when the client has ended its side */
#endif

enum { STREAM_BLOCK_BYTES = 16 << 10 };

GuardEntry *reply_guard(const Exchange *x) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

void reply_touch(Exchange *x) { guard_deadline(x->server->guard, reply_guard(x), READER_DEADLINE_S); }

int reply_socket(const Exchange *x) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

/* Not by looking for the end among what has arrived: bytes of a next request may lie before it. */
bool reply_client_gone(const Exchange *x) {
    struct pollfd client = {.fd = reply_socket(x), .events = POLLRDHUP};
    return poll(&client, 1, 0) > 0;
}

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
    metrics_note_status(x->server->metrics, status);
    reply_touch(x);
    const enum MHD_Result result = MHD_queue_response(x->connection, (unsigned)status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result reply(Exchange *x, int status, const char *type, Buffer *body, const char *allow) {
    struct MHD_Response *response = body->failed || !body->data
        ? NULL
        : MHD_create_response_from_buffer(body->size, body->data, MHD_RESPMEM_MUST_COPY);
    buffer_free(body);
    if (!response) return MHD_NO;
    add_common_headers(x, response, type);
    if (status == 429 || status == 503) {
        MHD_add_response_header(response, "Retry-After", "1");
        MHD_add_response_header(response, "retry-after-ms", "1000");
    }
    if (allow) MHD_add_response_header(response, "Allow", allow);
    if (status == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    return queue(x, status, response);
}

static const char json[] = "application/json";

enum MHD_Result reply_json(Exchange *x, int status, Buffer *body) { return reply(x, status, json, body, NULL); }
enum MHD_Result reply_text(Exchange *x, const char *type, Buffer *body) { return reply(x, 200, type, body, NULL); }

enum MHD_Result reply_error(Exchange *x, const ApiError *error) {
    Buffer body = {0};
    const Endpoint *endpoint = x->route ? x->route->endpoint : NULL;
    if (endpoint && endpoint->write_error)
        endpoint->write_error(x, error, &body);
    else
        api_write_error(&body, error);
    log_debug("refused id=%s status=%d code=%s param=%s", x->request_id, error->status, error->code ? error->code : "",
        error->param);
    return reply(x, error->status, json, &body, error->status == 405 ? x->allowed : NULL);
}

enum MHD_Result reply_stream(Exchange *x, MHD_ContentReaderCallback read) {
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read, x, NULL);
    if (!response) return MHD_NO;
    add_common_headers(x, response, x->endpoint && x->endpoint->media ? x->endpoint->media : "text/event-stream");
    MHD_add_response_header(response, "Cache-Control", "no-cache");
    MHD_add_response_header(response, "X-Accel-Buffering", "no");
    return queue(x, 200, response);
}
