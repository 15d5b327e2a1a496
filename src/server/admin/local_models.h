/* The models of this machine as clients see them. */
#pragma once
#include "server/exchange.h"

/* Removes a model of this machine: 403 without --allow-pull, 409 while it is served, 404. *freed_bytes grows. */
NODISCARD bool local_models_remove(const Exchange *x, const char *name, uint64_t *freed_bytes, ApiError *error);

/* GET /v1/models/local: the complete models of the hub's cache. */
bool answer_local(Exchange *x, Slice rest);
/* DELETE /v1/models/local/NAME; needs --allow-pull. 409 while a model of that name is served. */
bool answer_local_remove(Exchange *x, Slice name);
