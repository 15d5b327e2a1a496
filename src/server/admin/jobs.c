#include "server/admin/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"
#include "library/library.h"
#include "library/local.h"
#include "server/admin/metrics.h"

enum { LOAD_STEP_MS = 200, ACT_WAIT_MS = 5000 };

typedef enum Stop { STOP_NONE, STOP_CANCEL, STOP_PAUSE } Stop;

typedef struct Job {
    Jobs *jobs;
    JobStatus status; /* under the mutex of the jobs */
    Stop stop;        /* under the mutex: request to the running thread to stop */
    Thread thread;
    bool has_thread;  /* to be joined */
    int64_t stage_ns; /* when the stage began */
} Job;

struct Jobs {
    Server *server;
    Mutex mutex; /* guards all that follows, and the jobs */
    Condition changed;
    uint64_t numbers, versions; /* given so far */
    int running;
    bool closing;
    int count;
    Job *list[JOBS_MAX]; /* by number */
};

/* ---- under the mutex ---- */

static void touch(Job *job) { job->status.version = ++job->jobs->versions; }

static bool is_finished(const Job *job) {
    return job->status.state != JOB_QUEUED && job->status.state != JOB_RUNNING && job->status.state != JOB_PAUSED;
}

static Job *find(Jobs *jobs, Slice id) {
    for (int i = 0; i < jobs->count; i++)
        if (slice_is(id, jobs->list[i]->status.id)) return jobs->list[i];
    return NULL;
}

/* Joins the thread of a job that does not run; the thread no longer needs the mutex. */
static void join(Job *job) {
    if (job->has_thread) thread_join(job->thread);
    job->has_thread = false;
}

static void drop(Jobs *jobs, int index) {
    Job *job = jobs->list[index];
    join(job);
    free(job);
    jobs->count--;
    memmove(&jobs->list[index], &jobs->list[index + 1], (size_t)(jobs->count - index) * sizeof jobs->list[0]);
}

static void *run(void *argument);

static void start_queued(Jobs *jobs) {
    for (int i = 0; i < jobs->count && jobs->running < JOBS_RUNNING_MAX && !jobs->closing; i++) {
        Job *job = jobs->list[i];
        if (job->status.state != JOB_QUEUED) continue;
        join(job);
        job->stop = STOP_NONE;
        job->status.error = (Error){0};
        job->has_thread = thread_start(&job->thread, run, job, "job", &job->status.error);
        job->status.state = job->has_thread ? JOB_RUNNING : JOB_FAILED;
        jobs->running += job->has_thread;
        touch(job);
    }
    condition_broadcast(&jobs->changed);
}

/* ---- work, by the job's thread ---- */

static bool goes_on(Job *job) {
    return !job->stop && !job->jobs->closing && !__atomic_load_n(&job->jobs->server->stopping, __ATOMIC_RELAXED);
}

static void set_stage(Job *job, JobStage stage) {
    if (job->status.stage != stage) {
        job->stage_ns = clock_ns();
        job->status.progress = (HubProgress){.eta_s = -1};
    }
    job->status.stage = stage;
    touch(job);
}

static bool watch_download(void *context, const HubProgress *progress) {
    static const JobStage stages[] = {
        [HUB_ASKING] = JOB_ASKING,
        [HUB_DOWNLOADING] = JOB_DOWNLOADING,
        [HUB_CHECKING] = JOB_CHECKING,
        [HUB_WAITING] = JOB_WAITING,
    };
    Job *job = context;
    mutex_lock(&job->jobs->mutex);
    set_stage(job, stages[progress->phase]);
    job->status.progress = *progress;
    job->status.progress.why = NULL;
    snprintf(job->status.reason, sizeof job->status.reason, "%s", progress->why ? progress->why : "");
    const bool on = goes_on(job);
    mutex_unlock(&job->jobs->mutex);
    return on;
}

static bool watch_conversion(void *context, uint64_t done_bytes, uint64_t total_bytes) {
    Job *job = context;
    mutex_lock(&job->jobs->mutex);
    set_stage(job, JOB_CONVERTING);
    const double seconds = (double)(clock_ns() - job->stage_ns) * 1e-9;
    HubProgress *p = &job->status.progress;
    p->done_bytes = done_bytes;
    p->total_bytes = total_bytes;
    p->bytes_per_s = seconds > 0 ? (double)done_bytes / seconds : 0;
    p->eta_s = p->bytes_per_s > 0 ? (double)(total_bytes - done_bytes) / p->bytes_per_s : -1;
    const bool on = goes_on(job);
    mutex_unlock(&job->jobs->mutex);
    return on;
}

/* Appends the path of a model that is here, or that may be downloaded. */
static bool find_path(Job *job, const LibraryWatch *watch, Buffer *path, Error *error) {
    HubName name;
    Error unknown = {0};
    if (local_find(job->status.model, path, &unknown)) return true;
    const bool may_download = unknown.code == ERROR_NOT_FOUND && job->jobs->server->options.allow_pull &&
        hub_name_parse(job->status.model, &name, NULL);
    if (may_download) return library_fetch(&name, false, watch, path, error);
    *error = unknown;
    return false;
}

/* A conversion takes as much of the disk as its file. */
static bool may_convert(const Job *job, const char *path, Error *error) {
    Buffer directory = {0};
    const size_t size = strlen(path);
    const bool gguf = size > 5 && !strcmp(path + size - 5, ".gguf");
    bool ok = !gguf || job->jobs->server->options.allow_pull ||
        (library_conversion(path, &directory, error) && file_is_directory(directory.data));
    buffer_free(&directory);
    return ok || fail(error, ERROR_USAGE, "%s has to be converted first, which needs --allow-pull", job->status.model);
}

/* The text of a failure may name files: clients get those texts that they can act on. */
static bool hide_reason(const char *model, Error *error) {
    const ErrorCode code = error->code;
    if (code == ERROR_MEMORY || code == ERROR_LIMIT || code == ERROR_UNSUPPORTED || code == ERROR_USAGE ||
        code == ERROR_BUSY || code == ERROR_CANCELLED)
        return false;
    log_error("%s: %s", model, error->text);
    return fail(error, code, "%s could not be loaded; the server's log says why", model);
}

/* In steps, as the job may be cancelled while the model is loaded. */
static bool wait_loaded(Job *job, const char *name, Error *error) {
    Jobs *jobs = job->jobs;
    for (bool on = true; on;) {
        Error why = {0};
        const int64_t deadline_ns = clock_ns() + LOAD_STEP_MS * INT64_C(1000000);
        if (models_load(jobs->server->models, slice_of(name), deadline_ns, &why)) return true;
        if (why.code != ERROR_CANCELLED) {
            *error = why;
            return hide_reason(job->status.model, error);
        }
        mutex_lock(&jobs->mutex);
        on = goes_on(job);
        mutex_unlock(&jobs->mutex);
    }
    return fail(error, ERROR_CANCELLED, "stopped");
}

static bool serve(Job *job, const char *name, const char *directory, Error *error) {
    Server *server = job->jobs->server;
    const ModelSource source = {.name = name, .directory = directory};
    const bool fresh = directory && models_find(server->models, slice_of(name)) < 0;
    mutex_lock(&job->jobs->mutex);
    set_stage(job, JOB_LOADING);
    mutex_unlock(&job->jobs->mutex);
    const int index = directory ? models_add(server->models, &source, error) : 0;
    if (index < 0) return false;
    if (fresh) metrics_note_added(server->metrics, index);
    const bool ok = wait_loaded(job, name, error);
    Error ignored;
    if (!ok && fresh) (void)!models_remove(server->models, slice_of(name), &ignored);
    mutex_lock(&job->jobs->mutex);
    if (ok) snprintf(job->status.served, sizeof job->status.served, "%s", name);
    mutex_unlock(&job->jobs->mutex);
    return ok;
}

static bool convert_and_serve(Job *job, const LibraryWatch *watch, Error *error) {
    Buffer path = {0}, directory = {0}, name = {0};
    bool ok = find_path(job, watch, &path, error) && may_convert(job, path.data, error) &&
        library_resolve(path.data, watch, &directory, error);
    library_name_of(job->status.model, &name);
    if (ok && name.failed) ok = fail(error, ERROR_MEMORY, "no memory for the name of a model");
    if (ok && job->status.kind == JOB_LOAD) ok = serve(job, name.data, directory.data, error);
    buffer_free(&path);
    buffer_free(&directory);
    buffer_free(&name);
    return ok;
}

static bool download(const Job *job, const LibraryWatch *watch, Error *error) {
    HubName name;
    Buffer path = {0};
    const bool ok = hub_name_parse(job->status.model, &name, error) && library_fetch(&name, true, watch, &path, error);
    buffer_free(&path);
    return ok;
}

static bool work(Job *job, Error *error) {
    const LibraryWatch watch = {.download = watch_download, .conversion = watch_conversion, .context = job};
    Models *models = job->jobs->server->models;
    if (job->status.kind == JOB_DOWNLOAD) return download(job, &watch, error);
    if (job->status.kind == JOB_LOAD && models_find(models, slice_of(job->status.model)) >= 0)
        return serve(job, job->status.model, NULL, error);
    return convert_and_serve(job, &watch, error);
}

static void *run(void *argument) {
    Job *job = argument;
    Jobs *jobs = job->jobs;
    Error error = {0};
    const bool ok = work(job, &error);
    mutex_lock(&jobs->mutex);
    JobStatus *status = &job->status;
    const bool stopped = error.code == ERROR_CANCELLED;
    status->state = ok ? JOB_DONE : !stopped ? JOB_FAILED : job->stop == STOP_PAUSE ? JOB_PAUSED : JOB_CANCELLED;
    if (status->state == JOB_FAILED) {
        status->error = error;
        log_warn("job %s, %s: %s", status->id, status->model, error.text);
    }
    status->reason[0] = '\0';
    status->progress.bytes_per_s = 0;
    status->progress.eta_s = -1;
    touch(job);
    jobs->running--;
    start_queued(jobs);
    mutex_unlock(&jobs->mutex);
    return NULL;
}

/* ---- clients ---- */

Jobs *jobs_open(Server *server, Error *error) {
    Jobs *jobs = calloc(1, sizeof *jobs);
    if (!jobs) {
        fail(error, ERROR_MEMORY, "no memory for jobs");
        return NULL;
    }
    jobs->server = server;
    mutex_init(&jobs->mutex);
    condition_init(&jobs->changed);
    return jobs;
}

void jobs_close(Jobs *jobs) {
    if (!jobs) return;
    mutex_lock(&jobs->mutex);
    jobs->closing = true;
    while (jobs->running > 0) condition_wait(&jobs->changed, &jobs->mutex);
    while (jobs->count > 0) drop(jobs, jobs->count - 1);
    mutex_unlock(&jobs->mutex);
    condition_destroy(&jobs->changed);
    mutex_destroy(&jobs->mutex);
    free(jobs);
}

/* Under the mutex: the oldest that has ended gives way. */
static bool make_room(Jobs *jobs, Error *error) {
    for (int i = 0; jobs->count == JOBS_MAX && i < jobs->count; i++)
        if (is_finished(jobs->list[i])) drop(jobs, i);
    return jobs->count < JOBS_MAX || fail(error, ERROR_BUSY, "%d jobs are unfinished", JOBS_MAX);
}

static void make_id(char id[JOB_ID_MAX]) {
    unsigned char random[12];
    if (getentropy(random, sizeof random)) memset(random, 0, sizeof random);
    int at = snprintf(id, JOB_ID_MAX, "job_");
    for (size_t i = 0; i < sizeof random; i++) at += snprintf(id + at, JOB_ID_MAX - (size_t)at, "%02x", random[i]);
}

/* Under the mutex. */
static bool add(Jobs *jobs, JobKind kind, const char *model, char id[JOB_ID_MAX], Error *error) {
    if (!make_room(jobs, error)) return false;
    Job *job = calloc(1, sizeof *job);
    if (!job) return fail(error, ERROR_MEMORY, "no memory for a job");
    job->jobs = jobs;
    job->status = (JobStatus){.number = ++jobs->numbers, .kind = kind, .created = (int64_t)time(NULL)};
    job->status.progress.eta_s = -1;
    snprintf(job->status.model, sizeof job->status.model, "%s", model);
    make_id(job->status.id);
    memcpy(id, job->status.id, JOB_ID_MAX);
    jobs->list[jobs->count++] = job;
    touch(job);
    start_queued(jobs);
    return true;
}

bool jobs_start(Jobs *jobs, JobKind kind, const char *model, char id[JOB_ID_MAX], Error *error) {
    mutex_lock(&jobs->mutex);
    Job *same = NULL;
    for (int i = 0; i < jobs->count; i++) {
        Job *job = jobs->list[i];
        if (!is_finished(job) && job->status.kind == kind && !strcmp(job->status.model, model)) same = job;
    }
    if (same) {
        memcpy(id, same->status.id, JOB_ID_MAX);
        if (same->status.state == JOB_PAUSED) same->status.state = JOB_QUEUED;
        start_queued(jobs);
    }
    const bool ok = same || add(jobs, kind, model, id, error);
    mutex_unlock(&jobs->mutex);
    return ok;
}

/* Under the mutex, which it gives up meanwhile: other jobs may come and go, this one as well. */
static void stop(Jobs *jobs, Job *job, Slice id, Stop how) {
    const int64_t end_ns = clock_ns() + ACT_WAIT_MS * INT64_C(1000000);
    job->stop = how;
    while (job && job->status.state == JOB_RUNNING && clock_ns() < end_ns) {
        condition_wait_ms(&jobs->changed, &jobs->mutex, LOAD_STEP_MS);
        job = find(jobs, id);
    }
}

/* Under the mutex. */
static bool act(Jobs *jobs, Job *job, Slice id, JobAction action, Error *error) {
    static const char *const names[] = {"cancelled", "paused", "resumed"};
    const JobState state = job->status.state;
    const bool running = state == JOB_RUNNING, waits = state == JOB_QUEUED || state == JOB_PAUSED;
    const bool pausable = job->status.kind == JOB_DOWNLOAD && (running || state == JOB_QUEUED);
    const bool allowed = action == JOB_CANCEL ? running || waits
        : action == JOB_PAUSE                 ? pausable || state == JOB_PAUSED
                                              : state != JOB_DONE;
    if (!allowed) return fail(error, ERROR_USAGE, "this job cannot be %s now", names[action]);
    if (action == JOB_RESUME && !running) {
        job->status.state = JOB_QUEUED;
        touch(job);
        start_queued(jobs);
    } else if (running && action != JOB_RESUME) {
        stop(jobs, job, id, action == JOB_PAUSE ? STOP_PAUSE : STOP_CANCEL);
    } else if (action != JOB_RESUME) {
        job->status.state = action == JOB_PAUSE ? JOB_PAUSED : JOB_CANCELLED;
        touch(job);
        condition_broadcast(&jobs->changed);
    }
    return true;
}

bool jobs_act(Jobs *jobs, Slice id, JobAction action, Error *error) {
    mutex_lock(&jobs->mutex);
    Job *job = find(jobs, id);
    const bool ok = job ? act(jobs, job, id, action, error) : fail(error, ERROR_NOT_FOUND, "there is no such job");
    mutex_unlock(&jobs->mutex);
    return ok;
}

bool jobs_get(Jobs *jobs, Slice id, JobStatus *status) {
    mutex_lock(&jobs->mutex);
    const Job *job = find(jobs, id);
    if (job) *status = job->status;
    mutex_unlock(&jobs->mutex);
    return job != NULL;
}

bool jobs_next(Jobs *jobs, uint64_t after, JobStatus *status) {
    bool found = false;
    mutex_lock(&jobs->mutex);
    for (int i = 0; i < jobs->count && !found; i++) {
        found = jobs->list[i]->status.number > after;
        if (found) *status = jobs->list[i]->status;
    }
    mutex_unlock(&jobs->mutex);
    return found;
}

void jobs_wait(Jobs *jobs, int timeout_ms) {
    mutex_lock(&jobs->mutex);
    if (!jobs->closing) condition_wait_ms(&jobs->changed, &jobs->mutex, timeout_ms);
    mutex_unlock(&jobs->mutex);
}
