/* Answers on an exchange's connection, and what can be known of the client. */
#pragma once
#include "server/exchange.h"

/* These write to x->reply, which the connection sends. False: there is no memory to answer with. */
bool reply_json(Exchange *x, int status, Buffer *body);       /* takes the buffer */
bool reply_text(Exchange *x, const char *type, Buffer *body); /* 200; takes the buffer */
/* status 200 or 304, which has no body. headers: whole lines. bytes: borrowed. */
bool reply_file(Exchange *x, int status, const char *type, const char *headers, Slice bytes);
bool reply_error(Exchange *x, const ApiError *error);

/* An answer in pieces: its head, then chunks, which may be empty; the last one ends it. */
void reply_stream_head(Exchange *x);
void reply_stream_chunk(Exchange *x, Slice bytes, bool last);
/* Sends x->reply and waits until the client has taken it; false: it is gone. */
bool reply_send(Exchange *x);
/* Sends what the client takes at once of the bytes from *sent on; false: it is gone. */
bool reply_send_some(struct Transport *transport, const Buffer *bytes, size_t *sent);
bool reply_client_gone(const Exchange *x);
