#include "server/http/http.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/http/connection.h"
#include "server/http/load_shedding.h"
#include "server/http/listener.h"

enum {
    READY_MAX = 256,
    ACCEPTS_MAX = 64, /* before those that are connected get their turn */
    ACCEPT_PAUSE_MS = 100,
    OTHER_FILES = 256, /* descriptors that are not for connections */
    LISTEN_QUEUE = 4096,
    HANDSHAKES_MAX = 4, /* steps of TLS handshakes per turn of the loop */
};

/* Handles connections whose deadline has passed, and finds the next deadline. */
static void cut_off(Http *http, int64_t now) {
    enum { STEP_NS = 100 * 1000000 };
    if (now < http->next_deadline_ns) return;
    int64_t next = INT64_MAX;
    http->next_deadline_ns = INT64_MAX; /* connection_timed_out may set a new deadline */
    for (Connection *c = http->first, *following; c; c = following) {
        following = c->next;
        if (!c->deadline_ns) continue;
        if (now < c->deadline_ns) {
            if (c->deadline_ns < next) next = c->deadline_ns;
            continue;
        }
        connection_timed_out(c);
        connection_advance(c);
    }
    const int64_t soonest = now + STEP_NS;
    if (http->next_deadline_ns < next) next = http->next_deadline_ns;
    http->next_deadline_ns = next > soonest ? next : soonest;
}

/* Those that workers are done with, and adopted ones. */
static void take_back(Http *http) {
    char bytes[64];
    while (read(http->wake[0], bytes, sizeof bytes) == sizeof bytes) {}
    mutex_lock(&http->lock);
    Connection *back = http->back;
    http->back = NULL;
    mutex_unlock(&http->lock);
    for (Connection *c = back, *following; c; c = following) {
        following = c->next_back;
        if (c->state == ANSWERING)
            connection_answered(c);
        else
            connection_link(c);
        connection_advance(c);
    }
    shed_unread(http);
}

/* ---- accepting ---- */

/* Who waits to be accepted keeps the listener ready: without a pause we would spin. */
static void pause_accepting(Http *http, int64_t now, const char *why) {
    log_debug("accepting pauses with %d connections: %s", http->count, why);
    poller_set(http->poller, http->listener, POLLER_READ, POLLER_NONE, NULL);
    http->pause_end_ns = now + ACCEPT_PAUSE_MS * INT64_C(1000000);
}

static void stop_accepting(Http *http) {
    if (!http->listener_closed && !http->pause_end_ns)
        poller_set(http->poller, http->listener, POLLER_READ, POLLER_NONE, NULL);
    http->pause_end_ns = 0;
    http->listener_closed = true;
}

static void accept_clients(Http *http, int64_t now) {
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        const bool full = http->count >= http->max;
        if (full && i > 0) return; /* whether another one waits is not known yet */
        if (full && !shed_one(http, now)) {
            pause_accepting(http, now, "there are no more");
            return;
        }
        const int fd = accept(http->listener, NULL, NULL);
        if (fd < 0) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK) return;
            const int why = errno; /* other errors concern the network or one client */
            const bool scarce = why == EMFILE || why == ENFILE || why == ENOBUFS || why == ENOMEM;
            if (scarce && i > 0) return; /* as above */
            if (scarce && shed_one(http, now)) continue;
            pause_accepting(http, now, strerror(why));
            return;
        }
        Connection *c = connection_make(http, fd);
        if (!c) continue;
        connection_link(c);
        connection_advance(c);
    }
}

/* ---- the thread ---- */

static int wait_ms(const Http *http, int64_t now) {
    int64_t next = http->next_deadline_ns;
    if (!http->first) next = INT64_MAX;
    if (http->pause_end_ns && http->pause_end_ns < next) next = http->pause_end_ns;
    return next == INT64_MAX ? -1 : next <= now ? 0 : (int)((next - now) / 1000000 + 1);
}

static void tell_ready(Connection *c) {
    if (c->state != SENDING) connection_receive(c);
    connection_advance(c);
}

/* A handshake costs as much as a hundred requests, so their number per turn is limited. */
static void handshake(Http *http) {
    void *ready[HANDSHAKES_MAX];
    const int count = poller_wait(http->handshake, ready, HANDSHAKES_MAX, 0);
    for (int i = 0; i < count; i++) tell_ready(ready[i]);
}

/* take_back(), accept_clients() and cut_off() may free connections: they run when no ready connection is left in the
 * list. */
static void *serve(void *argument) {
    Http *http = argument;
    void *ready[READY_MAX];
    while (!__atomic_load_n(&http->stopping, __ATOMIC_RELAXED)) {
        const int count = poller_wait(http->poller, ready, READY_MAX, wait_ms(http, clock_ns()));
        bool back = false, clients = false, handshakes = false;
        for (int i = 0; i < count; i++) {
            const bool woken = ready[i] == &http->wake, came = ready[i] == &http->listener,
                       in_handshake = ready[i] == &http->handshake;
            back |= woken;
            clients |= came;
            handshakes |= in_handshake;
            if (!woken && !came && !in_handshake) tell_ready(ready[i]);
        }
        if (handshakes) handshake(http);
        const int64_t now = clock_ns();
        if (__atomic_load_n(&http->draining, __ATOMIC_RELAXED)) stop_accepting(http);
        if (back) take_back(http);
        if (clients && !http->listener_closed) accept_clients(http, now);
        if (http->pause_end_ns && now >= http->pause_end_ns) {
            http->pause_end_ns = 0;
            poller_set(http->poller, http->listener, POLLER_NONE, POLLER_READ, &http->listener);
        }
        cut_off(http, now);
        shed_reset(http);
    }
    return NULL;
}

bool http_adopt(Server *server, int fd) {
    Connection *c = connection_make(server->http, fd);
    if (c) connection_give_back(c);
    return c;
}

bool http_reload(Server *server, Error *error) {
    Http *http = server->http;
    if (!server->options.tls_certificate) return true;
    Tls *tls = tls_open(server->options.tls_certificate, server->options.tls_key, error);
    if (!tls) return false;
    mutex_lock(&http->lock);
    Tls *before = http->tls;
    http->tls = tls;
    mutex_unlock(&http->lock);
    tls_close(before); /* connections that have it keep it */
    return true;
}

static void wake(Http *http) { (void)!write(http->wake[1], "", 1); }

void http_drain(Server *server) {
    __atomic_store_n(&server->http->draining, true, __ATOMIC_RELAXED);
    wake(server->http);
}

int http_listener(const Server *server) { return server->http->listener; }

/* ---- start and stop ---- */

/* As many connections as the system's limit of descriptors leaves room for, which is raised as far as it goes. */
static int raise_limit(void) {
    enum { LEAST = 16 };
    const rlim_t wanted = CONNECTIONS_MAX + OTHER_FILES;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return LEAST;
    const rlim_t before = limit.rlim_cur;
    for (rlim_t more = limit.rlim_max < wanted ? limit.rlim_max : wanted; more > before; more /= 2) {
        limit.rlim_cur = more;
        if (!setrlimit(RLIMIT_NOFILE, &limit)) break; /* macOS names no limit and has one */
        limit.rlim_cur = before;
    }
    if (limit.rlim_cur >= wanted) return CONNECTIONS_MAX;
    return limit.rlim_cur > OTHER_FILES + LEAST ? (int)limit.rlim_cur - OTHER_FILES : LEAST;
}

static bool open_poller(Http *http, Error *error) {
    http->poller = poller_open();
    http->handshake = poller_open();
    bool ok = http->poller >= 0 && http->handshake >= 0 && !pipe(http->wake);
    for (int i = 0; ok && i < 2; i++)
        ok = !fcntl(http->wake[i], F_SETFD, FD_CLOEXEC) && !fcntl(http->wake[i], F_SETFL, O_NONBLOCK);
    if (ok && poller_set(http->poller, http->wake[0], POLLER_NONE, POLLER_READ, &http->wake) &&
        poller_set(http->poller, http->handshake, POLLER_NONE, POLLER_READ, &http->handshake) &&
        poller_set(http->poller, http->listener, POLLER_NONE, POLLER_READ, &http->listener))
        return true;
    return fail(error, ERROR_IO, "cannot wait for connections: %s", strerror(errno));
}

bool http_start(Server *server, int listener, Error *error) {
    Http *http = calloc(1, sizeof *http);
    if (!http) return fail(error, ERROR_MEMORY, "no memory for connections");
    *http = (Http){.server = server,
        .listener = listener,
        .poller = -1,
        .handshake = -1,
        .wake = {-1, -1},
        .next_deadline_ns = INT64_MAX};
    mutex_init(&http->lock);
    server->http = http;
    http->max = raise_limit();
    if (server->options.tls_certificate) {
        http->tls = tls_open(server->options.tls_certificate, server->options.tls_key, error);
        if (!http->tls) return false;
    }
    http->listener = listener_open(server, http->listener, LISTEN_QUEUE, error);
    if (http->listener < 0 || !open_poller(http, error)) return false;
    http->workers = workers_open(ANSWERS_MAX + OTHER_ANSWERS + PROBE_ANSWERS, error);
    if (!http->workers || !thread_start(&http->thread, serve, http, "http", error)) return false;
    http->started = true;
    return true;
}

static void close_file(int fd) {
    if (fd >= 0) close(fd);
}

void http_stop(Server *server) {
    Http *http = server->http;
    if (!http) return;
    __atomic_store_n(&http->stopping, true, __ATOMIC_RELAXED);
    if (http->started) {
        wake(http);
        thread_join(http->thread);
    }
    for (Connection *c = http->first; c; c = c->next)
        shutdown(c->transport.fd, SHUT_RDWR); /* a worker that answers on it notices */
    workers_close(http->workers);
    for (Connection *c = http->back, *following; c; c = following) {
        following = c->next_back;
        if (c->state != ANSWERING) connection_link(c);
    }
    while (http->first) connection_drop(http->first);
    tls_close(http->tls);
    close_file(http->listener);
    close_file(http->poller);
    close_file(http->handshake);
    close_file(http->wake[0]);
    close_file(http->wake[1]);
    mutex_destroy(&http->lock);
    free(http);
    server->http = NULL;
}
