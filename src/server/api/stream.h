/* Streams: one thread turns new tokens into events and writes them to all clients, so that a step that produces tokens
 * for eight streams wakes one thread instead of eight. A client whose socket is full is tried again later; the thread
 * never waits for one. */
#pragma once
#include "server/exchange.h"

typedef struct StreamWriter StreamWriter;
NODISCARD StreamWriter *stream_writer_open(Error *error);
void stream_writer_close(StreamWriter *writer); /* all streams must have ended; NULL is fine */
/* Makes the thread look for new tokens. writer: a StreamWriter. Thread: any; does not block. */
void stream_writer_wake(void *writer);

/* Streams the exchange's generation, beginning with the events in x->event_bytes. Returns when the last event has been
 * sent, before the end of the body. False: the client is gone. */
bool stream_write(StreamWriter *writer, Exchange *x);
