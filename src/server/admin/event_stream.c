#include "server/admin/event_stream.h"

#include "base/clock.h"
#include "server/http/response.h"

enum { HEARTBEAT_S = 10, WATCHERS_MAX = 16 /* streams; each has a thread */ };

bool event_stream_ends(const Server *server) { return __atomic_load_n(&server->stopping, __ATOMIC_RELAXED) > 0; }

bool event_stream_send(Exchange *x, Buffer *out, int64_t *told_ns) {
    const int64_t now = clock_ns();
    if (!out->size && now - *told_ns > HEARTBEAT_S * INT64_C(1000000000)) buffer_text(out, ": waiting\n\n");
    if (out->failed || response_client_gone(x)) return false;
    if (!out->size) return true;
    *told_ns = now;
    response_stream_chunk(x, buffer_view(out), false);
    buffer_clear(out);
    return response_send(x);
}

bool event_stream_run(Exchange *x, bool (*send)(Exchange *x)) {
    Server *server = x->server;
    ApiError error = {0};
    bool ok;
    if (__atomic_fetch_add(&server->watchers, 1, __ATOMIC_RELAXED) < WATCHERS_MAX) {
        ok = send(x);
    } else {
        api_fail(&error, 429, "too_many_streams", NULL, "%d clients watch the server already.", WATCHERS_MAX);
        ok = response_error(x, &error);
    }
    __atomic_sub_fetch(&server->watchers, 1, __ATOMIC_RELAXED);
    return ok;
}
