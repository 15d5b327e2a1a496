/* One HTTP request and its answer, from the first header to the last byte. Owned by its connection's thread. */
#pragma once
#include <microhttpd.h>

#include "server/api.h"
#include "server/generation.h"
#include "server/server.h"
#include "text/jinja/template.h"

enum { REQUEST_ID_MAX = 128, COMPLETION_ID_MAX = 48 };

struct Server {
    struct MHD_Daemon *daemon;
    Engine *engine;
    Tokenizer *tokenizer;
    Template *template; /* NULL: the model has none, chat is refused */
    Buffer token_pairs; /* ,"bos_token":"…" … for the template */
    char *model_name;
    char *api_key; /* NULL: none */
    char *host;    /* bound address */
    int port;
    bool loopback; /* bound to a loopback address: Host must be one, too */
    char fingerprint[24];
    int64_t created;
    SamplingOptions defaults;
    struct Guard *guard; /* deadlines of connections */
    struct StreamWriter *streams;
    int stopping;  /* atomic: no new work; 2: end what runs */
    int answering; /* atomic: completions whose last byte is not out */
};

static inline bool server_stopped(const Server *server) {
    return __atomic_load_n(&server->stopping, __ATOMIC_RELAXED) > 1;
}

typedef struct Exchange Exchange;

/* What differs between chat completions and completions. */
typedef struct Endpoint {
    const char *id_prefix;
    /* Checks the body and fills params and prompts. */
    bool (*prepare)(Exchange *x, const Json *body, ApiError *error);
    void (*write_start)(
        Exchange *x, Choice *choice, Buffer *out); /* opening events of a stream, per choice; may be NULL */
    void (*write_delta)(Exchange *x, Choice *choice, Buffer *out); /* takes the pending text and tokens */
    void (*write_finish)(Exchange *x, Choice *choice, Buffer *out);
    void (*write_usage)(Exchange *x, Buffer *out); /* last event when asked for */
    void (*write_whole)(Exchange *x, Buffer *out); /* the non-streaming answer */
} Endpoint;

struct Exchange {
    Server *server;
    struct MHD_Connection *connection;
    const struct Route *route;
    char request_id[REQUEST_ID_MAX];
    int64_t started_ns;
    ApiError refusal; /* decided from the headers; answered once the body is in */
    Buffer body;
    uint64_t discarded;
    Arena arena;
    ApiRequest params;
    Tokens *prompts;
    int prompt_count;
    Slice *prompt_texts; /* for echo */
    Generation generation;
    const Endpoint *endpoint;
    char id[COMPLETION_ID_MAX];
    int64_t created;
    Buffer head;  /* with which every event begins; made by the first */
    Buffer out;   /* events that no chunk holds yet */
    bool chunked; /* the client understands chunks (HTTP/1.1) */
    bool ended;   /* the last event is in out */
    bool answered;
};

/* Runs params → prompts → engine and queues the answer. */
enum MHD_Result completion_answer(Exchange *x, const Endpoint *endpoint);
bool completion_check_model(const Exchange *x, ApiError *error);
extern const Endpoint endpoint_chat, endpoint_completion;
/* ,"created":…,"model":"…","system_fingerprint":"…" after {"id":"…","object":"<object>" */
void write_head(Exchange *x, const char *object, Buffer *out);
/* The same as the beginning of an event; every event of an exchange has the same object. */
void write_event_head(Exchange *x, const char *object, Buffer *out);

/* http.c */
enum MHD_Result http_reply(Exchange *x, int status, Buffer *body); /* JSON; takes the buffer */
enum MHD_Result http_reply_error(Exchange *x, const ApiError *error);
enum MHD_Result http_reply_stream(Exchange *x, MHD_ContentReaderCallback read);
bool http_client_gone(const Exchange *x);
int http_socket(const Exchange *x); /* −1: there is none */
void http_touch(Exchange *x);       /* the client took something: moves its deadline */
