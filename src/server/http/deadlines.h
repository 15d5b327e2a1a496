/* Deadlines of a request: the server's (--request-timeout, --queue-timeout) and the client's (header x-request-timeout,
 * in seconds). */
#pragma once
#include "server/exchange.h"

/* Sets them from the headers; false: x-request-timeout is not a number of seconds. */
NODISCARD bool deadlines_set(Exchange *x, ApiError *error);
/* The deadline of a request that waits in the queue; 0: none. */
int64_t deadlines_next_ns(const Exchange *x);
/* Whether a deadline has passed; the error says which. waits: the request is still queued. */
bool deadlines_over(const Exchange *x, bool waits, ApiError *error);
/* Whether an answer must end early, because the server stops or a deadline has passed; the error says which. */
bool deadlines_must_end(const Exchange *x, ApiError *error);
