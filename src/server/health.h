/* GET /health: what probes ask, and SwiftLM's capabilities. */
#pragma once
#include "server/exchange.h"

/* Status 200 is "ok"; 503: "loading" (the models, at the start), "draining" (a shutdown), "damaged" (a model's files
 * cannot be read), "stalled" (a step takes too long to be well). Who has no key hears no more than how busy it is. */
bool answer_health(Exchange *x, Slice rest);
