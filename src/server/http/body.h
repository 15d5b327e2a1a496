/* A request's body on its way in: bounded alone, and together with the bodies of all others that are being read or
 * understood. What is made of one on the way to its prompt is bounded by its size. */
#pragma once
#include "server/exchange.h"

enum {
    BODY_BYTES_MAX = 32 << 20,
    BODIES_BYTES_MAX = 64 << 20, /* of all: one more is asked to come again */
    BODY_DISCARD_MAX = 64 << 20, /* of a body that is not kept: then the connection ends */
    BODY_MADE_PER_BYTE = 32,     /* arena: "1," is a node of 16 bytes as it is read, and another for the template */
    BODY_MADE_BYTES_LEAST = 1 << 20,
    TEXT_MADE_PER_BYTE = 40, /* with what tokenizing takes for a word without end */
    TEXT_MEMORY_PART = 16,   /* of the machine's */
    TEXT_BYTES_LEAST = 256 << 20,
};

/* A body that is whole, on its way to tokens: false when what is made of it and of others would be too much. One alone
 * is never too much. */
NODISCARD bool body_admit(Exchange *x, ApiError *error);
/* The same of bytes that are made when the body is gone; until the exchange ends. */
NODISCARD bool body_hold(Exchange *x, size_t bytes, ApiError *error);
size_t body_text_max(void); /* bytes for what is made of bodies: a part of the machine's memory */
/* From the headers: false when a body of so many bytes would not be taken. */
NODISCARD bool body_fits(const Server *server, uint64_t bytes, ApiError *error);
/* A piece that has arrived. Only a POST's is kept: that of a GET means nothing (RFC 9110, 9.3.1) and may need no key.
 * What cannot be taken sets x->refusal. False: it is time to hang up, and x->refusal says why. */
NODISCARD bool body_take(Exchange *x, const char *data, size_t size);
/* The whole body, which must be a JSON object. */
const Json *body_object(const Exchange *x, Arena *arena, ApiError *error);
/* Of a body whose only argument is `model`: its name. */
NODISCARD bool body_model(const Exchange *x, Arena *arena, Slice *model, ApiError *error);
/* A body that stays until the exchange ends, with `bytes` of what was made of it. */
void body_keep(Exchange *x, size_t bytes);
void body_free(Exchange *x); /* its memory is for others now */
