/* HTTP responses: whole ones, and chunked streams. */
#pragma once
#include "server/exchange.h"

/* These write to x->response, which the connection sends. False: no memory. */
bool response_json(Exchange *x, int status, Buffer *body);       /* takes the buffer */
bool response_text(Exchange *x, const char *type, Buffer *body); /* 200; takes the buffer */
/* status: 200, or 204 or 304 without a body. type: NULL without a body. headers: complete lines. bytes: borrowed. */
bool response_file(Exchange *x, int status, const char *type, const char *headers, Slice bytes);
bool response_error(Exchange *x, const ApiError *error);

/* A streamed response: its head, then chunks, which may be empty; the last one ends it. */
void response_stream_head(Exchange *x);
void response_stream_chunk(Exchange *x, Slice bytes, bool last);
/* Sends x->response and waits until it has been sent; false: the client is gone. */
bool response_send(Exchange *x);
/* Sends bytes from *sent on as far as the socket accepts them now; false: the client is gone. */
bool response_send_some(struct Transport *transport, const Buffer *bytes, size_t *sent);
bool response_client_gone(const Exchange *x);
