/* Request bodies: bounded one by one and together. The memory for parsing a body is bounded by its size. */
#pragma once
#include "server/exchange.h"

enum {
    BODY_BYTES_MAX = 32 << 20,
    BODIES_BYTES_MAX = 64 << 20, /* all bodies that are held; one more gets a 503 */
    BODY_DISCARD_MAX = 64 << 20, /* bytes of a body that is not kept, before the connection is closed */
    BODY_MADE_PER_BYTE = 32,     /* arena: "1," is a node of 16 bytes, and another one for the template */
    BODY_MADE_BYTES_LEAST = 1 << 20,
    TEXT_MADE_PER_BYTE = 40, /* including tokenization of a very long word */
    TEXT_MEMORY_PART = 16,   /* divisor of the machine's memory */
    TEXT_BYTES_LEAST = 256 << 20,
};

/* Reserves memory for parsing a complete body; false: too much is reserved already. A single request is always
 * admitted. */
NODISCARD bool body_admit(Exchange *x, ApiError *error);
/* Reserves `bytes` until the exchange ends. */
NODISCARD bool body_hold(Exchange *x, size_t bytes, ApiError *error);
size_t body_text_max(void); /* limit of all reservations: a part of the machine's memory */
/* Whether a body of this announced size would be accepted. */
NODISCARD bool body_fits(const Server *server, uint64_t bytes, ApiError *error);
/* Takes a received piece. Only bodies of POST requests are kept (RFC 9110, 9.3.1). A piece that cannot be kept sets
 * x->refusal. False: close the connection, for the reason in x->refusal. */
NODISCARD bool body_take(Exchange *x, const char *data, size_t size);
/* Parses the body, which must be a JSON object; NULL: error. */
const Json *body_object(const Exchange *x, Arena *arena, ApiError *error);
/* The name in a body whose only member is `model`. */
NODISCARD bool body_model(const Exchange *x, Arena *arena, Slice *model, ApiError *error);
/* Reduces the reservation to `bytes`, for a body that is kept until the exchange ends. */
void body_keep(Exchange *x, size_t bytes);
void body_free(Exchange *x); /* releases the body and its reservation */
