/* Which path is answered by what, and the answers that are no completions. */
#pragma once
#include "server/exchange.h"

typedef struct Route {
    const char *method, *path; /* a path ending in '/' takes what follows it as `rest` */
    bool (*answer)(Exchange *x, Slice rest);
    const struct Endpoint *endpoint; /* of those that make a request of the engine */
    bool public;                     /* needs no key, and no model: it is answered while they load */
    bool metrics;                    /* needs no key where the server says so */
    bool probe;                      /* asked again and again by machines: not worth a line of the log */
    bool completes;                  /* makes a request of the engine */
} Route;

/* NULL: none; *allowed is then the method that the path has, or NULL. */
const Route *route_find(const char *url, const char *method, const char **allowed);
