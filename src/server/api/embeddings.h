/* POST /v1/embeddings, and /api/embed as Ollama has it. */
#pragma once
#include "server/exchange.h"

enum { INPUTS_MAX = 2048 };

bool answer_embeddings(Exchange *x, Slice rest);
bool answer_embed(Exchange *x, Slice rest);
