#include "server/http/connection.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/http/body.h"
#include "server/api/completion.h"
#include "server/http/request_head.h"
#include "server/http/http.h"
#include "server/http/response.h"
#include "server/admin/request_log.h"
#include "server/routes.h"

static void set_deadline(Connection *c, int seconds) {
    c->deadline_ns = seconds ? clock_ns() + seconds * INT64_C(1000000000) : 0;
    if (c->deadline_ns && c->deadline_ns < c->http->next_deadline_ns) c->http->next_deadline_ns = c->deadline_ns;
}

static void watch(Connection *c, PollerWay way) {
    const int poller = transport_in_handshake(&c->transport) ? c->http->handshake : c->http->poller;
    if (poller != c->poller) {
        (void)poller_set(c->poller, c->transport.fd, c->way, POLLER_NONE, c);
        c->way = POLLER_NONE;
    }
    c->poller = poller;
    if (!poller_set(poller, c->transport.fd, c->way, way, c)) c->state = CLOSED; /* no memory */
    c->way = way;
}

/* To be called after a change of the buffers that the connection holds. */
static void count_held(Connection *c) {
    Http *http = c->http;
    const size_t head = c->request.text.capacity + c->ahead.capacity;
    const size_t size = c->state == SENDING ? c->response.capacity : 0; /* else it may be a worker's */
    http->head_bytes += head - c->head_bytes;
    http->response_bytes += size - c->response_bytes;
    c->head_bytes = head;
    c->response_bytes = size;
}

/* False: together the heads are too large, and this one is. */
static bool has_room(const Connection *c) {
    return c->http->head_bytes <= HEADS_BYTES_MAX || c->head_bytes <= HEAD_BYTES_FREE;
}

/* What came behind a request is held for as long as its client takes to read the answer: where there is no room for
 * that, the connection ends with the answer. */
static void shed_ahead(Connection *c) {
    if (c->state != SENDING || !c->ahead.capacity || has_room(c)) return;
    buffer_free(&c->ahead);
    c->last = true;
    count_held(c);
}

static void forget_held(Connection *c) {
    c->http->head_bytes -= c->head_bytes;
    c->http->response_bytes -= c->response_bytes;
    c->head_bytes = c->response_bytes = 0;
}

/* ---- exchanges ---- */

static Exchange *open_exchange(Connection *c) {
    Exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->server = c->http->server;
    x->request = &c->request;
    x->transport = &c->transport;
    x->client = c->client;
    x->started_ns = c->begun_ns;
    x->last = c->request.close || __atomic_load_n(&x->server->stopping, __ATOMIC_RELAXED) > 0;
    request_head_take_id(x);
    return x;
}

/* The response goes to the connection. */
static void close_exchange(Connection *c) {
    Exchange *x = c->x;
    if (!x) return;
    completion_close(x);
    request_log_write(x);
    body_free(x);
    c->response = x->response;
    c->last = x->last;
    free(x);
    c->x = NULL;
}

void connection_answered(Connection *c) {
    c->failed |= c->response.failed;
    c->state = c->failed ? CLOSED : SENDING;
    count_held(c);
    shed_ahead(c);
    set_deadline(c, READER_DEADLINE_S);
}

static void refuse(Connection *c, const ApiError *error) {
    c->failed = !response_error(c->x, error);
    close_exchange(c);
    connection_answered(c);
}

/* ---- requests, as they come ---- */

/* What cannot be read on from: the client gets one answer, and the connection ends. */
static void refuse_and_close(Connection *c, const ApiError *error) {
    if (!c->x) c->x = open_exchange(c);
    if (!c->x) {
        c->state = CLOSED;
        return;
    }
    c->x->last = true;
    refuse(c, error);
}

static void take_head(Connection *c) {
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    Exchange *x = c->x = open_exchange(c);
    set_deadline(c, BODY_DEADLINE_S);
    if (!x) {
        c->state = CLOSED;
        return;
    }
    const bool taken = request_head_check(x, &x->refusal);
    if (!taken && (c->request.awaits || (x->refusal.status == 413 && c->request.length > BODY_DISCARD_MAX))) {
        refuse_and_close(c, &x->refusal); /* before the body */
    } else if (c->request.awaits && c->request.has_body) {
        const Buffer text = {.data = (char *)(uintptr_t)go_on, .size = sizeof go_on - 1};
        size_t sent = 0;
        if (!response_send_some(&c->transport, &text, &sent) || sent < text.size) c->state = CLOSED;
    }
}

static void take_body(Connection *c, Slice piece) {
    if (!body_take(c->x, piece.data, piece.size)) refuse_and_close(c, &c->x->refusal);
}

/* To the thread of connections. */
void connection_give_back(Connection *c) {
    Http *http = c->http;
    mutex_lock(&http->lock);
    const bool wake = !http->back;
    c->next_back = http->back;
    http->back = c;
    mutex_unlock(&http->lock);
    if (wake) (void)!write(http->wake[1], "", 1);
}

static void answer(void *context) {
    Connection *c = context;
    Exchange *x = c->x;
    ApiError error;
    c->failed = request_head_wait(x, &error) ? !x->route->answer(x, slice_of(x->request->path + strlen(x->route->path)))
                                             : !response_error(x, &error);
    if (!c->failed && !response_send_some(&c->transport, &x->response, &c->sent)) c->failed = true;
    close_exchange(c);
    connection_give_back(c);
}

static void take_end(Connection *c) {
    Server *server = c->http->server;
    ApiError error;
    Error why = {0};
    c->counted = true;
    __atomic_add_fetch(&server->answering, 1, __ATOMIC_RELAXED);
    if (c->x->refusal.status || !body_admit(c->x, &c->x->refusal)) {
        refuse(c, &c->x->refusal);
        return;
    }
    set_deadline(c, 0); /* the wait is ours now */
    watch(c, POLLER_NONE);
    c->state = ANSWERING;
    const bool completes = c->x->route->completes, room = !completes || c->http->completing < ANSWERS_MAX;
    c->completes = completes && room;
    c->http->completing += c->completes;
    const int spare = c->x->route->probe ? 0 : PROBE_ANSWERS;
    if (room && workers_give(c->http->workers, spare, answer, c, &why)) return; /* it is no longer ours */
    if (room && why.code != ERROR_BUSY)
        api_out_of_memory(&error);
    else
        api_fail(&error, 503, "overloaded", NULL, "The server is answering too many requests. Please try again.");
    refuse(c, &error);
}

static void take_bytes(Connection *c, const char *bytes, size_t size) {
    ApiError error;
    while (c->state == READING) {
        Slice piece;
        size_t used;
        const bool begun = http_request_begun(&c->request);
        const HttpEvent event = http_request_read(&c->request, bytes, size, &used, &piece, &error);
        bytes += used;
        size -= used;
        if (!begun) {
            c->begun_ns = clock_ns();
            c->received = 0;
        }
        c->received += used;
        if (event == HTTP_MORE) {
            if (!begun && http_request_begun(&c->request)) set_deadline(c, HEAD_DEADLINE_S);
            break;
        }
        if (event == HTTP_HEAD) take_head(c);
        if (event == HTTP_BODY) take_body(c, piece);
        if (event == HTTP_END) take_end(c);
        if (event == HTTP_ERROR) refuse_and_close(c, &error);
    }
    if (size > 0 && c->state != CLOSED) buffer_append(&c->ahead, bytes, size);
    if (c->ahead.failed) c->state = CLOSED;
    count_held(c);
    shed_ahead(c);
    if (c->state != READING || has_room(c)) return;
    api_fail(&error, 503, "overloaded", NULL, "The server is reading too many large headers. Please try again.");
    refuse_and_close(c, &error);
}

/* ---- connections ---- */

static void uncount(Connection *c) {
    if (c->counted) __atomic_fetch_sub(&c->http->server->answering, 1, __ATOMIC_RELAXED);
    c->http->completing -= c->completes;
    c->counted = c->completes = false;
}

static void name_client(int fd, char out[CLIENT_MAX]) {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;
    socklen_t size = sizeof address;
    if (getpeername(fd, &address.any, &size)) return;
    const bool six = address.any.sa_family == AF_INET6;
    if (six || address.any.sa_family == AF_INET)
        (void)inet_ntop(
            address.any.sa_family, six ? (void *)&address.v6.sin6_addr : (void *)&address.v4.sin_addr, out, CLIENT_MAX);
}

Connection *connection_make(Http *http, int fd) {
    const int on = 1; /* small events must not wait for an answer to the one before */
    Connection *c = calloc(1, sizeof *c);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (!c || fcntl(fd, F_SETFL, O_NONBLOCK) < 0) {
        close(fd);
        free(c);
        return NULL;
    }
    mutex_lock(&http->lock);
    const bool opened = transport_open(&c->transport, fd, http->tls);
    mutex_unlock(&http->lock);
    if (!opened) {
        free(c);
        return NULL;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    name_client(fd, c->client);
    c->http = http;
    c->poller = http->poller;
    return c;
}

void connection_link(Connection *c) {
    Http *http = c->http;
    c->next = http->first;
    if (http->first) http->first->previous = c;
    http->first = c;
    http->count++;
    __atomic_add_fetch(&http->server->connections, 1, __ATOMIC_RELAXED);
    c->begun_ns = clock_ns();
    set_deadline(c, HEAD_DEADLINE_S);
}

void connection_drop(Connection *c) {
    Http *http = c->http;
    watch(c, POLLER_NONE);
    close_exchange(c);
    uncount(c);
    forget_held(c);
    http_request_next(&c->request);
    buffer_free(&c->ahead);
    buffer_free(&c->response);
    transport_close(&c->transport);
    if (c->previous)
        c->previous->next = c->next;
    else
        http->first = c->next;
    if (c->next) c->next->previous = c->previous;
    http->count--;
    __atomic_sub_fetch(&http->server->connections, 1, __ATOMIC_RELAXED);
    free(c);
}

/* The answer is out: the next request, which may be there already, or the end. */
static void end_answer(Connection *c) {
    uncount(c);
    buffer_free(&c->response);
    c->sent = 0;
    http_request_next(&c->request);
    Buffer ahead = c->ahead;
    c->ahead = (Buffer){0};
    c->state = c->last ? LINGERING : READING;
    c->begun_ns = clock_ns();
    set_deadline(c, c->last ? LINGER_S : IDLE_DEADLINE_S);
    if (c->last)
        transport_end(&c->transport);
    else
        take_bytes(c, ahead.data, ahead.size);
    buffer_free(&ahead);
    count_held(c);
}

static void send_answer(Connection *c) {
    const size_t before = c->sent;
    if (!response_send_some(&c->transport, &c->response, &c->sent)) c->state = CLOSED;
    if (c->sent > before) set_deadline(c, READER_DEADLINE_S);
}

/* As far as it goes without waiting; the connection may be gone then. */
void connection_advance(Connection *c) {
    while (
        c->state == SENDING || ((c->state == READING || c->state == LINGERING) && transport_pending(&c->transport))) {
        if (c->state != SENDING) {
            connection_receive(c);
            continue;
        }
        send_answer(c);
        if (c->state == SENDING && c->sent < c->response.size) break;
        if (c->state == SENDING) end_answer(c);
    }
    if (c->state == ANSWERING) return;
    if (c->state != CLOSED) watch(c, c->state == SENDING ? POLLER_WRITE : POLLER_READ);
    if (c->state == CLOSED) connection_drop(c);
}

void connection_receive(Connection *c) {
    char *bytes = c->http->bytes;
    const ssize_t got = transport_receive(&c->transport, bytes, READ_BYTES);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (got <= 0)
        c->state = CLOSED;
    else if (c->state == READING)
        take_bytes(c, bytes, (size_t)got);
}

void connection_timed_out(Connection *c) {
    ApiError error;
    if (c->state != READING || !http_request_begun(&c->request)) {
        c->state = CLOSED;
        return;
    }
    api_fail(&error, 408, NULL, NULL, "The request took too long to come.");
    refuse_and_close(c, &error);
}

bool connection_is_idle(const Connection *c) { return c->state == READING && !http_request_begun(&c->request); }
