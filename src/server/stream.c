#include "server/stream.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/thread.h"
#include "server/endpoint.h"
#include "server/reply.h"
#include "server/shape.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* the signal is ignored anyway */
#endif

enum {
    PERIOD_MS = 100, /* between looks at clients that are behind, or gone */
    HEARTBEAT_S = 10,
    TOUCH_MS = 1000, /* how exact a reader's deadline is */
};

typedef enum StreamState { STREAM_RUNS, STREAM_ENDED, STREAM_LOST } StreamState;

/* Lives on the stack of its connection's thread, which waits for the state to change. */
typedef struct Stream {
    struct Stream *next;
    Exchange *x; /* NULL: the stream is over */
    int socket;
    StreamState state;
    Condition changed;
    Buffer wire; /* one chunk, framed */
    size_t sent; /* bytes of it */
    int64_t last_event_ns, last_look_ns, last_touch_ns;
} Stream;

struct StreamWriter {
    Mutex mutex;
    Condition wake;
    bool woken, stopping;
    Stream *first; /* grows at the front by any thread, shrinks by the writer's */
    Thread thread;
};

/* ---- events ---- */

static void write_error_event(Exchange *x, const ApiError *error) {
    if (x->endpoint->write_failure) {
        x->endpoint->write_failure(x, error, &x->out);
    } else {
        buffer_text(&x->out, "data: ");
        api_write_error(&x->out, error);
        buffer_text(&x->out, "\n\n");
    }
    x->ended = true;
}

/* Turns what the engine has produced into events. */
static void collect_events(Exchange *x) {
    Generation *g = &x->generation;
    ApiError error = {0};
    Error why = {0};
    if (!generation_take(g, &why)) {
        api_engine_failed(&error, &why);
        write_error_event(x, &error);
        return;
    }
    shape_progress(x, &x->out);
    for (int i = 0; i < g->choice_count; i++) {
        const Choice *choice = &g->choices[i];
        if (choice->text.size > 0 || choice->events.count > 0 || choice->token_count > 0)
            x->endpoint->write_delta(x, i, &x->out);
        if (choice->finish == FINISH_NONE || x->given[i].finish) continue;
        x->endpoint->write_finish(x, i, &x->out);
        x->given[i].finish = true;
    }
    if (!generation_done(g) && server_stopped(x->server)) {
        api_fail(&error, 503, "shutting_down", NULL, "The server is shutting down.");
        write_error_event(x, &error);
    }
    if (!generation_done(g)) return;
    if (x->form.include_usage) x->endpoint->write_usage(x, &x->out);
    buffer_text(&x->out, x->endpoint->done);
    x->ended = true;
}

static void write_chunk_size(Buffer *out, size_t size) {
    char digits[2 * sizeof size + 2];
    size_t at = sizeof digits;
    digits[--at] = '\n';
    digits[--at] = '\r';
    do digits[--at] = "0123456789abcdef"[size % 16];
    while (size /= 16);
    buffer_append(out, digits + at, sizeof digits - at);
}

/* What is in x->out becomes the next chunk (RFC 9112, 7.1); to HTTP/1.0, bytes up to the connection's end. */
static void frame(Stream *stream) {
    Exchange *x = stream->x;
    buffer_clear(&stream->wire);
    stream->sent = 0;
    if (x->chunked) write_chunk_size(&stream->wire, x->out.size);
    buffer_slice(&stream->wire, buffer_view(&x->out));
    if (x->chunked) buffer_text(&stream->wire, "\r\n");
    stream->wire.failed |= x->out.failed;
    buffer_clear(&x->out);
}

/* ---- one stream, by the writer's thread ---- */

/* False: the client takes no more for now, or is gone (state). */
static bool send_wire(Stream *stream, int64_t now) {
    while (stream->sent < stream->wire.size) {
        const ssize_t sent = send(stream->socket, stream->wire.data + stream->sent, stream->wire.size - stream->sent,
            MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK) stream->state = STREAM_LOST;
            return false;
        }
        stream->sent += (size_t)sent;
    }
    if (stream->wire.size > 0 && now - stream->last_touch_ns > TOUCH_MS * INT64_C(1000000)) {
        stream->last_touch_ns = now;
        reply_touch(stream->x);
    }
    return true;
}

/* Sending finds out that a client is gone, but there may be nothing to send. */
static void look_for_client(Stream *stream, int64_t now) {
    if (now - stream->last_look_ns < PERIOD_MS * INT64_C(1000000)) return;
    stream->last_look_ns = now;
    if (reply_client_gone(stream->x)) stream->state = STREAM_LOST;
}

static void advance(Stream *stream) {
    Exchange *x = stream->x;
    const int64_t now = clock_ns();
    look_for_client(stream, now);
    while (stream->state == STREAM_RUNS && send_wire(stream, now)) {
        buffer_clear(&stream->wire);
        stream->sent = 0;
        if (x->ended && x->out.size == 0) {
            stream->state = STREAM_ENDED;
            return;
        }
        if (!x->ended) collect_events(x);
        if (x->out.size == 0 && now - stream->last_event_ns > HEARTBEAT_S * INT64_C(1000000000))
            buffer_text(&x->out, x->endpoint->heartbeat ? x->endpoint->heartbeat : "");
        if (x->out.size == 0 && !x->out.failed) return;
        stream->last_event_ns = now;
        frame(stream);
        if (stream->wire.failed) stream->state = STREAM_LOST;
    }
}

/* ---- the thread ---- */

/* Takes out what has ended; under the mutex. */
static void sweep(StreamWriter *writer) {
    for (Stream **link = &writer->first; *link;) {
        Stream *stream = *link;
        if (stream->state == STREAM_RUNS) {
            link = &stream->next;
            continue;
        }
        *link = stream->next;
        stream->x = NULL;
        condition_signal(&stream->changed);
    }
}

static void *write_streams(void *argument) {
    StreamWriter *writer = argument;
    mutex_lock(&writer->mutex);
    while (!writer->stopping) {
        if (!writer->woken && !writer->first)
            condition_wait(&writer->wake, &writer->mutex);
        else if (!writer->woken)
            condition_wait_ms(&writer->wake, &writer->mutex, PERIOD_MS);
        writer->woken = false;
        Stream *first = writer->first; /* what comes later stands in front of it */
        mutex_unlock(&writer->mutex);
        for (Stream *stream = first; stream; stream = stream->next) advance(stream);
        mutex_lock(&writer->mutex);
        sweep(writer);
    }
    mutex_unlock(&writer->mutex);
    return NULL;
}

StreamWriter *stream_writer_open(Error *error) {
    StreamWriter *writer = calloc(1, sizeof *writer);
    if (!writer) {
        fail(error, ERROR_MEMORY, "no memory for the writer of streams");
        return NULL;
    }
    mutex_init(&writer->mutex);
    condition_init(&writer->wake);
    if (thread_start(&writer->thread, write_streams, writer, "streams", error)) return writer;
    condition_destroy(&writer->wake);
    mutex_destroy(&writer->mutex);
    free(writer);
    return NULL;
}

void stream_writer_close(StreamWriter *writer) {
    if (!writer) return;
    mutex_lock(&writer->mutex);
    CHECK(!writer->first);
    writer->stopping = true;
    condition_signal(&writer->wake);
    mutex_unlock(&writer->mutex);
    thread_join(writer->thread);
    condition_destroy(&writer->wake);
    mutex_destroy(&writer->mutex);
    free(writer);
}

void stream_writer_wake(void *argument) {
    StreamWriter *writer = argument;
    mutex_lock(&writer->mutex);
    const bool asleep = !writer->woken && writer->first;
    writer->woken = writer->woken || writer->first;
    mutex_unlock(&writer->mutex);
    if (asleep) condition_signal(&writer->wake);
}

bool stream_write(StreamWriter *writer, Exchange *x) {
    Stream stream = {.x = x, .socket = reply_socket(x), .last_event_ns = clock_ns(), .last_look_ns = clock_ns()};
    condition_init(&stream.changed);
    const int on = 1; /* small events must not wait for an answer to the one before */
    (void)setsockopt(stream.socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (x->out.size > 0) frame(&stream); /* the opening events */
    mutex_lock(&writer->mutex);
    stream.next = writer->first;
    writer->first = &stream;
    writer->woken = true;
    condition_signal(&writer->wake);
    while (stream.x) condition_wait(&stream.changed, &writer->mutex);
    mutex_unlock(&writer->mutex);
    condition_destroy(&stream.changed);
    buffer_free(&stream.wire);
    return stream.state == STREAM_ENDED;
}
