/* Models of the hub, for clients that may have them downloaded. */
#pragma once
#include "server/exchange.h"

/* POST /v1/models/search {"query","sort","limit"}; needs --allow-pull. */
bool answer_hub_search(Exchange *x, Slice rest);
