#include "server/api/resumable.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/sha256.h"
#include "base/thread.h"
#include "server/http/query.h"
#include "server/http/response.h"

enum { WAIT_MS = 100, HEARTBEAT_S = 10, PIECE_BYTES = 64 << 10 };

struct Resumable {
    Resumables *all;
    Resumable *next;
    char id[COMPLETION_ID_MAX];
    uint8_t key[SHA256_BYTES]; /* digest of the API key that began it; of no bytes: none was sent */
    int owners;                /* the writer and the readers */
    int readers;               /* readers among the owners */
    int64_t keep_ns;
    int64_t seen_ns; /* when a reader was here last */
    int64_t ended_ns;
    Buffer log;     /* events, each with its number */
    int64_t events; /* so far */
    bool ended, whole, cancelled;
    bool cut; /* the log was too long, and is gone */
};

struct Resumables {
    Mutex mutex;       /* guards all that follows, and the streams */
    Condition changed; /* a stream has grown or ended */
    Resumable *first;  /* newest first */
    int count;
    size_t bytes; /* bytes of the logs */
};

Resumables *resumables_open(Error *error) {
    Resumables *all = calloc(1, sizeof *all);
    if (!all) {
        fail(error, ERROR_MEMORY, "no memory for the resumable streams");
        return NULL;
    }
    mutex_init(&all->mutex);
    condition_init(&all->changed);
    return all;
}

/* ---- keeping; under the mutex ---- */

static void drop_log(Resumable *stream) {
    stream->all->bytes -= stream->log.size;
    buffer_free(&stream->log);
}

static void remove_stream(Resumable **link) {
    Resumable *stream = *link;
    *link = stream->next;
    stream->all->count--;
    drop_log(stream);
    free(stream);
}

static bool is_over(const Resumable *stream, int64_t now) {
    const int64_t since = stream->ended_ns > stream->seen_ns ? stream->ended_ns : stream->seen_ns;
    return stream->owners == 0 && (stream->cancelled || stream->cut || now - since > stream->keep_ns);
}

static void sweep(Resumables *all) {
    const int64_t now = clock_ns();
    for (Resumable **link = &all->first; *link;) {
        if (is_over(*link, now))
            remove_stream(link);
        else
            link = &(*link)->next;
    }
}

/* The oldest that has ended and is read by none gives way; false: there is none. */
static bool evict(Resumables *all) {
    Resumable **oldest = NULL;
    for (Resumable **link = &all->first; *link; link = &(*link)->next)
        if ((*link)->owners == 0) oldest = link;
    if (oldest) remove_stream(oldest);
    return oldest;
}

static void release(Resumable *stream) {
    stream->owners--;
    sweep(stream->all);
}

void resumables_close(Resumables *all) {
    if (!all) return;
    while (evict(all)) {}
    CHECK(!all->first);
    condition_destroy(&all->changed);
    mutex_destroy(&all->mutex);
    free(all);
}

/* ---- the writer's side ---- */

static void digest_key(const char *key, uint8_t out[SHA256_BYTES]) {
    Sha256 sha;
    sha256_begin(&sha);
    if (key) sha256_add(&sha, key, strlen(key));
    sha256_end(&sha, out);
}

static bool read_keep(const char *given, int64_t *seconds, ApiError *error) {
    char *end;
    *seconds = strtoll(given, &end, 10);
    if (end != given && !*end && *seconds >= 1 && *seconds <= RESUMABLE_SECONDS_MAX) return true;
    return api_fail(error, 400, "invalid_value", "x-stream-keep",
        "The header x-stream-keep must be a number of seconds from 1 to %d.", RESUMABLE_SECONDS_MAX);
}

bool resumable_begin(Exchange *x, ApiError *error) {
    const char *given = http_request_header(x->request, "x-stream-keep");
    Resumables *all = x->server->resumables;
    int64_t seconds;
    if (!given) return true;
    if (!read_keep(given, &seconds, error)) return false;
    Resumable *stream = calloc(1, sizeof *stream);
    if (!stream) return api_out_of_memory(error);
    stream->all = all;
    stream->owners = 1;
    stream->keep_ns = seconds * INT64_C(1000000000);
    memcpy(stream->id, x->id, sizeof stream->id);
    digest_key(x->key, stream->key);
    mutex_lock(&all->mutex);
    sweep(all);
    const bool room = all->count < RESUMABLES_MAX || evict(all);
    if (room) {
        stream->next = all->first;
        all->first = stream;
        all->count++;
        x->resumable = stream;
    }
    mutex_unlock(&all->mutex);
    if (!room) free(stream);
    return true;
}

/* Appends to the log, as long as there is room. */
static void keep(Resumable *stream, Slice text) {
    Resumables *all = stream->all;
    if (stream->cut) return;
    while (all->bytes + text.size > RESUMABLES_BYTES_MAX && evict(all)) {}
    const bool room =
        stream->log.size + text.size <= RESUMABLE_BYTES_MAX && all->bytes + text.size <= RESUMABLES_BYTES_MAX;
    const size_t before = stream->log.size;
    if (room) buffer_slice(&stream->log, text);
    if (room && !stream->log.failed) {
        all->bytes += stream->log.size - before;
        return;
    }
    stream->log.size = before;
    drop_log(stream);
    stream->cut = true;
}

/* The end of the event that begins there: behind its blank line. No event holds a blank line, as JSON escapes them. */
static size_t event_size(const char *at, size_t size) {
    const char *end = memmem(at, size, "\n\n", 2);
    return end ? (size_t)(end - at) + 2 : size;
}

void resumable_add(Resumable *stream, Slice events, Buffer *numbered) {
    const size_t start = numbered->size;
    mutex_lock(&stream->all->mutex);
    for (size_t at = 0, size; at < events.size; at += size) {
        size = event_size(events.data + at, events.size - at);
        if (events.data[at] != ':') buffer_printf(numbered, "id: %" PRId64 "\n", ++stream->events);
        buffer_append(numbered, events.data + at, size);
    }
    if (events.size && events.data[0] != ':') keep(stream, (Slice){numbered->data + start, numbered->size - start});
    condition_broadcast(&stream->all->changed);
    mutex_unlock(&stream->all->mutex);
}

bool resumable_cancelled(Resumable *stream) {
    mutex_lock(&stream->all->mutex);
    const bool cancelled = stream->cancelled;
    mutex_unlock(&stream->all->mutex);
    return cancelled;
}

bool resumable_wanted(Resumable *stream, int64_t lost_ns) {
    mutex_lock(&stream->all->mutex);
    const int64_t since = stream->seen_ns > lost_ns ? stream->seen_ns : lost_ns;
    const bool waited_for = stream->readers > 0 || clock_ns() - since <= stream->keep_ns;
    const bool wanted = !stream->cancelled && !stream->cut && waited_for;
    mutex_unlock(&stream->all->mutex);
    return wanted;
}

void resumable_end(Resumable *stream, bool whole) {
    if (!stream) return;
    Resumables *all = stream->all;
    mutex_lock(&all->mutex);
    stream->ended = true;
    stream->whole = whole;
    stream->ended_ns = clock_ns();
    condition_broadcast(&all->changed);
    release(stream);
    mutex_unlock(&all->mutex);
}

/* ---- the readers' side ---- */

/* The number of the last event that the client has. */
static bool read_after(const Exchange *x, int64_t *after, ApiError *error) {
    const char *header = http_request_header(x->request, "Last-Event-ID");
    char *end = NULL;
    const int64_t last = header ? strtoll(header, &end, 10) : 0;
    if (header && (end == header || *end || last < 0))
        return api_fail(error, 400, "invalid_value", "after", "Invalid 'Last-Event-ID': want the number of an event.");
    return query_number(x, "after", last, after, error);
}

/* Takes a stream for a reader; NULL: there is none of that id that was begun with the reader's key. */
static Resumable *take_stream(const Exchange *x, Slice id) {
    Resumables *all = x->server->resumables;
    uint8_t key[SHA256_BYTES];
    digest_key(x->key, key);
    mutex_lock(&all->mutex);
    sweep(all);
    Resumable *found = all->first;
    while (found && !slice_is(id, found->id)) found = found->next;
    if (found && (found->cut || found->cancelled || memcmp(found->key, key, sizeof key) != 0)) found = NULL;
    if (found) {
        found->owners++;
        found->readers++;
    }
    mutex_unlock(&all->mutex);
    return found;
}

static void give_back_stream(Resumable *stream) {
    Resumables *all = stream->all;
    mutex_lock(&all->mutex);
    stream->readers--;
    stream->seen_ns = clock_ns();
    release(stream);
    mutex_unlock(&all->mutex);
}

/* Where in the log the events behind number `after` begin. */
static size_t offset_of(Resumable *stream, int64_t after) {
    size_t at = 0;
    mutex_lock(&stream->all->mutex);
    for (int64_t i = 0; i < after && at < stream->log.size; i++)
        at += event_size(stream->log.data + at, stream->log.size - at);
    mutex_unlock(&stream->all->mutex);
    return at;
}

typedef enum ReadResult { READ_MORE, READ_WHOLE, READ_CUT } ReadResult;

/* Appends the next piece of the stream to out; waits a moment if there is none yet. */
static ReadResult read_on(Resumable *stream, size_t *offset, Buffer *out) {
    Resumables *all = stream->all;
    mutex_lock(&all->mutex);
    if (*offset >= stream->log.size && !stream->ended) condition_wait_ms(&all->changed, &all->mutex, WAIT_MS);
    const size_t left = stream->log.size > *offset ? stream->log.size - *offset : 0;
    const size_t size = left < PIECE_BYTES ? left : PIECE_BYTES;
    if (size) buffer_append(out, stream->log.data + *offset, size);
    *offset += size;
    const bool over = stream->cut || stream->cancelled || (stream->ended && *offset >= stream->log.size);
    const ReadResult result = !over ? READ_MORE : stream->whole && !stream->cut ? READ_WHOLE : READ_CUT;
    mutex_unlock(&all->mutex);
    return result;
}

static bool send_events(Exchange *x, Resumable *stream, int64_t after) {
    Buffer out = {0};
    size_t offset = offset_of(stream, after);
    int64_t told_ns = clock_ns();
    ReadResult result = READ_MORE;
    response_stream_head(x);
    bool ok = true;
    while (ok && result == READ_MORE && !server_stopped(x->server) && !response_client_gone(x)) {
        buffer_clear(&out);
        result = read_on(stream, &offset, &out);
        const int64_t now = clock_ns();
        if (!out.size && now - told_ns > HEARTBEAT_S * INT64_C(1000000000)) buffer_text(&out, ": waiting\n\n");
        if (out.size) told_ns = now;
        response_stream_chunk(x, buffer_view(&out), result == READ_WHOLE);
        ok = !out.failed && response_send(x);
    }
    buffer_free(&out);
    return ok && result == READ_WHOLE;
}

static bool respond_unknown(Exchange *x) {
    ApiError error;
    api_fail(&error, 404, "stream_not_found", NULL, "There is no such stream, or it is kept no longer.");
    return response_error(x, &error);
}

bool answer_resumed(Exchange *x, Slice id) {
    ApiError error;
    int64_t after;
    if (!read_after(x, &after, &error)) return response_error(x, &error);
    Resumable *stream = take_stream(x, id);
    if (!stream) return respond_unknown(x);
    const bool ok = send_events(x, stream, after);
    give_back_stream(stream);
    return ok;
}

bool answer_stream_cancel(Exchange *x, Slice id) {
    Resumable *stream = take_stream(x, id);
    if (!stream) return respond_unknown(x);
    mutex_lock(&stream->all->mutex);
    stream->cancelled = true;
    condition_broadcast(&stream->all->changed);
    mutex_unlock(&stream->all->mutex);
    give_back_stream(stream);
    Buffer body = {0};
    buffer_text(&body, "{\"cancelled\":true}");
    return response_json(x, 200, &body);
}
