/* Admission by headers alone: route, media type, sizes, Host, Origin, key, and room for the request. */
#pragma once
#include "server/exchange.h"

void request_head_take_id(Exchange *x); /* the client's request id, or a new one */
/* Sets x->route. */
NODISCARD bool request_head_check(Exchange *x, ApiError *error);
/* In a restarted server: waits up to a minute until the models are loaded. */
NODISCARD bool request_head_wait(Exchange *x, ApiError *error);
