/* Whether models fit this machine, before they are downloaded. */
#pragma once
#include "server/exchange.h"

/* POST /v1/models/fit {"model"}: the plan of a model of this machine, or of the hub's, which needs --allow-pull. */
bool answer_fit(Exchange *x, Slice rest);
