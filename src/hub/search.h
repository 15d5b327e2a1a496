#pragma once
#include "hub/http.h"

/* At most limit hits into hits, their names in the arena. */
NODISCARD bool hub_search_with(HttpClient *client, const char *text, HubOrder order, int limit, HubHit *hits,
    size_t *count, Arena *arena, Error *error);
