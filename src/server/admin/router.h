/* The routes of llama.cpp's router for models (tools/server/server-models.cpp): the same operations as /v1/models and
 * /v1/jobs, with the states, events and errors that its clients know. */
#pragma once
#include "server/exchange.h"

/* GET /models: served models, those that are being downloaded or loaded, and local ones that may be loaded. */
bool answer_router_models(Exchange *x, Slice rest);
/* POST /models/load {"model"}: begins to load it. */
bool answer_router_load(Exchange *x, Slice rest);
/* POST /models/unload {"model"}: unloads it, or cancels its download or its load. */
bool answer_router_unload(Exchange *x, Slice rest);
/* POST /models {"model"}: begins its download; needs --allow-pull. */
bool answer_router_download(Exchange *x, Slice rest);
/* DELETE /models?model=NAME: removes a model of this machine that is not served, or cancels its download. */
bool answer_router_remove(Exchange *x, Slice rest);
/* GET /models/sse: a stream of changes of these models. It tells nothing of the time before it. */
bool answer_router_events(Exchange *x, Slice rest);
