/* What runs next: the queue, the slots, the page pool's promises and the rows of a step.
 * Admission is by promise: a request enters when the pages that it can need at most are free, so nothing that runs can
 * run out of them. The queue is first come, first served, but a request that waits for pages may be passed PASSES_MAX
 * times. A step has one row per running choice and up to prefill_size prompt tokens: half of them for the oldest
 * prompt, the other half shared by the younger ones, so that a short prompt does not wait for a long one. Beside
 * running choices there are fewer prompt tokens where the machine is slow: a step then takes some STEP_MS, as streams
 * stand still that long. */
#pragma once
#include "engine/request.h"

enum {
    PASSES_MAX = 16,
    ECHO_ROWS = 16, /* prompt rows per step whose logits are wanted */
    STEP_MS = 300,
    PREFILL_LEAST = 64, /* prompt tokens however long they take: fewer cost nearly as much */
};

typedef struct RequestList {
    Request *first, *last;
    int count;
} RequestList;

/* Consecutive rows of the step that belong to one sequence. */
typedef struct Part {
    Request *request;
    AnswerChoice *choice; /* NULL: a piece of the prompt */
    int rows;
    int output, outputs; /* which logits are its */
} Part;

typedef struct Scheduler {
    const KvPlan *plan;
    KvCache *kv;
    int slots, queue_max, prefill_size;
    int context; /* tokens a sequence may hold: the model's, or fewer when the page pool is smaller */
    size_t pool; /* bytes */

    RequestList waiting; /* under the engine's mutex */
    atomic_int used; /* slots; grows under the mutex only, so a submitter sees a queue and slots that belong together */
    RequestList active; /* the engine thread's, as everything below; in order of admission */
    size_t charged;     /* bytes promised */

    Step step;
    int32_t *tokens, *positions, *outputs;
    Run *runs;
    Part *parts;
    int part_count, output_count;
    int prompt_rows;     /* of this step */
    double prompt_row_s; /* what one takes; 0: not known yet */
} Scheduler;

NODISCARD bool scheduler_open(
    Scheduler *scheduler, const Runner *runner, KvCache *kv, const EngineOptions *options, Error *error);
void scheduler_close(Scheduler *scheduler);

/* Any thread: how many tokens an answer may have, or 0 with ERROR_LIMIT. */
int scheduler_fit(const Scheduler *scheduler, const RequestOptions *options, Error *error);

/* Under the engine's mutex. */
bool scheduler_full(const Scheduler *scheduler);
void scheduler_queue(Scheduler *scheduler, Request *request); /* takes over a reference */
void scheduler_admit(Scheduler *scheduler);                   /* by the engine thread */

/* Engine thread. */
void scheduler_plan(Scheduler *scheduler); /* fills step, parts and outputs; no parts: nothing to run */
void scheduler_note_step(Scheduler *scheduler, double seconds); /* what the planned step took */
void scheduler_free_slot(Scheduler *scheduler, Request *request);
/* The last slot of a request whose further choices wait is not freed but granted to the next of them. */
void scheduler_end_choice(Scheduler *scheduler, Request *request, AnswerChoice *choice, Finish finish);
void scheduler_end_all(Scheduler *scheduler, Request *request, Finish finish);
/* Every choice has ended: gives everything back and drops the engine's reference. */
void scheduler_retire(Scheduler *scheduler, Request *request);
