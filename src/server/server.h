/* server/: the OpenAI API over HTTP/1.1, strictly and within limits (sizes, times, Host, Origin, key); requests checked
 * field by field; the shapes of answers and events. Here lives what a client can see on the wire; what an answer says
 * is made in chat/. */
#pragma once
#include "base/error.h"
#include "chat/models.h"
#include "server/params.h"

typedef struct ServerOptions {
    const char *host;                      /* address to bind; "127.0.0.1" */
    int port;                              /* 0: any free one */
    Slice api_keys;                        /* one per line (keys_read); NULL: none is asked for (only on loopback) */
    const char *tls_certificate, *tls_key; /* PEM files; NULL: no TLS */
    bool allow_pull;                       /* clients may have models fetched from the hub */
    RequestDefaults defaults;
    ModelsOptions models; /* each model's name is its id in /v1/models */
} ServerOptions;

typedef struct Server Server;
NODISCARD Server *server_open(const ServerOptions *options, Error *error); /* loads, binds, listens */
int server_port(const Server *server);
void server_close(Server *server); /* refuses new work, ends what runs, joins */
