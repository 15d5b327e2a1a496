/* Pieces of JSON that the shapes of both endpoints share. */
#pragma once
#include "server/exchange.h"

/* {"id":"…","object":"<object>","created":…,"model":"…","system_fingerprint":"…" */
void writer_head(Exchange *x, const char *object, Buffer *out);
/* The same as the beginning of an event; every event of an exchange has the same object. */
void writer_event_head(Exchange *x, const char *object, Buffer *out);
void writer_usage(const Exchange *x, Buffer *out);
/* ,"obfuscation":"…" when it was asked for: the event that began at byte `start` of out, but for its
 * end, gets one of a few sizes. */
void writer_obfuscation(const Exchange *x, size_t start, Buffer *out);
/* ,"timings":{…} with llama.cpp's names, and what the answer's KV cache was like. Several prompts: sums, and the
 * longest times. */
void writer_timings(const Exchange *x, Buffer *out);
/* An event that tells how much of the prompts is read, when that was asked for and is more than last time. */
void writer_progress(Exchange *x, Buffer *out);
const char *writer_finish(Finish finish); /* "stop", "length" */
/* A token's bytes as a JSON string (invalid UTF-8 becomes U+FFFD); returns its characters. */
int64_t writer_token(const Exchange *x, int32_t id, Buffer *out);
void writer_logprob(float logprob, Buffer *out);
/* {"content":[…],"refusal":null} of the choice's tokens, which are taken. */
void writer_chat_logprobs(const Exchange *x, Choice *choice, Buffer *out);
