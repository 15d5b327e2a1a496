#include "server/admin/jobs_api.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "server/admin/event_stream.h"
#include "server/admin/jobs.h"
#include "server/api/model_list.h"
#include "server/http/body.h"
#include "server/http/response.h"

enum { EVENT_EVERY_MS = 500 };

static const char *const kinds[JOB_KINDS] = {"download", "convert", "load"};
static const char *const states[] = {"queued", "running", "paused", "done", "failed", "cancelled"};
static const char *const stages[] = {"asking", "downloading", "checking", "waiting", "converting", "loading"};

/* ---- a job as JSON ---- */

static const char *code_of(const Error *error) {
    switch (error->code) {
    case ERROR_NOT_FOUND: return "model_not_found";
    case ERROR_USAGE: return "invalid_value";
    case ERROR_UNSUPPORTED: return "unsupported_model";
    case ERROR_MEMORY:
    case ERROR_LIMIT: return "out_of_memory";
    default: return "job_failed";
    }
}

/* Members of an object that has some already. */
static void write_progress(const JobStatus *job, Buffer *out) {
    const HubProgress *p = &job->progress;
    buffer_printf(out,
        ",\"completed_bytes\":%" PRIu64 ",\"total_bytes\":%" PRIu64 ",\"completed_files\":%d,\"total_files\":%d",
        p->done_bytes, p->total_bytes, p->files_done, p->files_total);
    buffer_printf(out, ",\"bytes_per_second\":%.0f,\"seconds_left\":", p->bytes_per_s);
    if (p->eta_s < 0)
        buffer_text(out, "null");
    else
        buffer_printf(out, "%.0f", p->eta_s);
    if (!job->reason[0]) return;
    buffer_text(out, ",\"reason\":");
    json_write_string(out, slice_of(job->reason));
}

static void write_job(const JobStatus *job, Buffer *out) {
    buffer_printf(out, "{\"id\":\"%s\",\"object\":\"job\",\"kind\":\"%s\",\"model\":", job->id, kinds[job->kind]);
    json_write_string(out, slice_of(job->model));
    buffer_printf(out, ",\"created\":%" PRId64 ",\"state\":\"%s\",\"stage\":", job->created, states[job->state]);
    buffer_printf(out, job->state == JOB_RUNNING ? "\"%s\"" : "null", stages[job->stage]);
    write_progress(job, out);
    buffer_text(out, ",\"served\":");
    if (job->served[0])
        json_write_string(out, slice_of(job->served));
    else
        buffer_text(out, "null");
    buffer_text(out, ",\"error\":");
    if (job->error.code) {
        buffer_printf(out, "{\"code\":\"%s\",\"message\":", code_of(&job->error));
        json_write_string(out, slice_of(job->error.text));
        buffer_byte(out, '}');
    } else {
        buffer_text(out, "null");
    }
    buffer_byte(out, '}');
}

static bool response_job(Exchange *x, Slice id) {
    ApiError error = {0};
    JobStatus job;
    Buffer body = {0};
    if (!jobs_get(x->server->jobs, id, &job)) {
        api_fail(&error, 404, "job_not_found", NULL, "There is no such job.");
        return response_error(x, &error);
    }
    write_job(&job, &body);
    return response_json(x, 200, &body);
}

/* ---- starting ---- */

/* A download or a conversion fills the disk; a model that is loaded takes memory from those that are served. */
static bool check_allowed(const Server *server, JobKind kind, Slice model, ApiError *error) {
    if (server->options.allow_pull) return true;
    if (kind == JOB_DOWNLOAD)
        return api_fail(
            error, 403, "pull_not_allowed", NULL, "This server does not pull models; start it with --allow-pull.");
    if (kind == JOB_CONVERT)
        return api_fail(error, 403, "convert_not_allowed", NULL,
            "This server does not convert models; start it with --allow-pull.");
    if (server->starts_empty || models_find(server->models, model) >= 0) return true;
    return api_fail(error, 403, "load_not_allowed", "model",
        "This server serves only the models that it was started with; start it with --allow-pull, or without a model.");
}

static bool copy_model(Slice model, char out[JOB_MODEL_MAX], ApiError *error) {
    if (model.size >= JOB_MODEL_MAX) return api_fail(error, 400, "invalid_value", "model", "The name is too long.");
    if (model.size == 0 || memchr(model.data, 0, model.size))
        return api_fail(error, 400, "invalid_value", "model", "Invalid 'model': want the name of a model.");
    memcpy(out, model.data, model.size);
    out[model.size] = '\0';
    return true;
}

static bool read_kind(Slice name, JobKind *kind, ApiError *error) {
    for (int i = 0; i < JOB_KINDS; i++) {
        *kind = (JobKind)i;
        if (slice_is(name, kinds[i])) return true;
    }
    return api_fail(error, 400, "invalid_value", "kind", "Invalid 'kind': want download, convert or load.");
}

static bool check_hub_name(const char *model, ApiError *error) {
    HubName name;
    Error why;
    return hub_name_parse(model, &name, &why) ||
        api_fail(error, 400, "invalid_value", "model",
            "Invalid 'model': want ORG/NAME, ORG/NAME:FILE or ORG/NAME@REVISION.");
}

/* *model: in the arena or the body. */
static bool read_start(const Exchange *x, Arena *arena, JobKind *kind, Slice *model, ApiError *error) {
    const Json *body = body_object(x, arena, error);
    Slice word = {0};
    if (!body) return false;
    for (JSON_EACH_PAIR(key, value, body)) {
        const Slice name = json_slice(key);
        bool ok;
        if (slice_is(name, "kind"))
            ok = api_string(value, "kind", &word, error);
        else if (slice_is(name, "model"))
            ok = api_string(value, "model", model, error);
        else
            ok = api_fail(error, 400, "unknown_parameter", "", "Unknown parameter: '%.*s'.",
                name.size < 64 ? (int)name.size : 64, name.data);
        if (!ok) return false;
    }
    if (!word.data) return api_missing("kind", error);
    if (!model->data) return api_missing("model", error);
    return read_kind(word, kind, error);
}

bool jobs_api_start(Server *server, JobKind kind, Slice model, char id[JOB_ID_MAX], ApiError *error) {
    Error why = {0};
    char name[JOB_MODEL_MAX];
    if (!copy_model(model, name, error)) return false;
    if (kind == JOB_DOWNLOAD && !check_hub_name(name, error)) return false;
    if (!check_allowed(server, kind, model, error)) return false;
    if (jobs_start(server->jobs, kind, name, id, &why)) return true;
    if (why.code == ERROR_BUSY) return api_fail(error, 429, "too_many_jobs", NULL, "Too many jobs: %s.", why.text);
    return api_out_of_memory(error);
}

bool answer_job_start(Exchange *x, Slice rest) {
    Arena arena = {.limit = BODY_MADE_BYTES_LEAST + x->body.size * BODY_MADE_PER_BYTE};
    ApiError error = {0};
    JobKind kind = JOB_DOWNLOAD;
    Slice model = {0};
    char id[JOB_ID_MAX];
    const bool ok = read_start(x, &arena, &kind, &model, &error) && jobs_api_start(x->server, kind, model, id, &error);
    arena_free(&arena);
    return ok ? response_job(x, slice_of(id)) : response_error(x, &error);
}

/* ---- looking and acting ---- */

bool answer_jobs(Exchange *x, Slice rest) {
    Buffer body = {0};
    JobStatus job = {0};
    buffer_text(&body, "{\"object\":\"list\",\"data\":[");
    for (bool first = true; jobs_next(x->server->jobs, job.number, &job); first = false) {
        if (!first) buffer_byte(&body, ',');
        write_job(&job, &body);
    }
    buffer_text(&body, "]}");
    return response_json(x, 200, &body);
}

bool answer_job(Exchange *x, Slice id) { return response_job(x, id); }

bool answer_job_action(Exchange *x, Slice rest) {
    static const char *const actions[] = {"/cancel", "/pause", "/resume"};
    ApiError error = {0};
    Error why = {0};
    size_t action = 0;
    const char *slash = memchr(rest.data, '/', rest.size);
    while (action < COUNT_OF(actions) && !(slash && !strcmp(slash, actions[action]))) action++;
    if (action == COUNT_OF(actions)) {
        api_fail(&error, 404, NULL, NULL, "A job has cancel, pause and resume.");
        return response_error(x, &error);
    }
    const Slice id = {rest.data, (size_t)(slash - rest.data)};
    if (jobs_act(x->server->jobs, id, (JobAction)action, &why)) return response_job(x, id);
    if (why.code == ERROR_NOT_FOUND)
        api_fail(&error, 404, "job_not_found", NULL, "There is no such job.");
    else
        api_fail(&error, 409, "job_state", NULL, "The job is not in such a state: %s.", why.text);
    return response_error(x, &error);
}

bool answer_model_remove(Exchange *x, Slice id) {
    ApiError error = {0};
    Error why = {0};
    Server *server = x->server;
    Buffer body = {0};
    if (models_find(server->models, id) < 0) {
        model_unknown(server, id, &error);
        return response_error(x, &error);
    }
    if (!server->options.allow_pull && !server->starts_empty) {
        api_fail(&error, 403, "remove_not_allowed", NULL,
            "This server serves the models that it was started with; start it with --allow-pull, or without a model.");
        return response_error(x, &error);
    }
    if (!models_remove(server->models, id, &why)) {
        if (why.code == ERROR_BUSY)
            api_fail(&error, 409, "model_in_use", "model", "The model %s.", why.text);
        else
            model_unknown(server, id, &error);
        return response_error(x, &error);
    }
    buffer_text(&body, "{\"id\":");
    json_write_string(&body, id);
    buffer_text(&body, ",\"object\":\"model\",\"deleted\":true}");
    return response_json(x, 200, &body);
}

/* ---- streams ---- */

/* Jobs that have changed since *version. */
static void write_changed(Jobs *jobs, uint64_t *version, Buffer *out) {
    JobStatus job = {0};
    const uint64_t since = *version;
    while (jobs_next(jobs, job.number, &job)) {
        if (job.version <= since) continue;
        if (job.version > *version) *version = job.version;
        buffer_text(out, "data: ");
        write_job(&job, out);
        buffer_text(out, "\n\n");
    }
}

static bool send_changes(Exchange *x) {
    Buffer out = {0};
    uint64_t version = 0;
    int64_t told_ns = clock_ns();
    bool ok = true;
    response_stream_head(x);
    buffer_text(&out, ": jobs\n\n");
    while (ok && !event_stream_ends(x->server)) {
        write_changed(x->server->jobs, &version, &out);
        ok = event_stream_send(x, &out, &told_ns);
        if (ok) jobs_wait(x->server->jobs, EVENT_EVERY_MS);
    }
    buffer_free(&out);
    if (ok) response_stream_chunk(x, SLICE(""), true);
    return ok;
}

bool answer_job_events(Exchange *x, Slice rest) { return event_stream_run(x, send_changes); }

/* ---- /v1/models/pull ---- */

static void write_pull_progress(const JobStatus *job, const char *repository, Buffer *out) {
    const char *status = job->state == JOB_RUNNING ? stages[job->stage] : states[job->state];
    buffer_printf(out, "data: {\"status\":\"%s\",\"model\":", job->state == JOB_DONE ? "checking" : status);
    json_write_string(out, slice_of(repository));
    buffer_printf(out, ",\"job\":\"%s\"", job->id);
    write_progress(job, out);
    buffer_text(out, "}\n\n");
}

static void write_pull_end(const JobStatus *job, const char *repository, Buffer *out) {
    ApiError error = {0};
    const ErrorCode code = job->error.code;
    if (job->state == JOB_DONE) {
        buffer_text(out, "data: {\"status\":\"done\",\"model\":");
        json_write_string(out, slice_of(repository));
        buffer_text(out, "}\n\ndata: [DONE]\n\n");
        return;
    }
    if (job->state == JOB_CANCELLED)
        api_fail(&error, 409, "cancelled", NULL, "The download was cancelled.");
    else
        api_fail(&error,
            code == ERROR_NOT_FOUND   ? 404
                : code == ERROR_USAGE ? 400
                                      : 503,
            code == ERROR_NOT_FOUND ? "model_not_found" : "pull_failed", "model", "%s.", job->error.text);
    buffer_text(out, "data: ");
    api_write_error(out, &error);
    buffer_text(out, "\n\n");
}

static bool has_ended(const JobStatus *job) {
    return job->state == JOB_DONE || job->state == JOB_FAILED || job->state == JOB_CANCELLED;
}

static bool send_pull(Exchange *x, const char *id, const char *repository) {
    Jobs *jobs = x->server->jobs;
    Buffer out = {0};
    JobStatus job;
    int64_t told_ns = clock_ns();
    bool ok = true, ended = false;
    response_stream_head(x);
    while (ok && !ended && !event_stream_ends(x->server) && jobs_get(jobs, slice_of(id), &job)) {
        ended = has_ended(&job);
        write_pull_progress(&job, repository, &out);
        if (ended) write_pull_end(&job, repository, &out);
        ok = event_stream_send(x, &out, &told_ns);
        if (ok && !ended) jobs_wait(jobs, EVENT_EVERY_MS);
    }
    buffer_free(&out);
    if (ok) response_stream_chunk(x, SLICE(""), true);
    return ok;
}

bool answer_pull(Exchange *x, Slice rest) {
    ApiError error = {0};
    Arena arena = {.limit = BODY_MADE_BYTES_LEAST + x->body.size * BODY_MADE_PER_BYTE};
    Slice model = {0};
    char id[JOB_ID_MAX], text[JOB_MODEL_MAX];
    HubName name;
    const bool ok = check_allowed(x->server, JOB_DOWNLOAD, model, &error) && body_model(x, &arena, &model, &error) &&
        jobs_api_start(x->server, JOB_DOWNLOAD, model, id, &error) && copy_model(model, text, &error) &&
        hub_name_parse(text, &name, NULL);
    arena_free(&arena);
    return ok ? send_pull(x, id, name.repo) : response_error(x, &error);
}
