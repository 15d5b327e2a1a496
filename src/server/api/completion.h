/* A generation for any API: read, check, submit, then respond at once or as a stream. */
#pragma once
#include "server/api/endpoint.h"

bool completion_answer(Exchange *x, const Endpoint *endpoint);
/* Responds with the number of prompt tokens: {"input_tokens": …}. */
/* POST /apply-template: {"prompt"}, the prompt of a chat with its control tokens spelled. */
bool completion_render(Exchange *x, const Endpoint *endpoint);
bool completion_count(Exchange *x, const Endpoint *endpoint);
void completion_close(Exchange *x); /* frees the generation's members; fine for other exchanges */
