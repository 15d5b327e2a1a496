/* The jobs of a server over HTTP: /v1/jobs, /v1/models/pull, and models that are added and removed. */
#pragma once
#include "server/admin/jobs.h"
#include "server/exchange.h"

/* jobs_start() for a client: 400 for a name that is none, 403 for what the server's options do not allow, 429. */
NODISCARD bool jobs_api_start(Server *server, JobKind kind, Slice model, char id[JOB_ID_MAX], ApiError *error);

/* GET /v1/jobs: all of them, the oldest first. */
bool answer_jobs(Exchange *x, Slice rest);
/* POST /v1/jobs {"kind":"download"|"convert"|"load","model":"NAME"}: starts one. */
bool answer_job_start(Exchange *x, Slice rest);
/* GET /v1/jobs/ID */
bool answer_job(Exchange *x, Slice id);
/* POST /v1/jobs/ID/cancel, /pause, /resume */
bool answer_job_action(Exchange *x, Slice rest);
/* GET /v1/jobs/events: a stream of jobs as they change, all of them at first. */
bool answer_job_events(Exchange *x, Slice rest);
/* POST /v1/models/pull {"model":"ORG/NAME[:FILE][@REVISION]"}: starts a download, or joins one, and streams its
 * progress. The download does not end with the client. */
bool answer_pull(Exchange *x, Slice rest);
/* DELETE /v1/models/ID: the model is served no more. Its files stay. */
bool answer_model_remove(Exchange *x, Slice id);
