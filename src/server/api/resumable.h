/* Resumable streams: the events of an answer are numbered and kept for a while, so that a client whose connection was
 * lost gets the rest by GET /v1/streams/ID?after=N, and the generation goes on meanwhile. A client asks for that with
 * the header x-stream-keep: SECONDS; only the API key that began a stream reads or ends it. Bounded in bytes, streams
 * and time. Thread: any. */
#pragma once
#include "server/exchange.h"

typedef struct Resumable Resumable;   /* one stream; counted owners */
typedef struct Resumables Resumables; /* all of a server */

enum {
    RESUMABLE_BYTES_MAX = 8 << 20,   /* bytes of one stream; a longer one can no longer be resumed */
    RESUMABLES_BYTES_MAX = 64 << 20, /* bytes of all; the oldest ended streams are removed first */
    RESUMABLES_MAX = 1024,           /* streams */
    RESUMABLE_SECONDS_MAX = 24 * 60 * 60,
};

NODISCARD Resumables *resumables_open(Error *error);
void resumables_close(Resumables *all); /* no stream has an owner any more; NULL is fine */

/* Reads the header x-stream-keep. False: it is wrong. Without it, and where there is no room, x->resumable stays NULL.
 */
NODISCARD bool resumable_begin(Exchange *x, ApiError *error);
/* Numbers the events, keeps them, and appends them as they are to be sent. */
void resumable_add(Resumable *stream, Slice events, Buffer *numbered);
/* Whether the generation of a client that is gone since lost_ns (clock_ns) is to go on. */
bool resumable_wanted(Resumable *stream, int64_t lost_ns);
bool resumable_cancelled(Resumable *stream); /* by DELETE */
/* The writer lets go; whole: the last event is in. NULL is fine. */
void resumable_end(Resumable *stream, bool whole);

/* GET /v1/streams/ID?after=N (or the header Last-Event-ID): the events behind number N, and those that come. */
bool answer_resumed(Exchange *x, Slice id);
/* DELETE /v1/streams/ID: the generation ends, its events are forgotten. */
bool answer_stream_cancel(Exchange *x, Slice id);
