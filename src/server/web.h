/* The web app: files of app/dist, which are part of the binary. They need no key and no model. Every answer of this
 * file carries the page's content security policy, so the app loads nothing from another site. */
#pragma once
#include "server/exchange.h"

/* The route of the app's page when the request asks for / as HTML; NULL: it does not. */
const struct Route *web_page(const Exchange *x);
bool answer_asset(Exchange *x, Slice name);  /* GET /assets/NAME */
bool answer_worker(Exchange *x, Slice rest); /* GET /sw.js */
