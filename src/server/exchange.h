/* The server, and the exchange: one HTTP request with its response, from the first header to the last byte. An exchange
 * is owned by one thread at a time: the thread of connections, then a worker that answers. */
#pragma once
#include "chat/generation.h"
#include "chat/models.h"
#include "chat/prompt_media.h"
#include "server/http/http_request.h"
#include "server/http/keys.h"
#include "server/api/request.h"
#include "server/server.h"

enum { REQUEST_ID_MAX = 128, COMPLETION_ID_MAX = 48, REASON_MAX = 256, IGNORED_MAX = 512 };

typedef struct Server {
    ServerOptions options; /* as given; its texts outlive the server */
    struct Http *http;
    Models *models;
    Mutex lock;              /* guards keys and reason */
    Keys keys;               /* replaced by server_reload; none: no key is required */
    char reason[REASON_MAX]; /* why the server is unhealthy or was restarted; "": none given */
    Mutex fit_lock;          /* held by the plan of a model that is not loaded */
    Condition woken;         /* signalled when `loaded` or `stopping` changes */
    bool restarted;          /* it took the place of a server in this process */
    bool draining;           /* atomic: another server is about to take its place */
    int port;                /* bound port */
    bool loopback;           /* bound to a loopback address: the Host header must name one, too */
    struct StreamWriter *streams;
    struct Resumables *resumables;
    struct Metrics *metrics;
    struct Jobs *jobs;
    struct Devices *devices; /* NULL: without --lan */
    struct History *history; /* NULL: the server keeps none */
    bool starts_empty;       /* it was started without a model: clients choose */
    int watchers;            /* atomic: streams of events of jobs */
    int64_t started;         /* seconds since 1970 */
    bool loaded;             /* atomic: the models are loaded */
    size_t body_bytes;       /* atomic: bytes of all bodies that are held */
    size_t text_bytes;       /* atomic: bytes reserved for what is made of complete bodies */
    size_t text_bytes_max;
    int stopping;    /* atomic: 1: no new work; 2: running work is ended */
    int connections; /* atomic */
    int answering;   /* atomic: requests whose response has not been sent completely */
} Server;

static inline bool server_stopped(const Server *server) {
    return __atomic_load_n(&server->stopping, __ATOMIC_RELAXED) > 1;
}

/* How much of a choice has been written. */
typedef struct Given {
    bool finish;        /* its end has been written */
    int64_t tokens;     /* counted for metrics */
    int64_t told_ns;    /* time of the last of these tokens */
    double score;       /* completions with best_of: log-probability per token */
    bool echo;          /* completions: the prompt has been written */
    int calls;          /* chat: tool calls that have begun */
    int64_t characters; /* completions: of the text with log-probabilities */
} Given;

/* Position in a stream of blocks or items (Messages, Responses). */
typedef struct AnswerBlock {
    bool open;
    AnswerEventKind kind;
    int index;    /* index of the open block, else of the next one */
    int calls;    /* tool calls so far */
    int sequence; /* number of the next event */
    int kept;     /* index in Exchange.kept of the event that began the block */
} AnswerBlock;

/* A request's line in the log. */
typedef struct RequestRecord {
    int status;                 /* 0: no response */
    const char *code;           /* code of the error, also within a stream; NULL: none */
    char model[MODEL_NAME_MAX]; /* "": none */
    const char *finish;         /* reason of the first choice; NULL: none */
    int64_t prompt_tokens, cached_tokens, answer_tokens;
    double queued_s, prefill_s, decode_s;
} RequestRecord;

typedef struct Exchange {
    Server *server;
    const HttpRequest *request;
    struct Transport *transport;
    const struct Route *route; /* NULL: no such path and method */
    const char *allowed;       /* the method that the path has; NULL: no such path */
    const char *cors;          /* origin of a page of another site that may read the response; NULL: none */
    const char *key;           /* API key as sent, valid or not; NULL: none */
    char request_id[REQUEST_ID_MAX];
    const char *client; /* its address */
    bool trusted;       /* it sent a valid key, or none is required */
    int64_t started_ns;
    int64_t deadline_ns, queue_deadline_ns; /* 0: none */
    RequestRecord record;
    char ignored[IGNORED_MAX]; /* fields that were ignored (ServerOptions.lenient), with commas; "": none */
    ApiError refusal;          /* decided from the headers, sent when the body has arrived */
    Buffer body;
    size_t text_bytes;  /* this exchange's share of Server.text_bytes */
    uint64_t discarded; /* bytes of the body that were not kept */
    bool last;          /* the connection ends after the response */
    Buffer response;    /* bytes to be sent */

    /* Generation */
    const struct Endpoint *endpoint; /* NULL: the request generates nothing */
    ChatModel *model;                /* held until completion_close */
    int model_index;                 /* in Server.models, from model_take on */
    ResponseOptions response_options;
    Arena request_arena; /* the body's nodes and what was made of them; freed on submission unless reads_request */
    bool reads_request;  /* the response reads the request: its tools, what it repeats */
    Arena arena;         /* owns the following members */
    Tokens *prompts;
    int prompt_count;
    PromptMedia media;   /* images and audio of the only prompt, until it has been submitted; arrays in request_arena */
    int audio_tokens;    /* tokens of the prompt that stand for audio */
    Slice *prompt_texts; /* [prompt_count] with echo */
    Generation generation;
    Given *given;       /* [choices] */
    int64_t read_told;  /* prompt tokens in the last progress event */
    KvFormat kv_format; /* format of the answer's pages */
    int kv_bits;        /* as requested; 0: not given */
    char id[COMPLETION_ID_MAX];
    int64_t created;
    AnswerEvents kept; /* events that a later part of the response shows again */
    AnswerBlock block;
    Buffer head;                 /* beginning of every event; written once */
    Buffer event_bytes;          /* events that are not in a chunk yet */
    struct Resumable *resumable; /* keeps the events; NULL: they are not kept */
    bool ended;                  /* event_bytes holds the last event */
} Exchange;
