/* The history of the web app over HTTP: chats and messages of several devices (history/history.h). 404 history_off
 * where the server has none. */
#pragma once
#include "server/exchange.h"

/* GET /v1/history: its name and the number of its last change. */
bool answer_history(Exchange *x, Slice rest);
/* GET /v1/history/changes?after=N&limit=N: what has changed since. */
bool answer_history_changes(Exchange *x, Slice rest);
/* POST /v1/history/changes {"items":[…]}: stores what is newer. */
bool answer_history_push(Exchange *x, Slice rest);
