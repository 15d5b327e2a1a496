/* Streamed answers: one thread turns what the engine has produced into events and writes them to all clients. A step
 * that gives eight streams a token then wakes one thread instead of eight. Clients that do not take their events are
 * tried again later and never waited for. */
#pragma once
#include "server/exchange.h"

typedef struct StreamWriter StreamWriter;
NODISCARD StreamWriter *stream_writer_open(Error *error);
void stream_writer_close(StreamWriter *writer); /* no stream may be left */
/* There may be something new: from any thread, in a moment. */
void stream_writer_wake(void *writer);

/* An answer in events; those in x->out come first. Returns when the last one is out, before the end of the body. False:
 * the client is gone. */
bool stream_write(StreamWriter *writer, Exchange *x);
