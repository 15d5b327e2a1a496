/* GET /v1/models, and loading and unloading models. */
#pragma once
#include "server/exchange.h"

bool answer_models(Exchange *x, Slice rest);
bool answer_model(Exchange *x, Slice name);
/* {"model":"…"}: loads the model, or unloads it unless it is in use; responds with its state afterwards. */
bool answer_load(Exchange *x, Slice rest);
bool answer_unload(Exchange *x, Slice rest);

/* Appends the member "architecture" with the modalities, as llama.cpp's server does; nothing for a model that was never
 * loaded. */
void model_architecture(const ModelStatus *status, Buffer *out);

/* A 404 that lists the served models. Returns false. */
bool model_unknown(const Server *server, Slice name, ApiError *error);
/* models_take() within the request's deadline; the caller releases the model. Details of a failure name files, so they
 * go to the log only. Sets x->model_index and the model of x->record. */
NODISCARD ChatModel *model_take(Exchange *x, Slice name, ApiError *error);
