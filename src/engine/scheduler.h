/* What runs next: the queue, the slots, who gets pages, and the rows of a step.
 * Memory is used, not promised: a request enters when the pages of its prompt, less what is found of it, and of
 * ANSWER_ROOM tokens of its answer are free, or could be had from the prefix cache; what is left of that, or a page, is
 * counted for everybody who runs as well. When pages run out in a step, the youngest is parked and comes back before
 * anybody else enters; what it computes is the same. A request that would not fit alone is refused. The queue is first
 * come, first served, but a request that waits for pages may be passed SKIPS_MAX times. A step has one row per running
 * choice and up to prefill_size prompt tokens: half of them for the oldest prompt, the other half shared by the younger
 * ones, so that a short prompt does not wait for a long one. Beside running choices there are fewer prompt tokens where
 * the machine is slow: a step then takes some STEP_MS, as streams stand still that long. Pages of a prompt that are on
 * disk are read before its first row, a few between one step and the next.
 * A runner may tell tokens of answers from those of prompts (runner_decode_rows_max): then they come first in a step
 * and are counted, also where they are read again or forced, so that a token is computed alike whatever happens to it;
 * and what is left to be found ends where the prompt does, as others may have the answer in theirs. */
#pragma once
#include "engine/sequences.h"

enum {
    SKIPS_MAX = 16,
    ANSWER_ROOM = 256, /* tokens */
    LOOKUPS_MAX = 4,   /* for those who wait, per round: whether what is found of them makes them fit */
    ECHO_ROWS = 16,    /* prompt rows per step whose logits are wanted */
    STEP_MS = 300,
    PREFILL_LEAST = 64, /* prompt tokens however long they take: fewer cost nearly as much */
    SEEK_MS = 20,       /* for reading pages from disk before a step; a page at least */
};

typedef struct RequestList {
    Request *first, *last;
    int count;
} RequestList;

/* Somebody who may have rows in the step that is planned. */
typedef struct StepCandidate {
    Request *request;
    AnswerChoice *choice; /* NULL: its prompt */
    bool reads;           /* several tokens, as of a prompt; or one that was just drawn */
    bool generated;       /* they are told from a prompt's */
    int rows;
} StepCandidate;

/* Consecutive rows of the step that belong to one sequence. */
typedef struct StepSlice {
    Request *request;
    AnswerChoice *choice;   /* NULL: a piece of the prompt */
    int rows, position;     /* of its first row in the sequence */
    int output, outputs;    /* which logits are its */
    int state, hidden_rows; /* and which states */
} StepSlice;

/* A step and whose its rows are. */
typedef struct StepPlan {
    Step step;
    int32_t *tokens, *positions, *outputs, *hidden_rows;
    float *scales;               /* of the outputs, as they will be drawn from: by the engine, */
    SampleParams *sample_params; /* or all where their logits are: */
    bool sampled;
    SequenceChunk *chunks;
    StepSlice *slices;
    int slice_count, output_count, hidden_row_count;
    int prompt_rows;
    bool lookahead;   /* of the step before, which has not ended */
    RunnerStep begun; /* the engine's, as is */
    int64_t begun_ns;
} StepPlan;

typedef struct Scheduler {
    Sequences sequences;
    int slots, queue_max, prefill_size;
    int decode_rows_max; /* rows of a step that are told from prompts'; 0: none, as the runner does not */
    bool uniform_matmul; /* slots are more than the runner's products can tell (Step.many) */
    int context;         /* tokens a sequence may hold: the model's, or fewer when the page pool is smaller */
    int model_context;
    size_t pool; /* bytes */

    RequestList waiting; /* under the engine's mutex */
    atomic_int used; /* slots; grows under the mutex only, so a submitter sees a queue and slots that belong together */
    atomic_int preempted; /* who wait for a slot again */
    RequestList active;   /* the engine thread's, as everything below; in order of admission */
    size_t room;          /* bytes for whoever enters; */
    bool room_known;      /* counted since somebody entered last */
    int lookups;          /* left in this round */
    uint64_t preempt_count, resume_count, prompts_looked_up, prompts_found, tokens_found;

    StepCandidate *candidates;                    /* by age */
    int candidate_count, readers, answer_readers; /* of those, whose rows are generated */
    bool left_out;                                /* somebody has no turn, as a mask is late, and keeps pages */
    StepPlan plans[2];
    bool sample_params, can_lookahead; /* whether the runner does */
    double prompt_row_s;               /* what one takes; 0: not known yet */
} Scheduler;

NODISCARD bool scheduler_open(
    Scheduler *scheduler, const Runner *runner, KvCache *kv, const EngineOptions *options, Error *error);
void scheduler_close(Scheduler *scheduler);

/* Any thread: how many tokens an answer may have, or 0 with ERROR_LIMIT and both numbers. */
int scheduler_fit(const Scheduler *scheduler, const RequestOptions *options, Error *error);

/* Under the engine's mutex. */
bool scheduler_full(const Scheduler *scheduler);
void scheduler_queue(Scheduler *scheduler, Request *request); /* takes over a reference */
void scheduler_admit(Scheduler *scheduler);                   /* by the engine thread */

/* Engine thread. */
void scheduler_plan(Scheduler *scheduler, StepPlan *plan); /* no parts: nothing to run */
/* The step after one that is under way and draws its own tokens: for the same choices, less those that end with it for
 * certain. What is computed for one that ends otherwise is nobody's. False: the other step must end first, as somebody
 * has more to do than to go on, or pages are short. */
bool scheduler_plan_lookahead(Scheduler *scheduler, const StepPlan *under_way, StepPlan *plan);
void scheduler_note_step(Scheduler *scheduler, const StepPlan *plan, double seconds); /* what it took */
/* Gives up its slot and pages; a prompt that is being read (choice NULL) or a running choice. */
void scheduler_preempt(Scheduler *scheduler, Request *request, AnswerChoice *choice);
void scheduler_free_slot(Scheduler *scheduler, Request *request);
/* The last slot of a request whose further choices wait is not freed but granted to the next of them. */
void scheduler_end_choice(Scheduler *scheduler, Request *request, AnswerChoice *choice, Finish finish);
void scheduler_end_all(Scheduler *scheduler, Request *request, Finish finish);
/* Every choice has ended: gives everything back and drops the engine's reference. */
void scheduler_retire(Scheduler *scheduler, Request *request);
