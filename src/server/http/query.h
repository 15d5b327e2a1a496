/* Numbers in the query of a request's address. */
#pragma once
#include "server/exchange.h"

/* *out: the number ≥ 0 of `name` in the query, or `absent`. 400 for what is no such number. */
NODISCARD bool query_number(const Exchange *x, const char *name, int64_t absent, int64_t *out, ApiError *error);
