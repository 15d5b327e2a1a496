/* The HTTP server: the OpenAI API over an engine. libmicrohttpd behind guards (sizes, times, Host, Origin, key). */
#pragma once
#include "base/error.h"
#include "engine/engine.h"

typedef struct ServerOptions {
    const char *host;       /* address to bind; "127.0.0.1" */
    int port;               /* 0: any free one */
    const char *api_key;    /* NULL: none (only on loopback) */
    const char *model_name; /* id in /v1/models */
    const char *directory;  /* for tokenizer and template */
    EngineOptions engine;
} ServerOptions;

typedef struct Server Server;
NODISCARD Server *server_open(const ServerOptions *options, Error *error); /* loads, binds, listens */
int server_port(const Server *server);
void server_close(Server *server); /* refuses new work, ends what runs, joins */
