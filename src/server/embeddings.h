/* POST /v1/embeddings. */
#pragma once
#include "server/exchange.h"

enum { INPUTS_MAX = 2048 };

bool answer_embeddings(Exchange *x, Slice rest);
