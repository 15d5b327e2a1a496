#include "engine/allowed.h"

#include <stdlib.h>
#include <string.h>

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
static Allowed settle(const Request *request, int generated, uint64_t *mask, size_t words, int vocab, EndTokens ends) {
    if (vocab % 64) mask[words - 1] &= ((uint64_t)1 << (vocab % 64)) - 1;
    const bool may_end = take_ends(mask, ends);
    if (is_empty(mask, words)) return ALLOWED_END;
    if (may_end && !request->sampling.ignore_eos && generated >= request->sampling.min_tokens) put_ends(mask, ends);
    return ALLOWED_SOME;
}

/* Log-probabilities are of tokens that the model chose among others, and so are biases for it to choose by. */
static bool takes_forced(const Request *request) {
    return request->constraint->ops->forced && request->sampling.logprobs < 0 && request->sampling.bias_count == 0;
}

/* Goes on with the forced tokens, or finds some: the next one is the only one then. */
static bool next_forced(Request *request, AnswerChoice *choice, int32_t last, int vocab, Error *error) {
    Constraint *constraint = request->constraint;
    if (choice->forced_at == choice->forced_count) {
        choice->forced_at = choice->forced_count = 0;
        if (takes_forced(request) &&
            !constraint->ops->forced(
                constraint, choice->where, last, choice->forced, FORCED_MAX, &choice->forced_count, error))
            return false;
    }
    choice->only = choice->forced_at < choice->forced_count ? choice->forced[choice->forced_at++] : -1;
    if (choice->only < 0) return true;
    CHECK(choice->only < vocab);
    memset(choice->mask, 0, words_of(vocab) * sizeof *choice->mask);
    choice->mask[choice->only / 64] |= (uint64_t)1 << (choice->only % 64);
    choice->allowed = ALLOWED_SOME;
    choice->sampler.mask = choice->mask;
    return true;
}

bool allowed_update(Request *request, AnswerChoice *choice, int vocab, EndTokens ends, Error *error) {
    Constraint *constraint = request->constraint;
    if (!constraint || choice->allowed != ALLOWED_UNKNOWN) return true;
    bool any = false;
    if (choice->generated == 0) choice->where = constraint->start;
    const int32_t last = choice->generated ? request_answer_id(request, choice, choice->generated - 1) : -1;
    if (choice->generated && !constraint->ops->accept(constraint, &choice->where, last, error)) return false;
    if (!next_forced(request, choice, last, vocab, error)) return false;
    if (choice->allowed != ALLOWED_UNKNOWN) return true;
    if (!constraint->ops->mask(constraint, choice->where, choice->mask, &any, error)) return false;
    choice->allowed =
        any ? ALLOWED_ANY : settle(request, choice->generated, choice->mask, words_of(vocab), vocab, ends);
    choice->only = choice->allowed == ALLOWED_SOME ? find_only(choice->mask, words_of(vocab)) : -1;
    choice->sampler.mask = choice->allowed == ALLOWED_SOME ? choice->mask : NULL;
    return true;
}

/* ---- ahead ---- */

typedef struct Job {
    Request *request;
    AnswerChoice *choice;
    bool ok;
    Error error;
} Job;

struct AllowedAhead {
    int vocab, capacity, count;
    EndTokens ends;
    Job *jobs; /* [slots] */
    Thread thread;
    bool runs; /* started by the first job: most engines never see one */
    Mutex mutex;
    Condition changed;
    bool busy, closing; /* busy: count and jobs are the thread's */
};

static void *ahead_run(void *argument) {
    AllowedAhead *a = argument;
    mutex_lock(&a->mutex);
    for (;;) {
        while (!a->busy && !a->closing) condition_wait(&a->changed, &a->mutex);
        if (a->closing) break;
        mutex_unlock(&a->mutex);
        for (int i = 0; i < a->count; i++) {
            Job *job = &a->jobs[i];
            job->ok = allowed_update(job->request, job->choice, a->vocab, a->ends, &job->error);
        }
        mutex_lock(&a->mutex);
        a->busy = false;
        condition_broadcast(&a->changed);
    }
    mutex_unlock(&a->mutex);
    return NULL;
}

AllowedAhead *allowed_ahead_open(int slots, int vocab, EndTokens ends, Error *error) {
    AllowedAhead *a = calloc(1, sizeof *a);
    Job *jobs = calloc((size_t)slots, sizeof *jobs);
    if (!a || !jobs) {
        free(a);
        free(jobs);
        fail(error, ERROR_MEMORY, "no memory for masks of %d sequences", slots);
        return NULL;
    }
    *a = (AllowedAhead){.vocab = vocab, .capacity = slots, .ends = ends, .jobs = jobs};
    mutex_init(&a->mutex);
    condition_init(&a->changed);
    return a;
}

void allowed_ahead_close(AllowedAhead *a) {
    if (!a) return;
    mutex_lock(&a->mutex);
    a->closing = true;
    condition_broadcast(&a->changed);
    mutex_unlock(&a->mutex);
    if (a->runs) thread_join(a->thread);
    condition_destroy(&a->changed);
    mutex_destroy(&a->mutex);
    free(a->jobs);
    free(a);
}

void allowed_ahead_add(AllowedAhead *a, Request *request, AnswerChoice *choice) {
    if (!request->constraint || choice->allowed != ALLOWED_UNKNOWN) return;
    CHECK(a->count < a->capacity);
    a->jobs[a->count++] = (Job){.request = request, .choice = choice, .ok = true};
}

/* Without the thread the masks are computed when they are wanted. */
void allowed_ahead_begin(AllowedAhead *a) {
    Error why = {0};
    if (a->count == 0) return;
    if (!a->runs) a->runs = thread_start(&a->thread, ahead_run, a, "apus-masks", &why);
    if (!a->runs) {
        log_warn("%s", why.text);
        a->count = 0;
        return;
    }
    mutex_lock(&a->mutex);
    a->busy = true;
    condition_broadcast(&a->changed);
    mutex_unlock(&a->mutex);
}

void allowed_ahead_end(AllowedAhead *a) {
    if (a->count == 0) return;
    mutex_lock(&a->mutex);
    while (a->busy) condition_wait(&a->changed, &a->mutex);
    mutex_unlock(&a->mutex);
    for (int i = 0; i < a->count; i++)
        if (!a->jobs[i].ok) request_fail(a->jobs[i].request, &a->jobs[i].error);
    a->count = 0;
}
