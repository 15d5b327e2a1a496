/* The scheduler: queue, slots, KV pages, and the rows of each step.
 *
 * Admission. Pages are taken as they are used, not reserved for the longest possible answer. A request is admitted when
 * the pages of its prompt, less those found in the prefix cache, and of ANSWER_ROOM tokens of its answer are free or
 * only held by the prefix cache; the same room, as far as it is not used yet, is counted for each running sequence.
 * When pages run out in a step, the youngest sequence is preempted; it resumes before any request is admitted, and its
 * results are the same. A request that would not fit alone is refused. The queue is first come, first served, except
 * that a request waiting for pages may be skipped SKIPS_MAX times.
 *
 * Steps. A step has one row per running choice and up to prefill_size prompt tokens: half of them for the oldest
 * prompt, the other half for those with the fewest tokens left, so that a short prompt waits neither for a long one nor
 * for many. Every prompt becomes the oldest in time, so none starves. On a slow machine a step has fewer prompt tokens:
 * beside running choices, which stand still that long, so many that a step takes about as long as ANSWER_STEPS + 1
 * steps without prompts, STEP_MS_LEAST to STEP_MS, STEP_MS where none was measured yet; beside other prompts so many
 * that it takes PROMPTS_MS, which is how long a new request waits, and STEP_MS where a prompt ends with it. Pages of a
 * prompt on disk are read before its first row, for a limited time between steps.
 *
 * Images and audio. Beside running choices everything that they need has one budget in a round, a part of the time of a
 * step without prompts: encoding, spans in slices, and rows of prompts with images or audio. So the gap between two
 * tokens of an answer stays below twice what it is alone, however many such requests wait. Where rows of these prompts
 * can be computed, they get a half of the budget, so that neither waits for the other.
 *
 * Decode rows. Where the runner's decode arithmetic differs from that of prefill (runner_decode_rows_max), rows after
 * the prompt are decode rows in every step, also when they are computed again or are jump-ahead tokens: so the bits of
 * a token do not depend on how it came to be computed. Such sequences are shared up to the end of the prompt only,
 * because another request may have the same tokens in its prompt.
 *
 * Draft tokens (speculation.h) follow the row of a running choice, as far as rows are left and worth their time. Where
 * pages are short, drafts are dropped before a sequence is preempted. */
#pragma once
#include "engine/sequences.h"
#include "engine/speculation.h"
#include "model/step_builder.h"

enum {
    SKIPS_MAX = 16,
    ANSWER_ROOM = 256, /* tokens */
    LOOKUPS_MAX = 4,   /* per round: waiting requests that are looked up to see whether they fit */
    ECHO_ROWS = 16,    /* prompt rows per step whose logits are computed for echo */
    PROMPTS_MS = 600,
    STEP_MS = 300,
    STEP_MS_LEAST = 200, /* steps of 100 ms read prompts a fifth slower, for their weights are unpacked more often */
    ANSWER_STEPS = 2,
    MEDIA_PERCENT = 60,      /* budget of images and audio in a round, of a step without prompts */
    MEDIA_MS_LEAST = 10,     /* the least budget; the most is STEP_MS */
    MEDIA_PREFILL_LEAST = 4, /* rows of prompts with images or audio in a step, however slow they are */
    PREFILL_LEAST = 64,      /* prompt tokens of a step however slow they are: fewer cost nearly as much */
    PREFILL_UNIT = 32,       /* prompt tokens of a slow machine's step are a multiple of it */
    DISK_MS = 20,            /* per step, for reading pages from disk; at least one page is read */
};

typedef struct RequestList {
    Request *first, *last;
    int count;
} RequestList;

/* A sequence that may have rows in the step being planned. */
typedef struct StepCandidate {
    Request *request;
    AnswerChoice *choice; /* NULL: the prompt */
    bool prefill;         /* has several tokens to compute, or is a prompt; otherwise one new token */
    bool decode;          /* its rows are decode rows */
    int rows;             /* in this step, without draft tokens */
    int drafts;           /* draft tokens that follow */
} StepCandidate;

/* Consecutive rows of a step that belong to one sequence. */
typedef struct StepSlice {
    Request *request;            /* retained until the step has ended */
    AnswerChoice *choice;        /* NULL: the prompt */
    int rows, position;          /* position: place in the cache of the first row */
    int drafts;                  /* the last rows: draft tokens (choice->draft) */
    int output, outputs;         /* first output and their number; the last rows have them */
    int hidden_row, hidden_rows; /* the same of hidden states */
} StepSlice;

/* A step, and the sequences that its rows belong to. */
typedef struct StepPlan {
    StepBuilder builder; /* with sample_params, the backend samples all outputs */
    StepSlice *slices;   /* [slice_count] */
    int slice_count;
    BidirectionalSpan *spans; /* [span_count] of the images in the step */
    int span_count;
    int prompt_rows;  /* prefill rows that belong to prompts */
    int media_rows;   /* those of them whose prompts have images or audio */
    int draft_rows;   /* rows of draft tokens */
    bool lookahead;   /* begun before the step before it has ended */
    RunnerStep begun; /* used by the engine */
    int64_t begun_ns;
} StepPlan;

typedef struct Scheduler {
    Sequences sequences;
    int slots, queue_max, prefill_size;
    int decode_rows_max; /* decode rows of a step; 0: the runner has no arithmetic of their own */
    bool uniform_matmul; /* Step.uniform_matmul, fixed at open: there are more slots than the runner's limit */
    int context;         /* tokens a sequence may hold: the model's, or fewer if the page pool is smaller */
    int model_context;
    size_t pool; /* bytes of the page pool */

    RequestList waiting;  /* under the engine's mutex */
    atomic_int used;      /* slots; grows under the engine's mutex only, so that it is consistent with the queue */
    atomic_int preempted; /* preempted sequences that wait for a slot */

    /* Engine thread, from here on. */
    RequestList active; /* in order of admission */
    size_t room;        /* bytes of pages for requests to be admitted */
    bool room_known;    /* room was counted since the last admission */
    int lookups;        /* lookups left in this round, LOOKUPS_MAX at its start */
    uint64_t preempt_count, resume_count, prompts_looked_up, prompts_found, tokens_found;

    StepCandidate *candidates; /* [candidate_count] in order of age */
    int candidate_count;
    int prefill_count; /* candidates with prefill rows */
    bool masks_late;   /* some active request is not among the candidates because its token mask is late */
    StepPlan plans[2];
    bool can_slice;     /* spans that no step divides are prefilled in slices while choices run (sliced_step.h) */
    bool spans_sliced;  /* so it is in this round: none of them is in a step */
    StepPlan span_plan; /* such a step; with can_slice */
    Request *span;      /* its request, which has no rows in other steps; NULL: there is none */
    MediaCache *media;  /* NULL: the model takes neither images nor audio */
    EmbeddingRange *embeddings;  /* [rows] working memory */
    int32_t *tokens, *positions; /* working memory: [rows], [POSITION_DIMS_MAX · rows] */
    float *scales;               /* [outputs] working memory */
    SampleParams *samples;       /* [outputs] working memory */
    bool sample_params;          /* the runner samples */
    bool can_lookahead;
    Speculation speculation;
    DraftTarget *targets; /* [sequences] working memory */
    double prompt_row_s;  /* measured time per row of a step that reads prompts; 0: not known yet */
    bool step_unsure;     /* the time of a step of answers alone is not measured, only its upper limit is known */
    double media_row_s;   /* time that a row of a prompt with images or audio adds to a step; 0: not known yet */
    int media_rows;       /* such rows of the last step that had any; 0: none yet */
    double media_spent_s; /* time that encoding and spans took in this round; set by the engine */
} Scheduler;

/* media: borrowed; NULL: the model takes neither images nor audio. */
NODISCARD bool scheduler_open(Scheduler *scheduler, const Runner *runner, KvCache *kv, MediaCache *media,
    const EngineOptions *options, Error *error);
/* Lets spans be prefilled in slices. */
NODISCARD bool scheduler_slice_spans(Scheduler *scheduler, Error *error);
void scheduler_close(Scheduler *scheduler); /* safe on a zeroed one */

/* Tokens that each answer of the request may have; 0 with ERROR_LIMIT, which states prompt and limit. Thread: any. */
int scheduler_fit(const Scheduler *scheduler, const RequestOptions *options, Error *error);

/* Under the engine's mutex. */
bool scheduler_full(const Scheduler *scheduler);
void scheduler_queue(Scheduler *scheduler, Request *request); /* takes over a reference */
void scheduler_admit(Scheduler *scheduler);                   /* engine thread */

/* Engine thread. */
/* The oldest request that reads its prompt and comes to an image whose rows must be encoded first; *item: the image.
 * NULL: none. */
Request *scheduler_next_media(Scheduler *scheduler, MediaItem **item);
/* Plans span_plan and sets `span`, which is NULL, where the next rows of a prompt are a span that no step divides, and
 * choices run. */
void scheduler_plan_span(Scheduler *scheduler);
/* The step of span_plan has ended, or is given up. */
void scheduler_end_span(Scheduler *scheduler);
/* How long the engine may encode images and audio, or prefill a span, before the next step. */
double scheduler_media_s(const Scheduler *scheduler);
/* Plans a step; slice_count 0: there is nothing to run. */
void scheduler_plan(Scheduler *scheduler, StepPlan *plan);
/* Plans the step after one under way whose tokens the backend samples, for the same choices less those that certainly
 * end with it. Results for choices that end otherwise are dropped. False: the step under way must end first, because
 * some sequence does not simply continue, or pages are short. */
bool scheduler_plan_lookahead(Scheduler *scheduler, const StepPlan *under_way, StepPlan *plan);
/* seconds: the step's duration; idle_s: time between the step before it and this one, 0 if it had begun before. */
void scheduler_note_step(Scheduler *scheduler, const StepPlan *plan, double seconds, double idle_s);
/* Takes slot and pages from a prompt that is being read (choice NULL) or a running choice. */
void scheduler_preempt(Scheduler *scheduler, Request *request, AnswerChoice *choice);
void scheduler_free_slot(Scheduler *scheduler, Request *request);
/* The last slot of a request with waiting choices is granted to the next of them instead of being freed. */
void scheduler_end_choice(Scheduler *scheduler, Request *request, AnswerChoice *choice, Finish finish);
void scheduler_end_all(Scheduler *scheduler, Request *request, Finish finish); /* ends every choice */
/* All choices have ended: returns everything and releases the engine's reference. */
void scheduler_retire(Scheduler *scheduler, Request *request);
