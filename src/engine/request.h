/* A request inside the engine. The engine thread advances it, one reader takes the tokens; they share the part under
 * the mutex. Both sides hold a reference; the last one frees it. All its memory is taken at submit. */
#pragma once
#include <stdatomic.h>

#include "base/thread.h"
#include "engine/draft.h"
#include "engine/engine.h"
#include "engine/lookup.h"
#include "engine/resume_points.h"
#include "engine/sampler.h"
#include "cache/kv_cache.h"

enum { JUMP_AHEAD_MAX = 64 /* jump-ahead tokens of a choice in a step, at most */ };

typedef enum ChoiceState {
    CHOICE_WAITING, /* for its first token */
    CHOICE_RUNNING,
    CHOICE_PREEMPTED, /* its pages were taken; its tokens are computed again when there are pages */
    CHOICE_ENDED,
} ChoiceState;

typedef enum TokenMaskKind {
    MASK_UNKNOWN, /* until token_mask_update() */
    MASK_ANY,
    MASK_SOME, /* the tokens of the mask */
    MASK_END,  /* nothing but an end */
} TokenMaskKind;

/* One answer, and the sequence that computes it. */
typedef struct AnswerChoice {
    /* engine thread */
    ChoiceState state;
    KvSequence kv; /* the prompt and the answer without its last token; shorter while it is read again */
    Sampler sampler;
    int generated;
    ConstraintState where;   /* behind all but, while `allowed` is unknown, the last token; these six only with a */
    TokenMaskKind mask_kind; /* constraint */
    uint64_t *mask;
    int32_t only;                       /* the one token that is in it; −1: there are more */
    int32_t jump_ahead[JUMP_AHEAD_MAX]; /* tokens that come next, whatever the logits are: */
    int jump_ahead_at, jump_ahead_count;

    Draft draft;

    atomic_bool stop;

    /* under the request's mutex */
    uint8_t *records; /* [max_tokens] */
    int written, read;
    Finish finish;
    bool finish_read;
} AnswerChoice;

struct Request {
    SamplingOptions sampling; /* its arrays are in memory */
    const int32_t *prompt;
    const uint64_t *content_ids; /* [prompt_count]; NULL: the token ids */
    const int32_t *positions;    /* [POSITION_DIMS_MAX][prompt_count]; NULL: the place in the cache plus the offset */
    int position_offset;
    const MediaSpan *media; /* [media_count] */
    int media_count;
    bool whole_prompt; /* no step reads a part of the prompt: its tokens see each other */
    int prompt_count, max_tokens, choice_count, top_max;
    const int32_t *prediction; /* [prediction_count] */
    int prediction_count;
    KvFormat format;
    int adapter;   /* RequestOptions.adapter */
    uint64_t salt; /* cache salt: only prefixes with the same one are found; other adapters, other salts */
    bool cache_off;
    bool echo;
    bool whole;             /* every row of the prompt is wanted, so none may be found */
    Pooling pooling;        /* NONE: it does not embed */
    float *embedding;       /* [hidden]; the mean so far is in `sums` */
    double *sums;           /* [hidden], of the states of */
    int pooled;             /* so many of the prompt's tokens */
    Constraint *constraint; /* NULL: none */
    AnswerChoice *choices;
    uint8_t *prompt_records; /* [prompt_count]; NULL without echo */
    size_t record_bytes;
    void *memory; /* mapped: taken from the system only as it is written */
    size_t memory_bytes;
    atomic_int references;
    atomic_bool cancel;

    /* engine thread; next under the engine's mutex while the request waits */
    struct Request *next;
    bool preempted;         /* before the prompt was read */
    int skips;              /* later requests that were preferred to this one while it waited for pages */
    int prefilled;          /* prompt tokens in the cache */
    atomic_int prompt_read; /* the most prompt tokens that were in the cache so far, for readers */
    bool disk_searched;     /* the disk tier has no further pages of the prompt */
    ResumePoints resume;    /* places at which the prompt is published while it is computed */
    int slots;              /* slots in use: one while the prompt is computed, then one per running choice and grant */
    int granted;            /* slots for choices that have not started yet */
    int waiting;            /* choices in CHOICE_WAITING */
    KvSequence kv;          /* the prompt, until the last choice to start takes it over, or pages run out */
    float *logits;          /* [vocab] behind the prompt: own memory with several choices, else the step's */
    int32_t first;          /* first token of the answer, if sampled already; −1: not yet */
    bool by_host;           /* what its logits were once must be seen to here */
    bool failed;
    Lookup lookup;                /* ids NULL: there is none */
    DraftSequence draft_sequence; /* what a multi-token prediction head has read of the prompt */

    Mutex mutex;
    Condition changed;
    Error error;
    int prompt_written;
    int cached, preemptions;
    ExpertProviderStats experts; /* sums over the steps in which the request had rows */
    DraftStats drafts[DRAFT_SOURCES];
    KvUse kv_use;                                              /* pages of the choice that ended last */
    size_t kv_f16_bytes;                                       /* bytes of these pages if all were in full precision */
    int64_t submitted_ns, admitted_ns, answering_ns, ended_ns; /* 0: not yet */
};

typedef struct RequestShape {
    int vocab, hidden;
    Pooling pooling;   /* pooling of embedding requests */
    bool media_whole;  /* no step reads a part of an image: its rows see each other (MediaSpan.whole) */
    bool whole_prompt; /* no step reads a part of the prompt: its tokens see each other */
    bool lookup;       /* texts are looked up for draft tokens */
} RequestShape;

/* options are valid for this vocabulary; max_tokens is already cut; kv_format is said. The reference is the caller's.
 */
NODISCARD Request *request_new(const RequestOptions *options, const RequestShape *shape, int max_tokens, Error *error);
void request_retain(Request *request);
void request_release(Request *request);

/* Engine thread. */
void request_append(Request *request, AnswerChoice *choice, const TokenOut *token);
void request_append_prompt(Request *request, const TokenOut *token);
void request_end_choice(Request *request, AnswerChoice *choice, Finish finish);
int32_t request_answer_id(const Request *request, const AnswerChoice *choice, int index);
/* The first item that does not end before a position; NULL: none. */
const MediaSpan *request_media_from(const Request *request, int position);
/* The first bidirectional span that ends behind `position`; false: there is none. */
bool request_span_from(const Request *request, int position, BidirectionalSpan *span);
/* Whether a step may end behind a position of the prompt, and a sequence begin with as much. */
bool request_can_cut(const Request *request, int position);
/* Whether its prompt is being read. */
static inline bool request_reads_prompt(const Request *request) {
    return request->kv.tables && request->prefilled < request->prompt_count;
}
void request_set_admitted(Request *request, int cached);
/* Notes that `tokens` of its tokens were found in the cache; returns how many of them it had not computed before, as it
 * had read some before it was preempted. */
int request_note_found(Request *request, int tokens);
void request_count_preemption(Request *request);
void request_add_experts(Request *request, const ExpertProviderStats *before, const ExpertProviderStats *after);
void request_add_drafts(Request *request, DraftSource source, int drafted, int accepted);
/* The states of prompt tokens `first` and following, some of which it may have had before; the last one is the end. */
void request_pool(Request *request, int first, int count, int hidden, const float *states);
void request_set_kv_use(Request *request, const KvUse *use, size_t f16_bytes);
void request_set_answering(Request *request);
/* The reason for FINISH_ERROR; the first one stays. */
void request_fail(Request *request, const Error *error);
