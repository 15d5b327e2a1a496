#include "server/http/deadlines.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { TIMEOUT_MAX_S = 365 * 86400 };

static void shorten(Exchange *x, double seconds) {
    const int64_t end = x->started_ns + (int64_t)(seconds * 1e9);
    if (!x->deadline_ns || end < x->deadline_ns) x->deadline_ns = end;
}

bool deadlines_set(Exchange *x, ApiError *error) {
    static const char name[] = "x-request-timeout";
    const Server *server = x->server;
    const char *given = http_request_header(x->request, name);
    if (server->options.queue_timeout_s > 0)
        x->queue_deadline_ns = x->started_ns + server->options.queue_timeout_s * INT64_C(1000000000);
    if (server->options.request_timeout_s > 0) shorten(x, (double)server->options.request_timeout_s);
    if (!given) return true;
    char *end;
    const double seconds = strtod(given, &end);
    const bool decimal = !given[strspn(given, "0123456789.eE+-")]; /* strtod knows hexadecimal ones, too */
    if (end == given || *end || !decimal || !(seconds > 0) || seconds > TIMEOUT_MAX_S)
        return api_fail(error, 400, "invalid_value", name, "The header %s must be a number of seconds.", name);
    shorten(x, seconds);
    return true;
}

int64_t deadlines_next_ns(const Exchange *x) {
    const int64_t one = x->deadline_ns, other = x->queue_deadline_ns;
    return one && (!other || one < other) ? one : other;
}

bool deadlines_over(const Exchange *x, bool waits, ApiError *error) {
    const int64_t now = clock_ns();
    const double waited = (double)(now - x->started_ns) * 1e-9;
    if (x->deadline_ns && now >= x->deadline_ns) {
        api_fail(error, 504, "request_timeout", NULL, "The request was not answered within its time: %.1f s.", waited);
        return true;
    }
    if (!waits || !x->queue_deadline_ns || now < x->queue_deadline_ns) return false;
    api_fail(error, 503, "queue_timeout", NULL,
        "The server is busy: the request waited %.1f s for its turn. Please try again.", waited);
    return true;
}

bool deadlines_must_end(const Exchange *x, ApiError *error) {
    const bool waits = x->queue_deadline_ns && !generation_admitted(&x->generation);
    if (!server_stopped(x->server)) return deadlines_over(x, waits, error);
    api_fail(error, 503, "shutting_down", NULL, "The server is shutting down.");
    return true;
}
