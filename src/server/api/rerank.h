/* POST /v1/rerank: documents by how well they answer a query, as Cohere's and Jina's APIs, vLLM and llama.cpp have it.
 */
#pragma once
#include "server/exchange.h"

enum { RERANK_DOCUMENTS_MAX = 1024 };

bool answer_rerank(Exchange *x, Slice rest);
