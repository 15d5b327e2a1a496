/* The course of a completion, the same for both endpoints: read, check, submit, then answer whole or as server-sent
 * events. */
#pragma once
#include "server/api/endpoint.h"

bool completion_answer(Exchange *x, const Endpoint *endpoint);
/* How many tokens the prompt has: {"input_tokens": …}. */
bool completion_count(Exchange *x, const Endpoint *endpoint);
void completion_close(Exchange *x); /* frees what belongs to it; fine for an exchange that is none */
