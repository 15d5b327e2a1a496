/* How long a request may take: what the server allows (--request-timeout, --queue-timeout), and what its client says it
 * waits for (the header x-request-timeout, in seconds). */
#pragma once
#include "server/exchange.h"

/* From the headers; false: x-request-timeout is no number of seconds. */
NODISCARD bool deadlines_set(Exchange *x, ApiError *error);
/* When the time of a request that waits for its turn is over; 0: never. */
int64_t deadlines_next_ns(const Exchange *x);
/* Whether the time is over; the error says which. waits: the request is in the queue still. */
bool deadlines_over(const Exchange *x, bool waits, ApiError *error);
/* Whether an answer ends before it is whole, as the server stops or its time is over; the error says which. */
bool deadlines_must_end(const Exchange *x, ApiError *error);
