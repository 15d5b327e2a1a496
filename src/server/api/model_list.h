/* The models of the server, as clients see them: /v1/models and what is below it. */
#pragma once
#include "server/exchange.h"

bool answer_models(Exchange *x, Slice rest);
bool answer_model(Exchange *x, Slice name);
/* {"model":"…"}: loads it, or unloads it unless it answers somebody; returns the model as it is then. */
bool answer_load(Exchange *x, Slice rest);
bool answer_unload(Exchange *x, Slice rest);

/* 404 with the names that there are. */
bool model_unknown(const Server *server, Slice name, ApiError *error);
/* As models_take, within the request's time; its holder releases it. The details of a failure, which name files, go to
 * the log. */
NODISCARD ChatModel *model_take(const Exchange *x, Slice name, ApiError *error);
