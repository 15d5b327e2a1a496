/* Numbers and texts in the query of a request's address. */
#pragma once
#include "server/exchange.h"

/* Copies the decoded text of `name` in the query, with its NUL. 400: it is absent, empty, does not fit `size` bytes, or
 * holds a NUL. */
NODISCARD bool query_text(const Exchange *x, const char *name, char *out, size_t size, ApiError *error);
/* *out: the number ≥ 0 of `name` in the query, or `absent`. 400 for what is no such number. */
NODISCARD bool query_number(const Exchange *x, const char *name, int64_t absent, int64_t *out, ApiError *error);
