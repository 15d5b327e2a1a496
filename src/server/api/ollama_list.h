/* Ollama's endpoints about models. */
#pragma once
#include "server/exchange.h"

bool answer_ollama_tags(Exchange *x, Slice rest); /* GET /api/tags */
bool answer_ollama_ps(Exchange *x, Slice rest);   /* GET /api/ps: loaded models */
/* POST /api/chat and /api/generate. */
bool answer_ollama(Exchange *x, Slice rest);
bool answer_ollama_version(Exchange *x, Slice rest); /* GET /api/version */
bool answer_ollama_show(Exchange *x, Slice rest);    /* POST /api/show {"model": "…"} */
