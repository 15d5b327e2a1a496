/* GET /health: status for probes, and SwiftLM's capabilities. */
#pragma once
#include "server/exchange.h"

/* Status 200 is "ok"; 503: "loading" (the models, at the start), "draining" (a shutdown), "restarting" (another
 * server takes its place, or it loads in the place of another), "damaged" (a model's files cannot be read, or a device
 * has failed), "stalled" (a step takes too long to be well), with the reason if one is known. Who has no key hears no
 * more than that and how busy it is. */
bool answer_health(Exchange *x, Slice rest);
