/* Jobs of a server: downloads, conversions and loads of models. A job outlives the client that began it. A few run at
 * once, the others are queued. Jobs end with the process; a download continues from its files when it is started again.
 * Thread: any. */
#pragma once
#include "hub/hub.h"
#include "server/exchange.h"

enum {
    JOBS_RUNNING_MAX = 3,
    JOBS_MAX = 64, /* with those that have ended: the oldest of them give way */
    JOB_ID_MAX = 32,
    JOB_MODEL_MAX = HUB_REPO_MAX + HUB_FILE_MAX + HUB_REVISION_MAX,
    JOB_REASON_MAX = 128,
};

typedef enum JobKind { JOB_DOWNLOAD, JOB_CONVERT, JOB_LOAD } JobKind;
enum { JOB_KINDS = JOB_LOAD + 1 };
typedef enum JobState { JOB_QUEUED, JOB_RUNNING, JOB_PAUSED, JOB_DONE, JOB_FAILED, JOB_CANCELLED } JobState;
typedef enum JobStage { JOB_ASKING, JOB_DOWNLOADING, JOB_CHECKING, JOB_WAITING, JOB_CONVERTING, JOB_LOADING } JobStage;
typedef enum JobAction { JOB_CANCEL, JOB_PAUSE, JOB_RESUME } JobAction;

typedef struct JobStatus {
    uint64_t number; /* in the order of their start, from 1 */
    char id[JOB_ID_MAX];
    JobKind kind;
    char model[JOB_MODEL_MAX]; /* as the client named it */
    JobState state;
    JobStage stage;
    int64_t created;      /* Unix time */
    HubProgress progress; /* bytes of the stage; why: unset, see reason */
    char reason[JOB_REASON_MAX];
    char served[MODEL_NAME_MAX]; /* id under which a loaded model is served; "": none */
    Error error;                 /* error of JOB_FAILED; its text is for clients */
    uint64_t version;            /* grows with each change of any job */
} JobStatus;

typedef struct Jobs Jobs;

NODISCARD Jobs *jobs_open(Server *server, Error *error);
void jobs_close(Jobs *jobs); /* cancels and joins; NULL is fine */

/* Starts or queues a job. An unfinished one of the same kind and model is given instead, resumed if paused. ERROR_BUSY:
 * JOBS_MAX unfinished ones. */
NODISCARD bool jobs_start(Jobs *jobs, JobKind kind, const char *model, char id[JOB_ID_MAX], Error *error);
/* Waits a few seconds for the effect. Only downloads can be paused; cancelled and failed jobs can be resumed, too.
 * ERROR_NOT_FOUND; ERROR_USAGE: its state allows no such action. */
NODISCARD bool jobs_act(Jobs *jobs, Slice id, JobAction action, Error *error);
bool jobs_get(Jobs *jobs, Slice id, JobStatus *status);
/* The job that follows number `after`; false: there is none. */
bool jobs_next(Jobs *jobs, uint64_t after, JobStatus *status);
/* Returns when a job has begun or ended, or after the timeout. */
void jobs_wait(Jobs *jobs, int timeout_ms);
