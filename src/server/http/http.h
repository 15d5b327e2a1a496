/* server/http/: connections, the bytes of requests and responses, and their limits. Nothing here knows an API.
 *
 * Starting and stopping the HTTP server. One thread owns all connections: it reads requests, sends responses and closes
 * connections whose deadline has passed. A complete request is answered by a worker thread of its own. */
#pragma once
#include "server/exchange.h"

enum {
    CONNECTIONS_MAX = 16384, /* more connections wait in the listener's queue */
    ANSWERS_MAX = 512,       /* generations until their response is sent; one more gets a 429 */
    OTHER_ANSWERS = 16,      /* worker threads for other requests */
    PROBE_ANSWERS = 8,       /* worker threads for /health and /metrics when all others are busy */
    HEAD_DEADLINE_S = 10,    /* from the first byte of a connection or request to the end of its headers */
    BODY_DEADLINE_S = 60,    /* from the end of the headers to the end of the body */
    IDLE_DEADLINE_S = 60,    /* between requests */
    READER_DEADLINE_S = 120, /* while a client reads none of its response */
    LINGER_S = 2,            /* after the last response, for clients that are still sending */
};

/* listener: a listening socket, owned by the server from now on; −1: opens one. */
NODISCARD bool http_start(Server *server, int listener, Error *error);
/* Adopts a connected socket; false: no memory, and the socket is closed. */
NODISCARD bool http_adopt(Server *server, int fd);
/* Reads certificate and key again, for new connections; false: nothing changes. */
NODISCARD bool http_reload(Server *server, Error *error);
void http_drain(Server *server);         /* stops accepting: new connections wait in the listener's queue */
int http_listener(const Server *server); /* the listening socket */
void http_stop(Server *server);          /* returns when no request is being answered */
