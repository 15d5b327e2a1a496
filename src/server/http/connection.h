/* One client's connection: its requests one after another, as they come, and their answers. All but connection_make is
 * for the thread of connections; a worker borrows the connection while it answers. */
#pragma once
#include "base/thread.h"
#include "server/exchange.h"
#include "server/http/http.h"
#include "server/http/poller.h"
#include "server/http/transport.h"
#include "server/http/workers.h"

enum {
    READ_BYTES = 64 << 10, /* of one connection at a time */
    CLIENT_MAX = 48,
    HEADS_BYTES_MAX = 64 << 20,                          /* of all requests' heads, and what came behind them */
    HEAD_BYTES_FREE = HEADS_BYTES_MAX / CONNECTIONS_MAX, /* that each may have beside them */
    REPLIES_BYTES_MAX = 256 << 20,                       /* of whole answers that clients have not taken */
};

typedef enum ConnectionState {
    READING,   /* a request, or waiting for one */
    ANSWERING, /* by a worker, whose it is */
    SENDING,   /* what is left of the answer */
    LINGERING, /* the answer is out; what still comes is thrown away */
    CLOSED,
} ConnectionState;

typedef struct Connection {
    struct Connection *next, *previous; /* of all */
    struct Connection *next_back;       /* of those that come back from workers */
    struct Http *http;
    Transport transport;
    ConnectionState state;
    int poller; /* that watches it, for */
    PollerWay way;
    char client[CLIENT_MAX]; /* its address */
    int64_t deadline_ns;     /* 0: none */
    HttpRequest request;
    int64_t begun_ns;  /* when it did, or since when the connection waits for it, */
    uint64_t received; /* and its bytes since */
    Exchange *x;       /* from the end of the headers until it is answered */
    bool failed;       /* the answer was given up */
    bool last;         /* the connection ends with it */
    bool counted;      /* in server->answering */
    bool completes;    /* counted in http->completing */
    Buffer ahead;      /* what has come behind the request */
    Buffer reply;
    size_t sent;
    size_t head_bytes, reply_bytes; /* counted in the http's */
} Connection;

typedef struct Http {
    Server *server;
    int listener, poller, wake[2];
    int handshake; /* a poller of those within a handshake, of whom a few get their turn before the others get theirs */
    int max;       /* connections */
    Thread thread;
    Workers *workers;
    Connection *first;
    int count;
    bool crowded;                           /* heads and bodies were so large that their memory is worth giving back */
    size_t head_bytes, reply_bytes;         /* that they hold */
    int completing;                         /* of them, with a request of the engine whose answer is not out */
    int64_t next_deadline_ns, pause_end_ns; /* of accepting; 0: none */
    Mutex lock;                             /* of what follows */
    Connection *back;
    Tls *tls;             /* NULL: none */
    bool stopping;        /* atomic */
    bool draining;        /* atomic: nobody is to be accepted, */
    bool listener_closed; /* and is */
    bool started;
    char bytes[READ_BYTES];
} Http;

/* Of a socket, whose owner it is; NULL: no memory, and the socket is closed. */
Connection *connection_make(Http *http, int fd);
void connection_link(Connection *c);    /* it is one of all now */
void connection_receive(Connection *c); /* what can be read */
/* As far as it goes without waiting; the connection may be gone then. */
void connection_advance(Connection *c);
void connection_answered(Connection *c);  /* a worker is done with it */
void connection_timed_out(Connection *c); /* its deadline is over */
void connection_drop(Connection *c);
void connection_give_back(Connection *c); /* to the thread of connections, from any other */
/* It waits for a request of which nothing has come. */
bool connection_is_idle(const Connection *c);
