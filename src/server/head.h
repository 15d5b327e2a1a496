/* What a request's headers decide alone: route, media type, sizes, Host, Origin, key, and whether there is room for it.
 */
#pragma once
#include "server/exchange.h"

void head_take_request_id(Exchange *x); /* the client's own, or one made up */
/* Sets x->route. */
NODISCARD bool head_check(Exchange *x, const char *url, const char *method, ApiError *error);
uint64_t head_content_length(const Exchange *x); /* what the client announces, however large; 0: nothing */
