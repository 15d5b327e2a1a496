#include "engine/token_mask.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"

static size_t words_of(int vocab) { return ((size_t)vocab + 63) / 64; }

static bool is_empty(const uint64_t *mask, size_t words) {
    uint64_t any = 0;
    for (size_t i = 0; i < words; i++) any |= mask[i];
    return any == 0;
}

/* The only token of a mask that is not empty; −1: there are more. */
static int32_t find_only(const uint64_t *mask, size_t words) {
    int32_t only = -1;
    for (size_t i = 0; i < words; i++) {
        if (!mask[i]) continue;
        if (only >= 0 || mask[i] & (mask[i] - 1)) return -1;
        only = (int32_t)(i * 64) + __builtin_ctzll(mask[i]);
    }
    return only;
}

/* Takes the end tokens out; whether there were any. */
static bool take_ends(uint64_t *mask, EndTokens ends) {
    bool found = false;
    for (int i = 0; i < ends.count; i++) {
        uint64_t *word = &mask[ends.ids[i] / 64];
        const uint64_t bit = (uint64_t)1 << (ends.ids[i] % 64);
        found |= (*word & bit) != 0;
        *word &= ~bit;
    }
    return found;
}

static void put_ends(uint64_t *mask, EndTokens ends) {
    for (int i = 0; i < ends.count; i++) mask[ends.ids[i] / 64] |= (uint64_t)1 << (ends.ids[i] % 64);
}

/* What the mask, cut to the vocabulary, leaves to do. */
static TokenMaskKind settle(
    const Request *request, int generated, uint64_t *mask, size_t words, int vocab, EndTokens ends) {
    if (vocab % 64) mask[words - 1] &= ((uint64_t)1 << (vocab % 64)) - 1;
    const bool may_end = take_ends(mask, ends);
    if (is_empty(mask, words)) return MASK_END;
    if (may_end && !request->sampling.ignore_eos && generated >= request->sampling.min_tokens) put_ends(mask, ends);
    return MASK_SOME;
}

/* Without log-probabilities and biases, which need the model's logits for each token. */
static bool takes_jump_ahead(const Request *request) {
    return request->constraint->ops->jump_ahead && request->sampling.logprobs < 0 && request->sampling.bias_count == 0;
}

/* Tokenizers may have more tokens than their models: from such a one on nothing is forced. */
static bool find_forced(Request *request, AnswerChoice *choice, int32_t last, int vocab, Error *error) {
    Constraint *constraint = request->constraint;
    int count = 0;
    choice->jump_ahead_at = choice->jump_ahead_count = 0;
    if (takes_jump_ahead(request) &&
        !constraint->ops->jump_ahead(
            constraint, choice->where, last, choice->jump_ahead, JUMP_AHEAD_MAX, &count, error))
        return false;
    while (choice->jump_ahead_count < count && choice->jump_ahead[choice->jump_ahead_count] < vocab)
        choice->jump_ahead_count++;
    return true;
}

/* Goes on with the forced tokens, or finds some: the next one is the only one then. */
static bool next_jump_ahead(Request *request, AnswerChoice *choice, int32_t last, int vocab, Error *error) {
    if (choice->jump_ahead_at == choice->jump_ahead_count && !find_forced(request, choice, last, vocab, error))
        return false;
    choice->only = choice->jump_ahead_at < choice->jump_ahead_count ? choice->jump_ahead[choice->jump_ahead_at++] : -1;
    if (choice->only < 0) return true;
    memset(choice->mask, 0, words_of(vocab) * sizeof *choice->mask);
    choice->mask[choice->only / 64] |= (uint64_t)1 << (choice->only % 64);
    choice->mask_kind = MASK_SOME;
    choice->sampler.mask = choice->mask;
    return true;
}

bool token_mask_update(Request *request, AnswerChoice *choice, int vocab, EndTokens ends, Error *error) {
    Constraint *constraint = request->constraint;
    if (!constraint || choice->mask_kind != MASK_UNKNOWN) return true;
    bool any = false;
    if (choice->generated == 0) choice->where = constraint->start;
    const int32_t last = choice->generated ? request_answer_id(request, choice, choice->generated - 1) : -1;
    if (choice->generated && !constraint->ops->accept(constraint, &choice->where, last, error)) return false;
    if (!next_jump_ahead(request, choice, last, vocab, error)) return false;
    if (choice->mask_kind != MASK_UNKNOWN) return true;
    if (!constraint->ops->mask(constraint, choice->where, choice->mask, &any, error)) return false;
    choice->mask_kind = any ? MASK_ANY : settle(request, choice->generated, choice->mask, words_of(vocab), vocab, ends);
    choice->only = choice->mask_kind == MASK_SOME ? find_only(choice->mask, words_of(vocab)) : -1;
    choice->sampler.mask = choice->mask_kind == MASK_SOME ? choice->mask : NULL;
    return true;
}

/* ---- ahead ---- */

typedef enum JobState { JOB_FREE, JOB_ADDED, JOB_WAITS, JOB_RUNS, JOB_DONE } JobState;

typedef struct Job {
    JobState state;
    bool ok, slow;      /* slow: no step waits for it */
    uint64_t candidate; /* number in order of arrival; the lowest runs first */
    int64_t took_ns;
    Request *request; /* a reference */
    AnswerChoice *choice;
    Error error;
} Job;

struct MaskWorkers {
    int vocab, capacity, added;
    uint64_t candidates;
    EndTokens ends;
    Job *jobs; /* [capacity]: a choice has one at most */
    Thread threads[AHEAD_THREADS];
    int thread_count; /* started by the first job: most engines never see one */
    Mutex mutex;
    Condition wanted, changed;
    bool closing;
};

static bool is_busy(const MaskWorkers *a, const Constraint *constraint) {
    bool busy = false;
    for (int i = 0; i < a->capacity; i++)
        busy = busy || (a->jobs[i].state == JOB_RUNS && a->jobs[i].request->constraint == constraint);
    return busy;
}

/* Under the mutex: the oldest to run. Those of one constraint are run one by one, and so are slow ones. */
static Job *find_job(MaskWorkers *a) {
    bool slow = false;
    for (int i = 0; i < a->capacity; i++) slow = slow || (a->jobs[i].state == JOB_RUNS && a->jobs[i].slow);
    Job *oldest = NULL;
    for (int i = 0; i < a->capacity; i++) {
        Job *job = &a->jobs[i];
        if (job->state != JOB_WAITS || (job->slow && slow) || (oldest && oldest->candidate < job->candidate)) continue;
        if (!is_busy(a, job->request->constraint)) oldest = job;
    }
    return oldest;
}

static void *ahead_run(void *argument) {
    MaskWorkers *a = argument;
    mutex_lock(&a->mutex);
    while (!a->closing) {
        Job *job = find_job(a);
        if (!job) {
            condition_wait(&a->wanted, &a->mutex);
            continue;
        }
        job->state = JOB_RUNS;
        mutex_unlock(&a->mutex);
        const int64_t start_ns = clock_ns();
        const bool ok = token_mask_update(job->request, job->choice, a->vocab, a->ends, &job->error);
        mutex_lock(&a->mutex);
        job->ok = ok;
        job->took_ns = clock_ns() - start_ns;
        job->state = JOB_DONE;
        condition_broadcast(&a->wanted); /* another of its constraint may wait */
        condition_broadcast(&a->changed);
    }
    mutex_unlock(&a->mutex);
    return NULL;
}

MaskWorkers *mask_workers_open(int slots, int vocab, EndTokens ends, Error *error) {
    MaskWorkers *a = calloc(1, sizeof *a);
    const int capacity = slots + AHEAD_THREADS; /* some of answers that have ended may still run */
    Job *jobs = calloc((size_t)capacity, sizeof *jobs);
    if (!a || !jobs) {
        free(a);
        free(jobs);
        fail(error, ERROR_MEMORY, "no memory for masks of %d sequences", slots);
        return NULL;
    }
    *a = (MaskWorkers){.vocab = vocab, .capacity = capacity, .ends = ends, .jobs = jobs};
    mutex_init(&a->mutex);
    condition_init(&a->wanted);
    condition_init(&a->changed);
    return a;
}

static void drop_job(Job *job) {
    job->request->constraint->jobs--;
    request_release(job->request);
    *job = (Job){0};
}

void mask_workers_close(MaskWorkers *a) {
    if (!a) return;
    mutex_lock(&a->mutex);
    a->closing = true;
    condition_broadcast(&a->wanted);
    mutex_unlock(&a->mutex);
    for (int i = 0; i < a->thread_count; i++) thread_join(a->threads[i]);
    for (int i = 0; i < a->capacity; i++)
        if (a->jobs[i].state != JOB_FREE) drop_job(&a->jobs[i]);
    condition_destroy(&a->wanted);
    condition_destroy(&a->changed);
    mutex_destroy(&a->mutex);
    free(a->jobs);
    free(a);
}

/* True for a job of an ended answer: it need not be started, and its result is not used. Its place is free at once: the
 * next answer in the same slot may bring a job before the end of the step releases this one. */
static bool is_idle(const Job *job) {
    return (job->state == JOB_WAITS || job->state == JOB_DONE) && job->choice->state == CHOICE_ENDED;
}

void mask_workers_add(MaskWorkers *a, Request *request, AnswerChoice *choice) {
    if (!request->constraint || choice->mask_kind != MASK_UNKNOWN) return;
    Job *job = a->jobs;
    mutex_lock(&a->mutex);
    while (job->state != JOB_FREE && !is_idle(job)) CHECK(++job < a->jobs + a->capacity);
    if (job->state != JOB_FREE) drop_job(job);
    request_retain(request);
    *job = (Job){.state = JOB_ADDED,
        .slow = request->constraint->slow,
        .candidate = a->candidates++,
        .request = request,
        .choice = choice};
    mutex_unlock(&a->mutex);
    request->constraint->jobs++;
    a->added++;
}

static bool start_threads(MaskWorkers *a) {
    Error why = {0};
    while (a->thread_count < AHEAD_THREADS) {
        if (!thread_start(&a->threads[a->thread_count], ahead_run, a, "apus-masks", &why)) break;
        a->thread_count++;
    }
    if (a->thread_count == 0) log_warn("%s", why.text);
    return a->thread_count > 0;
}

/* Without a thread the masks are computed when they are wanted. */
void mask_workers_begin(MaskWorkers *a) {
    if (a->added == 0) return;
    const bool chunks = start_threads(a);
    mutex_lock(&a->mutex);
    for (int i = 0; i < a->capacity; i++) {
        Job *job = &a->jobs[i];
        if (job->state != JOB_ADDED) continue;
        job->state = JOB_WAITS;
        if (!chunks) drop_job(job);
    }
    a->added = 0;
    condition_broadcast(&a->wanted);
    mutex_unlock(&a->mutex);
}

static bool is_awaited(const Job *job, bool any) {
    return (job->state == JOB_WAITS || job->state == JOB_RUNS) && (any || !job->slow);
}

/* Whether to wait on: for all but the slow ones, or, with `any`, for the first of them all. */
static bool must_wait(const MaskWorkers *a, bool any) {
    bool awaited = false, done = false;
    for (int i = 0; i < a->capacity; i++) {
        awaited = awaited || is_awaited(&a->jobs[i], any);
        done = done || a->jobs[i].state == JOB_DONE;
    }
    return awaited && !(any && done);
}

/* Takes a complete mask. A mask that is still computed is late, and its constraint counts as slow. */
static void settle_job(Job *job, bool any) {
    Constraint *constraint = job->request->constraint;
    if (job->state == JOB_DONE) {
        constraint->slow = job->took_ns > LATE_MS * INT64_C(1000000);
        if (!job->ok) request_fail(job->request, &job->error);
        drop_job(job);
    } else if (is_idle(job)) {
        drop_job(job);
    } else if (!any) {
        job->slow = constraint->slow = constraint->slow || job->state == JOB_RUNS;
    }
}

void mask_workers_end(MaskWorkers *a, bool any) {
    if (a->thread_count == 0) return;
    const int64_t deadline_ns = clock_ns() + LATE_MS * INT64_C(1000000);
    mutex_lock(&a->mutex);
    while (must_wait(a, any)) {
        const int64_t left_ns = deadline_ns - clock_ns();
        if (left_ns <= 0) break;
        condition_wait_ms(&a->changed, &a->mutex, (left_ns + 999999) / 1000000);
    }
    for (int i = 0; i < a->capacity; i++)
        if (a->jobs[i].state != JOB_FREE) settle_job(&a->jobs[i], any);
    mutex_unlock(&a->mutex);
}
