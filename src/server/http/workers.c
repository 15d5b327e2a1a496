#include "server/http/workers.h"

#include <stdlib.h>

#include "base/thread.h"

enum { IDLE_KEPT = 8 };

typedef struct Job {
    void (*run)(void *context);
    void *context;
} Job;

struct Workers {
    Mutex mutex;
    Condition given, gone;
    int max, working; /* jobs that have not ended */
    int count;        /* number of threads */
    int idle;         /* threads without a job */
    Thread ended;     /* the one that ended last, for the next to join */
    bool one_ended, stopping;
    int job_count;
    Job jobs[]; /* given to idle threads, which have not taken them yet */
};

/* Under the mutex; false: this thread is one too many. */
static bool take_job(Workers *workers, Job *job) {
    if (!workers->job_count && workers->idle >= IDLE_KEPT) return false;
    workers->idle++;
    while (!workers->job_count && !workers->stopping) condition_wait(&workers->given, &workers->mutex);
    workers->idle--;
    if (!workers->job_count) return false;
    *job = workers->jobs[--workers->job_count];
    return true;
}

static void *work(void *argument) {
    Workers *workers = argument;
    Job job;
    mutex_lock(&workers->mutex);
    while (take_job(workers, &job)) {
        mutex_unlock(&workers->mutex);
        job.run(job.context);
        mutex_lock(&workers->mutex);
        workers->working--;
    }
    const Thread before = workers->ended;
    const bool join = workers->one_ended;
    workers->ended = pthread_self();
    workers->one_ended = true;
    workers->count--;
    condition_signal(&workers->gone);
    mutex_unlock(&workers->mutex);
    if (join) thread_join(before);
    return NULL;
}

Workers *workers_open(int max, Error *error) {
    Workers *workers = calloc(1, sizeof *workers + (size_t)max * sizeof workers->jobs[0]);
    if (!workers) {
        fail(error, ERROR_MEMORY, "no memory for threads that answer");
        return NULL;
    }
    workers->max = max;
    mutex_init(&workers->mutex);
    condition_init(&workers->given);
    condition_init(&workers->gone);
    return workers;
}

static bool start_worker(Workers *workers, Error *error) {
    Thread thread;
    if (!thread_start(&thread, work, workers, "answer", error)) return false;
    workers->count++;
    return true;
}

bool workers_give(Workers *workers, int spare, void (*run)(void *context), void *context, Error *error) {
    mutex_lock(&workers->mutex);
    const bool ok = workers->working + spare < workers->max
        ? workers->idle > workers->job_count || start_worker(workers, error)
        : fail(error, ERROR_BUSY, "%d of %d threads work", workers->working, workers->max);
    if (ok) {
        workers->jobs[workers->job_count++] = (Job){run, context};
        workers->working++;
    }
    mutex_unlock(&workers->mutex);
    if (ok) condition_signal(&workers->given);
    return ok;
}

void workers_close(Workers *workers) {
    if (!workers) return;
    mutex_lock(&workers->mutex);
    workers->stopping = true;
    condition_broadcast(&workers->given);
    while (workers->count > 0) condition_wait(&workers->gone, &workers->mutex);
    mutex_unlock(&workers->mutex);
    if (workers->one_ended) thread_join(workers->ended);
    condition_destroy(&workers->given);
    condition_destroy(&workers->gone);
    mutex_destroy(&workers->mutex);
    free(workers);
}
