/* The hub as clients see it: which models are on this machine, and fetching another. */
#pragma once
#include "server/exchange.h"

/* GET /v1/models/local: the whole models of the hub's cache. */
bool answer_local(Exchange *x, Slice rest);
/* POST /v1/models/pull {"model":"ORG/NAME[:FILE][@REVISION]"}: fetches it into the cache, as events of progress. One at
 * a time; it ends with its client, and goes on where it was when it is asked for again. */
bool answer_pull(Exchange *x, Slice rest);
/* Stops and joins the pull of an exchange, if it has one. */
void pull_close(Exchange *x);
