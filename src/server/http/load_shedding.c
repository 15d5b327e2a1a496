#include "server/http/load_shedding.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

/* Bytes per second of a request that began at least SLOW_S ago, or −1. */
static double slowness(const Connection *c, int64_t now) {
    enum { SLOW_S = 1 };
    const double seconds = (double)(now - c->begun_ns) * 1e-9;
    return c->state == READING && !connection_is_idle(c) && seconds >= SLOW_S ? (double)c->received / seconds : -1;
}

bool shed_one(Http *http, int64_t now) {
    Connection *idle = NULL, *slow = NULL;
    double slowest = 0;
    for (Connection *c = http->first; c; c = c->next) {
        if (connection_is_idle(c) && (!idle || c->begun_ns < idle->begun_ns)) idle = c;
        const double rate = slowness(c, now);
        if (rate >= 0 && (!slow || rate < slowest)) slow = c, slowest = rate;
    }
    Connection *chosen = idle ? idle : slow;
    if (chosen) connection_drop(chosen);
    return chosen;
}

void shed_unread(Http *http) {
    while (http->response_bytes > RESPONSES_BYTES_MAX) {
        Connection *worst = NULL;
        int others = -1; /* than the worst: one alone is never too much */
        for (Connection *c = http->first; c; c = c->next) {
            if (c->state != SENDING || !c->response_bytes) continue;
            others++;
            if (!worst || c->deadline_ns < worst->deadline_ns) worst = c;
        }
        if (others < 1) return;
        connection_drop(worst);
    }
}

void shed_reset(Http *http) {
    enum { MANY_BYTES = 16 << 20, FEW_BYTES = 1 << 20 };
    const size_t held = http->head_bytes + __atomic_load_n(&http->server->body_bytes, __ATOMIC_RELAXED);
    if (held > MANY_BYTES) http->crowded = true;
    if (!http->crowded || held > FEW_BYTES) return;
    http->crowded = false;
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}
