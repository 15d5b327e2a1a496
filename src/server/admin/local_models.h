/* The models of this machine as clients see them. */
#pragma once
#include "server/exchange.h"

/* GET /v1/models/local: the complete models of the hub's cache. */
bool answer_local(Exchange *x, Slice rest);
/* DELETE /v1/models/local/NAME; needs --allow-pull. 409 while a model of that name is served. */
bool answer_local_remove(Exchange *x, Slice name);
