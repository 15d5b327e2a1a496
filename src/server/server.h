/* server/: the OpenAI API over HTTP/1.1, strictly and within limits (sizes, times, Host, Origin, key); requests checked
 * field by field; the shapes of answers and events. Here lives what a client can see on the wire; what an answer says
 * is made in chat/. */
#pragma once
#include "base/error.h"
#include "chat/models.h"
#include "server/api/params.h"

typedef struct ServerOptions {
    const char *host;                      /* address to bind; "127.0.0.1" */
    int port;                              /* 0: any free one */
    Slice api_keys;                        /* one per line (keys_read); NULL: none is asked for (only on loopback) */
    const char *tls_certificate, *tls_key; /* PEM files; NULL: no TLS */
    const char *mcp_origins;               /* that the app may connect to, separated by spaces; NULL: none */
    bool allow_pull;                       /* clients may have models fetched from the hub */
    bool open_metrics;                     /* /metrics wants no key */
    bool log_requests;         /* a line of the log for each; false: for none that is not asked for in detail */
    int64_t request_timeout_s; /* for a request from its first byte to the end of its answer; 0: any */
    int64_t queue_timeout_s;   /* and to the beginning of its computation; 0: any */
    int drain_s;               /* for answers under way when the server is closed */
    RequestDefaults defaults;
    ModelsOptions models; /* each model's name is its id in /v1/models */
    /* Of a server in the place of one that was retired: why that was (copied), and the socket that listens already, its
     * own from now on. Requests then wait until it has loaded, instead of being refused. NULL: it is none. */
    const char *restarted;
    int listener;
} ServerOptions;

typedef struct Server Server;
/* Listens, so that a probe hears that it loads, and loads. */
NODISCARD Server *server_open(const ServerOptions *options, Error *error);
/* Reads the certificate and its key anew, for connections that come from now on, and takes these keys (NULL: keeps
 * those it has). On failure everything stays as it was. Thread: any, one at a time. */
NODISCARD bool server_reload(Server *server, Slice api_keys, Error *error);
int server_port(const Server *server);
void server_close(Server *server); /* refuses new work, ends what runs, joins */
/* /health tells this beside a status that is not well, from now on. Thread: any. */
void server_explain(Server *server, const char *reason);
/* For another server to take its place: requests are refused, what runs may finish for a moment, and who connects waits
 * in the queue of the socket, which this returns. Nothing else is let go: the process is to become another program. */
int server_drain(Server *server, const char *reason);
