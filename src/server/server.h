/* server/: HTTP/1.1 and the APIs: everything that a client can see on the wire, within limits of size and time. http/
 * holds connections, api/ the APIs, admin/ the endpoints for operators. Prompts and answers are made in chat/. */
#pragma once
#include "base/error.h"
#include "chat/models.h"
#include "engine/expectation.h"
#include "server/api/request.h"

typedef struct ServerOptions {
    const char *host; /* address to bind, such as "127.0.0.1" */
    int port;         /* 0: any free port */
    Slice api_keys;   /* one per line (keys_read); read in server_open only. data NULL: none, on loopback only */
    const char *tls_certificate; /* PEM file; NULL: no TLS */
    const char *tls_key;         /* PEM file; NULL with tls_certificate */
    const char *lan_directory;   /* paired devices (server/lan/devices.h), whose keys open the API, too; NULL: none */
    const char *lan_address;     /* address that devices use */
    const char *mcp_origins;     /* origins that the web app may connect to, separated by spaces; NULL: none */
    const char *allowed_origins; /* origins whose pages may use the API, separated by spaces; "*": all. NULL: none */
    const char *allowed_hosts;   /* further names of this server in the Host header, separated by spaces; "*": any */
    const char *media_hosts;     /* hosts from which images and audio may be fetched, separated by spaces; NULL: none */
    const char *history;         /* directory of the web app's history; NULL: none is kept */
    bool lenient;                /* fields that are not supported are ignored, and named in a response header */
    bool allow_pull;             /* clients may download, convert, load and remove models */
    bool open_metrics;           /* /metrics requires no key */
    bool log_requests;           /* log one line per request; false: at debug level only */
    int64_t request_timeout_s;   /* from a request's first byte to the end of its response; 0: no limit */
    int64_t queue_timeout_s;     /* from a request's first byte to the start of its computation; 0: no limit */
    int drain_s;                 /* time for running answers when the server is closed */
    RequestDefaults defaults;
    const ModelPreset *presets; /* outlive the server; NULL: none */
    int preset_count;
    ModelsOptions models;        /* each model's name is its id in /v1/models; read in server_open only */
    const ModelPlanner *planner; /* plans models that are not loaded; NULL: they are not planned */
    const char *restarted;       /* why another server was retired for this one; copied. NULL: there was none */
    int listener; /* with restarted: the listening socket, owned by the server from now on. Requests wait until the
                     models are loaded, instead of being refused */
} ServerOptions;

/* Whether server_open() could listen there now: asked before models are downloaded or converted, which takes long. */
NODISCARD bool server_check_address(const char *host, int port, Error *error);

typedef struct Server Server;
/* Listens, then loads the models; probes are answered meanwhile. */
NODISCARD Server *server_open(const ServerOptions *options, Error *error);
/* Reads the TLS certificate and its key again, for new connections, and replaces the API keys (data NULL: keeps them).
 * On failure nothing changes. Thread: any, one at a time. */
NODISCARD bool server_reload(Server *server, Slice api_keys, Error *error);
int server_port(const Server *server);
bool server_model(const Server *server, int index, ModelStatus *status); /* models_status() of its models */
void server_close(Server *server); /* refuses new work, ends running answers after drain_s, joins all threads */
/* Begins a pairing: appends the address that a new device opens. Only with lan_directory. */
NODISCARD bool server_invite(Server *server, Buffer *url, Error *error);
/* Sets the reason that /health shows beside an unhealthy status. Thread: any. */
void server_explain(Server *server, const char *reason);
/* Prepares the replacement of the server by another process image: new requests are refused, running answers may finish
 * for a few seconds, and new connections wait in the queue of the listening socket, which is returned. Everything else
 * stays allocated, because the process executes another program. */
int server_drain(Server *server, const char *reason);
