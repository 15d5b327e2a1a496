/* What a request's headers decide alone: route, media type, sizes, Host, Origin, key, and whether there is room for it.
 */
#pragma once
#include "server/exchange.h"

void request_head_take_id(Exchange *x); /* the client's own, or one made up */
/* Sets x->route. */
NODISCARD bool request_head_check(Exchange *x, ApiError *error);
/* Of a server that loads in the place of another, for up to a minute until it has. */
NODISCARD bool request_head_wait(Exchange *x, ApiError *error);
