/* A client's connection: its requests one after another, and their responses. All functions but connection_make are
 * called by the thread of connections; a worker borrows the connection while it answers. */
#pragma once
#include "base/thread.h"
#include "server/exchange.h"
#include "server/http/http.h"
#include "server/http/poller.h"
#include "server/http/transport.h"
#include "server/http/workers.h"

enum {
    READ_BYTES = 64 << 10, /* bytes read from one connection at a time */
    CLIENT_MAX = 48,
    HEADS_BYTES_MAX = 64 << 20,                          /* heads of all requests, and bytes received after them */
    HEAD_BYTES_FREE = HEADS_BYTES_MAX / CONNECTIONS_MAX, /* per connection, not counted */
    RESPONSES_BYTES_MAX = 256 << 20,                     /* responses that clients have not read yet */
};

typedef enum ConnectionState {
    READING,   /* a request, or waiting for one */
    ANSWERING, /* owned by a worker */
    SENDING,   /* the rest of the response */
    LINGERING, /* the last response has been sent; received bytes are discarded */
    CLOSED,
} ConnectionState;

typedef struct Connection {
    struct Connection *next, *previous; /* in Http.first */
    struct Connection *next_back;       /* in Http.back */
    struct Http *http;
    Transport transport;
    ConnectionState state;
    int poller;              /* that watches the socket */
    PollerWay way;           /* what it watches for */
    char client[CLIENT_MAX]; /* its address */
    int64_t deadline_ns;     /* 0: none */
    HttpRequest request;
    int64_t begun_ns;  /* when the request began, or the wait for it */
    uint64_t received; /* bytes since begun_ns */
    Exchange *x;       /* from the end of the headers until the response is complete; else NULL */
    bool failed;       /* the response was given up */
    bool last;         /* the connection ends after the response */
    bool counted;      /* in server->answering */
    bool completes;    /* counted in http->completing */
    Buffer ahead;      /* bytes received after the request */
    Buffer response;
    size_t sent;
    size_t head_bytes, response_bytes; /* this connection's share of the counters in Http */
} Connection;

typedef struct Http {
    Server *server;
    int listener, poller, wake[2];
    int handshake; /* poller of connections within a TLS handshake, which are limited per turn */
    int max;       /* largest number of connections */
    Thread thread;
    Workers *workers;
    Connection *first;
    int count;
    bool crowded; /* heads and bodies took so much memory that it is returned to the system afterwards */
    size_t head_bytes, response_bytes; /* sums over all connections */
    int completing;                    /* connections with a generation whose response has not been sent */
    int64_t next_deadline_ns;          /* earliest deadline of a connection; 0: none */
    int64_t pause_end_ns;              /* until then nothing is accepted; 0: no pause */
    Mutex lock;                        /* guards back and tls */
    Connection *back;                  /* connections that workers have given back */
    Tls *tls;                          /* NULL: none */
    bool stopping;                     /* atomic */
    bool draining;                     /* atomic: no connection is accepted */
    bool listener_closed;              /* the thread has stopped watching the listener */
    bool started;
    char bytes[READ_BYTES];
} Http;

/* Takes ownership of the socket. NULL: no memory, and the socket is closed. */
Connection *connection_make(Http *http, int fd);
void connection_link(Connection *c);    /* adds it to Http.first */
void connection_receive(Connection *c); /* reads what has arrived */
/* Continues as far as possible without waiting; may free the connection. */
void connection_advance(Connection *c);
void connection_answered(Connection *c);  /* after a worker has given it back */
void connection_timed_out(Connection *c); /* its deadline has passed */
void connection_drop(Connection *c);
void connection_give_back(Connection *c); /* to the thread of connections. Thread: any */
/* Whether it waits for a request of which no byte has arrived. */
bool connection_is_idle(const Connection *c);
