/* The table of paths and methods. */
#pragma once
#include "server/exchange.h"

typedef struct Route {
    const char *method, *path; /* a path that ends in '/' matches longer ones; the remainder is `rest` */
    bool (*answer)(Exchange *x, Slice rest);
    const struct Endpoint *endpoint; /* NULL: it generates nothing */
    bool public;                     /* needs neither key nor model, so it is answered during loading */
    bool metrics;                    /* needs no key with ServerOptions.open_metrics */
    bool probe;                      /* polled by machines: logged at debug level only */
    bool completes;                  /* submits a request to the engine */
    bool form;                       /* the body is a form, not JSON */
} Route;

/* The API to which an unknown path belongs by its beginning, for the form of the error; NULL: OpenAI's, or path is
 * NULL.
 */
const struct Endpoint *route_endpoint(const char *path);
/* A known path that one was meant for: without a slash at its end, doubled slashes or a doubled or missing /v1. Written
 * to `out`; false: there is none. */
bool route_nearest(const char *url, char *out, size_t size);
/* The route of a preflight request, whose response says what pages of other sites may send. */
const Route *route_preflight(void);
/* NULL: no such route; *allowed is then the method that the path has, or NULL. */
const Route *route_find(const char *url, const char *method, const char **allowed);
