/* JSON that responses of Chat Completions and Completions share. */
#pragma once
#include "server/exchange.h"

/* {"id":"…","object":"<object>","created":…,"model":"…","system_fingerprint":"…" */
void writer_head(Exchange *x, const char *object, Buffer *out);
/* The same as the beginning of an event; `object` is the same for all events of an exchange. */
void writer_event_head(Exchange *x, const char *object, Buffer *out);
void writer_usage(const Exchange *x, Buffer *out);
/* With response_options.obfuscated, appends ,"obfuscation":"…", so that the event that began at byte `start` of out has
 * one of a few sizes. */
void writer_obfuscation(const Exchange *x, size_t start, Buffer *out);
/* ,"timings":{…} with llama.cpp's names, and the format of the answer's KV cache. Several prompts: sums of counts,
 * maxima of times. */
void writer_timings(const Exchange *x, Buffer *out);
/* With response_options.progress, an event about the prefill whenever more prompt tokens have been computed. */
void writer_progress(Exchange *x, Buffer *out);
const char *writer_finish(Finish finish); /* "stop", "length" */
/* A token's bytes as a JSON string (invalid UTF-8 becomes U+FFFD); returns its characters. */
int64_t writer_token(const Exchange *x, int32_t id, Buffer *out);
void writer_logprob(float logprob, Buffer *out);
/* {"content":[…],"refusal":null} of the choice's tokens; takes them. */
void writer_chat_logprobs(const Exchange *x, Choice *choice, Buffer *out);
