/* Removing models of this machine, for clients that may have others downloaded. */
#pragma once
#include "server/exchange.h"

/* DELETE /v1/models/local/NAME; needs --allow-pull. 409 while a model of that name is served. */
bool answer_local_remove(Exchange *x, Slice name);
