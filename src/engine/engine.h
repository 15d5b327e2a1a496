/* engine/: requests on models: queue, slots, steps, sampling, what engines share. Token ids only: no text, no sockets.
 *
 * The engine: one thread that owns the model, the caches and the batch. Each step computes the decode rows of all
 * running sequences and a chunk of prefill rows. Other threads talk to it through requests. Results depend on (prompt,
 * parameters, seed) only, never on what else runs. */
#pragma once
#include "base/error.h"
#include "engine/constraint.h"
#include "engine/media.h"
#include "model/runner.h"

typedef struct Engine Engine;
typedef struct Request Request;

enum { LOGPROBS_TOP_MAX = 20, CHOICES_MAX = 128, STALL_MS = 120 * 1000 };
enum { DRAFT_TOKENS_MAX = 31 /* draft tokens of a step, of all its sequences together */, DRAFT_MODEL_TOKENS = 8 };
enum { PREDICTION_TOKENS_MAX = 1 << 20 };
enum { GPU_LAYERS_ALL = 0, GPU_LAYERS_AUTO = -1 /* chosen by EngineOptions.fit */ };

/* Pooling of the hidden rows of a text to one vector. */
typedef enum Pooling { POOLING_NONE, POOLING_LAST, POOLING_MEAN, POOLING_FIRST } Pooling;

/* Where draft tokens come from. */
typedef enum DraftSource {
    DRAFT_LOOKUP,     /* what followed the same tokens earlier in the request's prompt or answers */
    DRAFT_PREDICTION, /* the request's predicted answer */
    DRAFT_MODEL,
    DRAFT_MTP, /* the model's multi-token prediction head */
    DRAFT_SOURCES
} DraftSource;

typedef struct DraftStats {
    uint64_t drafted, accepted; /* tokens */
} DraftStats;

/* Speculative decoding (docs/design/speculation.md): draft tokens are computed as further rows of their sequence's
 * step, and those that equal the sampled tokens are accepted. Answers do not depend on it. All zero: off. */
typedef struct SpeculationOptions {
    bool lookup;                 /* prompt lookup, in the prompt, the answers and the prediction of a request */
    const char *draft_directory; /* directory of a draft model with the same vocabulary; NULL: none */
    int draft_tokens; /* the most of the draft model or the head per step and sequence; 0: DRAFT_MODEL_TOKENS */
    bool always;      /* for tests: drafts are verified whatever they cost */
    /* For tests and benchmarks. Writes at most `max` draft tokens for the answer at this position of the sequence and
     * returns their number, and *match, at first 1, the length of the match that they stand for; of a draft model or a
     * head, replaces the tokens that it drafted. Thread: the engine's. NULL: none. */
    int (*script)(void *context, uint64_t seed, int choice, int position, int max, int32_t *tokens, int *match);
    void *script_context;
} SpeculationOptions;

typedef struct EngineOptions EngineOptions;
struct EngineOptions {
    const char *directory;
    ModelOptions model;     /* mtp: the head is a source of draft tokens; excludes a draft model */
    BackendOptions backend; /* the engine sets rows_max */
    int gpu_layers; /* the backend computes the last gpu_layers layers and the output matrix, the CPU the others; or
                       GPU_LAYERS_… */
    struct Resources *resources; /* shared with other engines (resources.h); NULL: threads of its own */
    int slots;                   /* sequences that run at once */
    SpeculationOptions speculation;
    int queue_max;    /* requests that wait; one more is ERROR_BUSY */
    int prefill_size; /* prompt tokens per step, 1…RUNNER_ROWS_MAX/2; with `fit` also 0: it chooses */
    /* Called first, on a copy of the options: sets those that are left open, as engine_fit() of fitting.h does. NULL:
     * none is changed. */
    bool (*fit)(EngineOptions *options, Error *error);
    const char *calibrations; /* directory of calibration files (fit/fit.h); NULL: none */
    size_t kv_bytes; /* bytes of the page pool; 0: slots × context and, with recurrent states, some snapshots; at most
                        half of the free memory */
    KvFormat kv_format;          /* format for requests that name none; zero: all pages in full precision */
    bool kv_auto;                /* full precision instead, if slots × context fit the pool with it */
    Pooling pooling;             /* pooling of embedding requests; NONE: no such requests */
    bool prefix_off;             /* no prefix cache: requests do not find pages of earlier ones */
    const char *cache_directory; /* directory of the disk tier, for pages that leave memory; NULL: no disk tier */
    size_t cache_disk_bytes;
    /* Called by the engine thread when requests may have something new; must be short. NULL: readers wait in request_*.
     */
    void (*notify)(void *context);
    void *notify_context;
    /* Called once by the engine thread when its device has failed: all requests end with this error, those that come
     * later as well, and the process cannot use the device again. NULL: no call. */
    void (*failed)(void *context, const Error *why);
    void *failed_context;
    int stall_ms; /* a step that takes longer, and ten times longer than expected, counts as stalled; 0: STALL_MS */
};

/* Sampling, in this order: what the constraint allows → logit bias → penalties → top_k → top_p → min_p → temperature →
 * sample. A neutral value switches its stage off. */
typedef struct SamplingOptions {
    float temperature;                         /* 0: greedy */
    float top_p;                               /* 1: off */
    float min_p;                               /* 0: off */
    int top_k;                                 /* 0: off */
    float repetition_penalty;                  /* 1: off; over prompt and answer */
    float frequency_penalty, presence_penalty; /* 0: off; over the answer */
    uint64_t seed;   /* counter-based: random number = f(seed, choice, position in the sequence) */
    bool ignore_eos; /* end tokens are tokens like any other; under a constraint they are not allowed */
    int min_tokens;  /* end tokens are not sampled before this many other tokens */
    int bias_count;
    const int32_t *bias_ids; /* copied */
    const float *bias_values;
    int logprobs; /* −1: none; else the number of alternatives, ≤ LOGPROBS_TOP_MAX */
} SamplingOptions;

typedef struct RequestOptions {
    const int32_t *prompt; /* [prompt_count] token ids; copied */
    int prompt_count;      /* ≥ 1 */
    /* [prompt_count] What each position holds, as the key of prefix cache and disk tier: the token id, or for given
     * embeddings a hash of the media item, its layout and the offset in it. Equal content ids up to a position must
     * mean equal tokens, embeddings and RoPE positions up to it. Copied; NULL: the token ids. */
    const uint64_t *content_ids;
    /* [POSITION_DIMS_MAX][prompt_count] RoPE positions of the prompt. Tokens of answers have position_offset added to
     * their place in the cache, on every dimension. Copied; NULL: the place in the cache plus position_offset. */
    const int32_t *positions;
    int position_offset;
    /* Images of the prompt, ascending, without overlap. Copied, the items are retained. Families whose images see
     * themselves in both directions read them in one step, and keep such prompts in full-precision pages. */
    const MediaSpan *media; /* [media_count] */
    int media_count;
    int max_tokens;     /* ≥ 1 of each choice; cut so that prompt + answer fit the context and the page pool */
    int choices;        /* answers that share one prefill; as many run at once as there are slots */
    bool echo_logprobs; /* logprobs of the prompt's tokens as well (completions with echo), without bias and penalties;
                         * implies logprobs ≥ 0 */
    const KvFormat *kv_format; /* copied; NULL: the engine's */
    /* [prediction_count] Ids of a text that the answer may repeat in part: source of draft tokens. Copied; NULL: none.
     */
    const int32_t *prediction;
    int prediction_count;
    int adapter;         /* LoRA adapter of the model, from 1 on (model_adapter); 0: none */
    uint64_t cache_salt; /* a hash of API key and salt: requests share prefixes only if it is equal */
    bool cache_off;      /* finds nothing and leaves nothing to be found */
    bool embeds;         /* the prompt's hidden rows are pooled, without sampling: choices 1, max_tokens 1 */
    SamplingOptions sampling;
    Constraint *constraint; /* NULL: none; else the request takes a reference of its own */
} RequestOptions;

typedef enum Finish { FINISH_NONE, FINISH_STOP /* end token */, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR } Finish;

typedef struct TokenOut {
    int32_t id;
    float logprob; /* natural log, of the distribution over what is allowed after bias and penalties, before truncation;
                      NaN when not asked for */
    int top_count; /* fewer than asked for where fewer tokens are allowed */
    struct {
        int32_t id;
        float logprob;
    } top[LOGPROBS_TOP_MAX]; /* descending */
} TokenOut;

typedef struct RequestStats {
    int prompt_tokens;
    int cached_tokens;                        /* prompt tokens that the prefix cache had, so they were not computed */
    int read_tokens;                          /* prompt tokens read so far, cached ones included */
    int preempted;                            /* times that a choice was preempted */
    size_t kv_full_bytes, kv_quantised_bytes; /* bytes of the pages of the choice that ended last */
    size_t kv_f16_bytes;                      /* bytes of these pages if all were in full precision */
    int kv_raised;  /* layers whose keys got more bits than requested, because of their predicted noise or the format's
                       list of layers */
    float kv_noise; /* the largest KvQuant.noise of a layer */
    bool admitted;  /* has left the queue */
    double queued_s, prefill_s, decode_s;
    /* Sums over the steps in which the request had rows, other requests' shares included: streamed experts that were in
     * memory, and that were not; bytes read; time without computation while an expert was loading. */
    uint64_t expert_hits, expert_misses, expert_read_bytes;
    double expert_stall_s;
    DraftStats drafts[DRAFT_SOURCES];
} RequestStats;

NODISCARD Engine *engine_open(const EngineOptions *options, Error *error);
void engine_close(Engine *engine); /* cancels everything, joins the thread */
const Model *engine_model(const Engine *engine);
const char *engine_backend(const Engine *engine); /* "avx512" */
Pooling engine_pooling(const Engine *engine);
const VisionSpec *engine_vision(const Engine *engine); /* NULL: the model takes no images */
/* Memory for images; zeros: the model takes none. Constant. */
MediaMemory engine_media_memory(const Engine *engine);
const AudioSpec *engine_audio(const Engine *engine);    /* NULL: the model takes no audio */
const KvFormat *engine_kv_format(const Engine *engine); /* format for requests that name none */
DType engine_kv_dtype(const Engine *engine);            /* type of full-precision pages */
/* The draft model is an assistant, which has the model's own tokens. */
bool engine_has_assistant(const Engine *engine);
bool engine_looks_up(const Engine *engine);  /* whether prompt lookup is on */
bool engine_kv_biased(const Engine *engine); /* keys hold a bias, which plain 4-bit codes do not survive */

/* Thread: any. NULL: ERROR_BUSY when the queue is full, ERROR_LIMIT with both numbers when the prompt does not fit,
 * ERROR_USAGE for values outside their range (ids too), ERROR_CANCELLED while the engine closes. A request may outlive
 * its engine. */
NODISCARD Request *engine_submit(Engine *engine, const RequestOptions *options, Error *error);
/* Reads up to `capacity` unread tokens of one choice, without the end token, and returns their number (0 after the
 * timeout, or when the choice has ended). *finish is set once everything was read. The output has room for max_tokens,
 * so the engine never waits for a reader. */
int request_read(Request *request, int choice, TokenOut *out, int capacity, int timeout_ms, Finish *finish);
/* Waits until any choice has something unread (tokens, or its finish) or the timeout passes. Returns the lowest such
 * choice; −1: none, at once when everything was read. */
int request_wait(Request *request, int timeout_ms);
/* For readers of several requests. A round is admission, a step and its results, which can be read when it has ended.
 * Waits until a round later than number `seen` (0 at first) has ended or the timeout passes; returns the number of the
 * latest. */
uint64_t engine_wait(Engine *engine, uint64_t seen, int timeout_ms);
bool request_prompt_logprob(Request *request, int position, TokenOut *out); /* needs echo_logprobs; false: not yet */
/* The embedding of a request that has ended with FINISH_STOP: [model_hidden], not normalised, borrowed for the lifetime
 * of the request. */
const float *request_embedding(const Request *request);
void request_cancel(Request *request); /* any thread, any time, idempotent; the slot is free within one step */
/* Ends one choice early (a stop string was seen): it stops computing; the others go on. */
void request_stop_choice(Request *request, int choice);
RequestStats request_stats(Request *request);
void request_error(Request *request, Error *out); /* after FINISH_ERROR: a fault ends every choice of the request */
void request_free(Request *request);              /* cancels if still running */

typedef struct EngineStats {
    int slots, running, waiting;
    bool full; /* engine_submit would fail with ERROR_BUSY */
    size_t kv_bytes, kv_bytes_total;
    size_t kv_idle_bytes; /* share of kv_bytes that only the prefix cache holds, and frees on demand; up to half a
                             second old */
    uint64_t kv_blocks;   /* capacity in blocks of KV_PAGE_TOKENS tokens in all layers, in the default format */
    size_t kv_form_bytes[KV_FORMS]; /* bytes in use, by format: full-precision pages, quantised halves of pages */
    uint64_t kv_form_pages[KV_FORMS];
    size_t media_bytes;         /* bytes of rows of images and audio that are kept */
    double media_s;             /* total time in which images and audio were encoded */
    size_t media_encoder_bytes; /* bytes that encoding the largest image so far took */
    size_t prefix_bytes;        /* bytes of pages that the prefix cache holds, some of them shared with requests */
    size_t prefix_state_bytes;  /* the part of them that are snapshots of recurrent states */
    uint64_t steps;
    uint64_t prompt_tokens, generated_tokens;            /* computed */
    uint64_t prefix_lookups, prefix_hits, prefix_tokens; /* prompts looked up; found, at least in part; tokens found */
    uint64_t prefix_evictions;                           /* pages evicted to make room */
    uint64_t preempted, resumed;                         /* choices */
    DraftStats drafts[DRAFT_SOURCES];
    ExpertProviderStats experts; /* streamed experts; zero: none are streamed */
    bool damaged;  /* a mapped file of the model shrank, or its device failed: the model must be loaded again */
    bool lost;     /* the device failed: only another process can load the model again */
    bool stalled;  /* the current step takes too long (EngineOptions.stall_ms) */
    double step_s; /* total time in steps */
    uint64_t spilled_pages, spilled_bytes, restored_pages; /* to and from disk */
} EngineStats;
EngineStats engine_stats(Engine *engine);
