/* server/http/: connections, the bytes of requests and responses, and their limits. Nothing here knows an API.
 *
 * The HTTP side of a server: start listening, stop. One thread holds all connections: it reads requests, sends answers
 * and ends what dawdles. A request that is whole is answered by a thread of its own, out of a pool, so that nobody
 * waits for what another one's takes. */
#pragma once
#include "server/exchange.h"

enum {
    CONNECTIONS_MAX = 16384, /* more wait in the listener's queue */
    ANSWERS_MAX = 512,       /* of the engine, at once, until they are out; one more is asked to come again */
    OTHER_ANSWERS = 16,      /* than the engine's, beside as many */
    PROBE_ANSWERS = 8,       /* /health and /metrics, when all those threads work */
    HEAD_DEADLINE_S = 10,    /* from a connection's, or a request's first byte to the end of its headers */
    BODY_DEADLINE_S = 60,    /* from there to the end of its body */
    IDLE_DEADLINE_S = 60,    /* between requests */
    READER_DEADLINE_S = 120, /* without taking any of an answer */
    LINGER_S = 2,            /* after a last answer, so that a client that still sends can read it */
};

/* listener: a socket that listens already, its own from now on; −1: it opens one. */
NODISCARD bool http_start(Server *server, int listener, Error *error);
/* Takes a socket that is connected already; false: no memory, and it is closed. */
NODISCARD bool http_adopt(Server *server, int fd);
/* Certificate and key anew, for connections that come from now on; false: it stays as it was. */
NODISCARD bool http_reload(Server *server, Error *error);
/* Nobody is accepted any more: who connects waits in the queue of the socket, */
void http_drain(Server *server);
int http_listener(const Server *server); /* which this is */
void http_stop(Server *server);          /* returns when no request is being answered */
