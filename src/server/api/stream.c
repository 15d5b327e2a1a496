#include "server/api/stream.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/thread.h"
#include "server/http/deadlines.h"
#include "server/api/endpoint.h"
#include "server/http/http.h"
#include "server/admin/metrics.h"
#include "server/http/response.h"
#include "server/api/openai_writer.h"
#include "server/api/resumable.h"

enum {
    PERIOD_MS = 100, /* between looks at clients that are behind, or gone */
    HEARTBEAT_S = 10,
};

typedef enum StreamState { STREAM_RUNS, STREAM_ENDED, STREAM_LOST } StreamState;

/* Lives on the stack of the thread that answers, which waits for the state to change. */
typedef struct Stream {
    struct Stream *next;
    Exchange *x; /* NULL: the stream is over */
    StreamState state;
    Condition changed;
    size_t sent;     /* bytes of x->response */
    bool last;       /* it has the last event */
    int64_t lost_ns; /* time at which the client of a resumable stream left; 0: it is connected */
    int64_t last_event_ns, last_look_ns, last_taken_ns;
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
        x->endpoint->write_failure(x, error, &x->event_bytes);
    } else {
        buffer_text(&x->event_bytes, "data: ");
        api_write_error(&x->event_bytes, error);
        buffer_text(&x->event_bytes, "\n\n");
    }
    generation_cancel(&x->generation); /* it may take long until the client has read this */
    x->ended = true;
    x->record.code = error->code;
}

/* Turns new tokens into events. */
static void collect_events(Exchange *x) {
    Generation *g = &x->generation;
    ApiError error = {0};
    Error why = {0};
    if (!generation_take(g, &why)) {
        api_engine_failed(&error, &why);
        write_error_event(x, &error);
        return;
    }
    metrics_note_tokens(x->server->metrics, x->model_index, g, x->given);
    writer_progress(x, &x->event_bytes);
    for (int i = 0; i < g->choice_count; i++) {
        const Choice *choice = &g->choices[i];
        if (choice->text.size > 0 || choice->events.count > 0 || choice->token_count > 0)
            x->endpoint->write_delta(x, i, &x->event_bytes);
        if (choice->finish == FINISH_NONE || x->given[i].finish) continue;
        x->endpoint->write_finish(x, i, &x->event_bytes);
        x->given[i].finish = true;
    }
    if (!generation_done(g) && deadlines_must_end(x, &error)) write_error_event(x, &error);
    if (!generation_done(g)) return;
    if (x->response_options.include_usage) x->endpoint->write_usage(x, &x->event_bytes);
    buffer_text(&x->event_bytes, x->endpoint->done);
    x->ended = true;
}

/* What is in x->event_bytes becomes the next chunk. */
static void frame(Stream *stream) {
    Exchange *x = stream->x;
    Buffer numbered = {0};
    stream->last = x->ended;
    if (x->resumable) resumable_add(x->resumable, buffer_view(&x->event_bytes), &numbered);
    response_stream_chunk(x, buffer_view(x->resumable ? &numbered : &x->event_bytes), false);
    x->response.failed |= x->event_bytes.failed || numbered.failed;
    buffer_free(&numbered);
    buffer_clear(&x->event_bytes);
}

/* ---- one stream, by the writer's thread ---- */

/* False: the client takes no more for now, or is gone (state). */
static bool send_reply(Stream *stream, int64_t now) {
    Exchange *x = stream->x;
    const size_t before = stream->sent;
    if (x->response.failed || !response_send_some(x->transport, &x->response, &stream->sent))
        stream->state = STREAM_LOST;
    if (stream->sent > before || x->response.size == 0) stream->last_taken_ns = now;
    if (now - stream->last_taken_ns > READER_DEADLINE_S * INT64_C(1000000000)) stream->state = STREAM_LOST;
    if (stream->state == STREAM_LOST || stream->sent < x->response.size) return false;
    buffer_clear(&x->response);
    stream->sent = 0;
    return true;
}

/* Sending finds out that a client is gone, but there may be nothing to send. */
static void look_for_client(Stream *stream, int64_t now) {
    if (now - stream->last_look_ns < PERIOD_MS * INT64_C(1000000)) return;
    stream->last_look_ns = now;
    if (response_client_gone(stream->x)) stream->state = STREAM_LOST;
}

/* Deadlines also apply to clients that do not read: the error event is queued after the unsent events. */
static void end_behind(Stream *stream) {
    Exchange *x = stream->x;
    ApiError error = {0};
    if (x->ended || generation_done(&x->generation) || !deadlines_must_end(x, &error)) return;
    write_error_event(x, &error);
    frame(stream);
}

/* The client is gone, but its answer goes on for a while: its events are kept. */
static void advance_without_client(Stream *stream) {
    Exchange *x = stream->x;
    stream->state = STREAM_RUNS;
    if (!resumable_wanted(x->resumable, stream->lost_ns)) {
        stream->state = STREAM_LOST;
        return;
    }
    collect_events(x);
    if (x->event_bytes.size > 0) frame(stream);
    buffer_clear(&x->response);
    if (x->ended || x->response.failed) stream->state = STREAM_LOST;
}

static void advance(Stream *stream) {
    Exchange *x = stream->x;
    const int64_t now = clock_ns();
    if (stream->lost_ns) {
        advance_without_client(stream);
        return;
    }
    look_for_client(stream, now);
    if (x->resumable && resumable_cancelled(x->resumable)) {
        stream->state = STREAM_LOST;
        return;
    }
    while (stream->state == STREAM_RUNS && send_reply(stream, now)) {
        if (stream->last) {
            stream->state = STREAM_ENDED;
            return;
        }
        collect_events(x);
        if (x->event_bytes.size == 0 && !x->ended && now - stream->last_event_ns > HEARTBEAT_S * INT64_C(1000000000))
            buffer_text(&x->event_bytes, x->endpoint->heartbeat ? x->endpoint->heartbeat : "");
        if (x->event_bytes.size == 0 && !x->ended && !x->event_bytes.failed) return;
        stream->last_event_ns = now;
        frame(stream);
        if (x->response.failed) stream->state = STREAM_LOST;
    }
    if (stream->state == STREAM_RUNS) end_behind(stream);
    if (stream->state != STREAM_LOST || !x->resumable || x->ended || x->response.failed) return;
    stream->lost_ns = now;
    advance_without_client(stream);
}

/* ---- the thread ---- */

/* Removes ended streams. The caller holds the mutex. */
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
        Stream *first = writer->first; /* streams that are added later precede it */
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
    const int64_t now = clock_ns();
    Stream stream = {.x = x, .last_event_ns = now, .last_look_ns = now, .last_taken_ns = now};
    condition_init(&stream.changed);
    response_stream_head(x);
    frame(&stream); /* the opening events */
    mutex_lock(&writer->mutex);
    stream.next = writer->first;
    writer->first = &stream;
    writer->woken = true;
    condition_signal(&writer->wake);
    while (stream.x) condition_wait(&stream.changed, &writer->mutex);
    mutex_unlock(&writer->mutex);
    condition_destroy(&stream.changed);
    return stream.state == STREAM_ENDED;
}
