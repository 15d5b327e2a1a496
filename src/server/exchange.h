/* What the files of this folder work on: the server, and one HTTP request with its answer, from the first header to the
 * last byte. An exchange is owned by the thread that works on it: the one of connections, then the one that answers. */
#pragma once
#include "chat/generation.h"
#include "chat/models.h"
#include "server/http/http_request.h"
#include "server/http/keys.h"
#include "server/api/request.h"
#include "server/server.h"

enum { REQUEST_ID_MAX = 128, COMPLETION_ID_MAX = 48, REASON_MAX = 256 };

typedef struct Server {
    ServerOptions options; /* as given; its texts outlive the server */
    struct Http *http;
    Models *models;
    Mutex lock;              /* guards keys and reason */
    Keys keys;               /* replaced by server_reload; none: no key is required */
    char reason[REASON_MAX]; /* why the server is unhealthy or was restarted; "": none given */
    Condition woken;         /* signalled when `loaded` or `stopping` changes */
    bool restarted;          /* it took the place of a server in this process */
    bool draining;           /* atomic: another server is about to take its place */
    int port;                /* bound port */
    bool loopback;           /* bound to a loopback address: the Host header must name one, too */
    struct StreamWriter *streams;
    struct Resumables *resumables;
    struct Metrics *metrics;
    int64_t started;   /* seconds since 1970 */
    bool loaded;       /* atomic: the models are loaded */
    bool pulling;      /* atomic: a download runs */
    size_t body_bytes; /* atomic: bytes of all bodies that are held */
    size_t text_bytes; /* atomic: bytes reserved for what is made of complete bodies */
    size_t text_bytes_max;
    int stopping;    /* atomic: 1: no new work; 2: running work is ended */
    int connections; /* atomic */
    int answering;   /* atomic: requests whose response has not been sent completely */
} Server;

static inline bool server_stopped(const Server *server) {
    return __atomic_load_n(&server->stopping, __ATOMIC_RELAXED) > 1;
}

/* How much of a choice the client has been given. */
typedef struct Given {
    bool finish;
    int64_t tokens, told_ns; /* that have come, and when the last of them did */
    double score;            /* of an answer, where the best are shown (completions) */
    bool echo;               /* the prompt (completions) */
    int calls;               /* that have begun (chat) */
    int64_t characters;      /* of the text with its logprobs (completions) */
} Given;

/* Where a stream of blocks stands, of doors that have such. */
typedef struct AnswerBlock {
    bool open;
    AnswerEventKind kind;
    int index;    /* of the block; of the next when none is open */
    int calls;    /* so far */
    int sequence; /* of events */
    int kept;     /* the event in `kept` with which it began */
} AnswerBlock;

/* What the log says of a request. */
typedef struct RequestRecord {
    int status;         /* 0: nothing was answered */
    const char *code;   /* of an error, also within a stream; NULL: none */
    const char *model;  /* NULL: none */
    const char *finish; /* of the first answer; NULL: none */
    int64_t prompt_tokens, cached_tokens, answer_tokens;
    double queued_s, prefill_s, decode_s;
} RequestRecord;

typedef struct Exchange {
    Server *server;
    const HttpRequest *request;
    struct Transport *transport;
    const struct Route *route; /* NULL: there is none */
    const char *allowed;       /* of a known path asked for with another method: the method it has */
    const char *key;           /* the API key that was sent, right or wrong; NULL: none */
    char request_id[REQUEST_ID_MAX];
    const char *client; /* its address */
    bool trusted;       /* it has a key where one is asked for */
    int64_t started_ns;
    int64_t deadline_ns, queue_deadline_ns; /* 0: none */
    RequestRecord record;
    ApiError refusal; /* decided from the headers; answered once the body is in */
    Buffer body;
    size_t text_bytes; /* counted in the server's for what is made of it */
    uint64_t discarded;
    bool last;    /* the connection ends with the answer */
    Buffer reply; /* to be sent */

    struct Pull *pull; /* NULL: it is none */

    /* a completion, once it is submitted: its body and what was made of it are gone */
    const struct Endpoint *endpoint; /* NULL: it is none */
    ChatModel *model;                /* taken until the answer is out; */
    int model_index;                 /* its number among the server's */
    ResponseOptions response;
    Arena request_arena; /* the body's nodes and what was made of them; freed on submission unless reads_request */
    bool reads_request;  /* the response reads the request: its tools, what it repeats */
    Arena arena;         /* of what follows */
    Tokens *prompts;
    int prompt_count;
    Slice *prompt_texts; /* for echo */
    Generation generation;
    Given *given;       /* by choice */
    int64_t read_told;  /* tokens of the prompts, in the last event about them */
    KvFormat kv_format; /* that it gets, */
    int kv_bits;        /* and how many bits it asked for; 0: it did not */
    char id[COMPLETION_ID_MAX];
    int64_t created;
    AnswerEvents kept; /* of an answer that is shown again when it is whole, or in pieces that are whole */
    AnswerBlock block;
    Buffer head;                 /* with which every event begins; made by the first */
    Buffer out;                  /* events that no chunk holds yet */
    struct Resumable *resumable; /* keeps the events; NULL: they are not kept */
    bool ended;                  /* the last event is in out */
} Exchange;
