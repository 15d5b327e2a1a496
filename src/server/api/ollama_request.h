/* Requests of Ollama's API, rewritten as chat completions. */
#pragma once
#include "server/api/params.h"

/* As params_read_chat: of /api/chat and of /api/generate. */
NODISCARD bool ollama_read_chat(ApiRequest *request, const Json *body, ApiError *error);
NODISCARD bool ollama_read_generate(ApiRequest *request, const Json *body, ApiError *error);
