/* POST /v1/embeddings. */
#pragma once
#include "server/exchange.h"

enum { INPUTS_MAX = 2048 };

enum MHD_Result answer_embeddings(Exchange *x, Slice rest);
