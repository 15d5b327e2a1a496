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
/* Why a model could not be taken; the details, which name files, go to the log. */
bool model_failed(Slice name, const Error *why, ApiError *error);
