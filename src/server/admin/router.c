#include "server/admin/router.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "library/library.h"
#include "library/local.h"
#include "server/admin/event_stream.h"
#include "server/admin/jobs_api.h"
#include "server/admin/local_models.h"
#include "server/api/members.h"
#include "server/api/model_list.h"
#include "server/http/body.h"
#include "server/http/query.h"
#include "server/http/response.h"

enum { EVENT_EVERY_MS = 100, ROWS_MAX = MODELS_MAX + JOBS_MAX };

typedef enum RowState { ROW_UNLOADED, ROW_LOADING, ROW_LOADED, ROW_DOWNLOADING, ROW_DOWNLOADED } RowState;
static const char *const states[] = {"unloaded", "loading", "loaded", "downloading", "downloaded"};

/* A model as the router's clients see it. */
typedef struct Row {
    char id[JOB_MODEL_MAX];
    RowState state;
    bool failed;                      /* its last load or download did */
    bool listed;                      /* false: it is the end of a job, which events tell and the list does not show */
    ModelStatus served;               /* name "": it is not served */
    uint64_t done_bytes, total_bytes; /* bytes of its download */
    char job[JOB_ID_MAX];             /* its unfinished job; "": none */
    bool can_remove;                  /* DELETE /models takes it */
} Row;

typedef struct Rows {
    int count;
    Row row[ROWS_MAX];
} Rows;

static Row *find(Rows *rows, Slice id) {
    for (int i = 0; i < rows->count; i++)
        if (slice_is(id, rows->row[i].id)) return &rows->row[i];
    return NULL;
}

static Row *add(Rows *rows, Slice id) {
    Row *row = &rows->row[rows->count++];
    *row = (Row){0};
    snprintf(row->id, sizeof row->id, "%.*s", SLICE_SHOWN(id));
    return row;
}

static void read_served(const Server *server, Rows *rows) {
    /* A model counts as loaded until its memory is free. */
    static const RowState of[] = {[MODEL_UNLOADED] = ROW_UNLOADED,
        [MODEL_LOADING] = ROW_LOADING,
        [MODEL_LOADED] = ROW_LOADED,
        [MODEL_UNLOADING] = ROW_LOADED};
    for (int i = 0; i < MODELS_MAX; i++) {
        ModelStatus status;
        if (!models_status(server->models, i, &status)) continue;
        Row *row = add(rows, slice_of(status.name));
        row->state = of[status.state];
        row->listed = true;
        row->served = status;
    }
}

/* The id under which a load serves its model. */
static bool served_id(const Server *server, const char *model, Buffer *id) {
    ModelStatus status;
    const int index = models_find(server->models, slice_of(model));
    if (index >= 0 && models_status(server->models, index, &status))
        buffer_text(id, status.name);
    else
        library_name_of(model, id);
    return !id->failed && id->size > 0;
}

static void read_job(const JobStatus *job, Row *row) {
    const bool downloads = job->kind == JOB_DOWNLOAD, served = row->served.name[0];
    if (job->state == JOB_QUEUED || job->state == JOB_RUNNING || job->state == JOB_PAUSED) {
        if (row->state == ROW_LOADED) return;
        const bool fetches = downloads || (job->state == JOB_RUNNING && job->stage < JOB_CONVERTING && !served);
        row->state = fetches ? ROW_DOWNLOADING : ROW_LOADING;
        row->failed = false;
        row->listed = true;
        row->done_bytes = job->progress.done_bytes;
        row->total_bytes = job->progress.total_bytes;
        memcpy(row->job, job->id, sizeof row->job);
        return;
    }
    row->failed = job->state == JOB_FAILED || (downloads && job->state == JOB_CANCELLED);
    if (!served) row->state = downloads ? ROW_DOWNLOADED : ROW_UNLOADED;
}

/* Later jobs of a model come later: the last one counts. */
static void read_jobs(const Server *server, Rows *rows) {
    JobStatus job = {0};
    while (jobs_next(server->jobs, job.number, &job) && rows->count < ROWS_MAX) {
        Buffer id = {0};
        if (job.kind == JOB_CONVERT) continue;
        const bool named =
            job.kind == JOB_LOAD ? served_id(server, job.model, &id) : (buffer_text(&id, job.model), !id.failed);
        Row *row = named ? find(rows, buffer_view(&id)) : NULL;
        if (named && !row) row = add(rows, buffer_view(&id));
        if (row) read_job(&job, row);
        buffer_free(&id);
    }
}

/* NULL: no memory; freed by the caller. */
static Rows *rows_read(const Server *server) {
    Rows *rows = malloc(sizeof *rows);
    if (!rows) return NULL;
    rows->count = 0;
    read_served(server, rows);
    read_jobs(server, rows);
    return rows;
}

/* ---- the list ---- */

static void write_row(const Row *row, const char *source, Buffer *out) {
    buffer_text(out, out->data[out->size - 1] == '[' ? "{\"id\":" : ",{\"id\":");
    json_write_string(out, slice_of(row->id));
    buffer_printf(out,
        ",\"aliases\":[],\"tags\":[],\"object\":\"model\",\"owned_by\":\"apus\",\"created\":%" PRId64
        ",\"status\":{\"value\":\"%s\",\"args\":[]",
        row->served.created, states[row->state]);
    if (row->failed) buffer_text(out, ",\"failed\":true,\"exit_code\":1");
    buffer_byte(out, '}');
    model_architecture(&row->served, out);
    if (row->served.context) buffer_printf(out, ",\"meta\":{\"n_ctx\":%d}", row->served.context);
    if (row->state == ROW_DOWNLOADING)
        buffer_printf(
            out, ",\"progress\":{\"done\":%" PRIu64 ",\"total\":%" PRIu64 "}", row->done_bytes, row->total_bytes);
    buffer_printf(out, ",\"source\":\"%s\",\"can_remove\":%s}", source, row->can_remove ? "true" : "false");
}

static bool may_load_local(const Server *server) { return server->options.allow_pull || server->starts_empty; }

/* Local models that no row of a served model or of a job shows. Of those with the same id, the first. */
static void write_local(Rows *rows, bool allowed, Buffer *out) {
    LocalModels models;
    Error why = {0};
    if (!local_list(&models, &why)) {
        log_warn("the list of local models: %s", why.text);
        return;
    }
    for (size_t i = 0; i < models.count; i++) {
        Buffer id = {0};
        local_id(&models.models[i], &id);
        Row *row = id.failed || !id.size ? NULL : find(rows, buffer_view(&id));
        if (!id.failed && id.size && (!row || !row->listed)) {
            Row shown = row ? *row : (Row){0};
            snprintf(shown.id, sizeof shown.id, "%.*s", SLICE_SHOWN(buffer_view(&id)));
            shown.state = ROW_UNLOADED;
            shown.can_remove = allowed;
            write_row(&shown, "cache", out);
            if (row) row->listed = true;
            if (!row && rows->count < ROWS_MAX) add(rows, buffer_view(&id))->listed = true;
        }
        buffer_free(&id);
    }
    local_free(&models);
}

bool answer_router_models(Exchange *x, Slice rest) {
    ApiError error = {0};
    Buffer body = {0};
    Rows *rows = rows_read(x->server);
    if (!rows) {
        api_out_of_memory(&error);
        return response_error(x, &error);
    }
    buffer_text(&body, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < rows->count && !body.failed; i++)
        if (rows->row[i].listed) write_row(&rows->row[i], rows->row[i].served.name[0] ? "preset" : "cache", &body);
    if (may_load_local(x->server) && !body.failed) write_local(rows, x->server->options.allow_pull, &body);
    buffer_text(&body, "]}");
    free(rows);
    return response_json(x, 200, &body);
}

/* ---- loading and unloading ---- */

/* Appends the name by which a job finds the model of an id of the list. With --allow-pull, names of the hub, too. */
static bool name_of(const Server *server, Slice id, Buffer *name, ApiError *error) {
    LocalModels models;
    Error why = {0};
    const bool served = models_find(server->models, id) >= 0;
    if (!served && may_load_local(server) && local_list(&models, &why)) {
        for (size_t i = 0; i < models.count && !name->size; i++) {
            Buffer own = {0};
            local_id(&models.models[i], &own);
            if (!own.failed && slice_equal(buffer_view(&own), id)) buffer_text(name, models.models[i].name);
            buffer_free(&own);
        }
        local_free(&models);
    }
    if (!name->size && !served && !server->options.allow_pull) return model_unknown(server, id, error);
    if (!name->size) buffer_slice(name, id);
    return !name->failed || api_out_of_memory(error);
}

static bool load(Exchange *x, Slice id, ApiError *error) {
    ModelStatus status;
    Buffer name = {0};
    char job[JOB_ID_MAX];
    const int index = models_find(x->server->models, id);
    if (index >= 0 && models_status(x->server->models, index, &status) && status.state == MODEL_LOADED)
        return api_fail(error, 400, "model_running", "model", "The model '%s' is loaded already.", status.name);
    const bool ok =
        name_of(x->server, id, &name, error) && jobs_api_start(x->server, JOB_LOAD, buffer_view(&name), job, error);
    buffer_free(&name);
    return ok;
}

static bool unload(Exchange *x, Slice id, ApiError *error) {
    Error why = {0};
    Rows *rows = rows_read(x->server);
    if (!rows) return api_out_of_memory(error);
    const int index = models_find(x->server->models, id);
    Row *row = find(rows, id);
    bool ok;
    if (row && row->job[0])
        ok = jobs_act(x->server->jobs, slice_of(row->job), JOB_CANCEL, &why) ||
            api_fail(error, 409, "job_state", "model", "The job of '%s' has just ended.", row->id);
    else if (index < 0 && !(row && row->listed))
        ok = model_unknown(x->server, id, error);
    else if (row && row->state != ROW_LOADED && row->state != ROW_LOADING)
        ok = api_fail(error, 400, "model_not_running", "model", "The model '%s' is not loaded.", row->id);
    else
        ok = models_unload(x->server->models, id, &why) ||
            api_fail(error, why.code == ERROR_BUSY ? 409 : 404,
                why.code == ERROR_BUSY ? "model_in_use" : "model_not_found", "model", "The model %s.", why.text);
    free(rows);
    return ok;
}

static bool download(Exchange *x, Slice id, ApiError *error) {
    char job[JOB_ID_MAX];
    return jobs_api_start(x->server, JOB_DOWNLOAD, id, job, error);
}

/* A model of this machine, or the download of one. */
static bool remove_named(Exchange *x, Slice id, ApiError *error) {
    Error why = {0};
    Buffer name = {0};
    uint64_t freed_bytes = 0;
    Rows *rows = rows_read(x->server);
    const Row *row = rows ? find(rows, id) : NULL;
    const bool coming = row && row->state == ROW_DOWNLOADING && row->job[0];
    if (coming) (void)!jobs_act(x->server->jobs, slice_of(row->job), JOB_CANCEL, &why); /* it may have just ended */
    free(rows);
    bool ok = coming || name_of(x->server, id, &name, error);
    ok = ok && (coming || local_models_remove(x, name.data, &freed_bytes, error));
    buffer_free(&name);
    return ok;
}

static bool change(Exchange *x, bool (*act)(Exchange *x, Slice id, ApiError *error)) {
    Arena arena = {.limit = BODY_MADE_BYTES_LEAST + x->body.size * BODY_MADE_PER_BYTE};
    ApiError error = {0};
    Buffer body = {0};
    Slice id = {0};
    const bool ok = body_model(x, &arena, &id, &error) && act(x, id, &error);
    arena_free(&arena);
    if (!ok) return response_error(x, &error);
    buffer_text(&body, "{\"success\":true}");
    return response_json(x, 200, &body);
}

bool answer_router_load(Exchange *x, Slice rest) { return change(x, load); }
bool answer_router_unload(Exchange *x, Slice rest) { return change(x, unload); }
bool answer_router_download(Exchange *x, Slice rest) { return change(x, download); }

bool answer_router_remove(Exchange *x, Slice rest) {
    ApiError error = {0};
    Buffer body = {0};
    char id[JOB_MODEL_MAX];
    if (!query_text(x, "model", id, sizeof id, &error) || !remove_named(x, slice_of(id), &error))
        return response_error(x, &error);
    buffer_text(&body, "{\"success\":true}");
    return response_json(x, 200, &body);
}

/* ---- events ---- */

static void write_event(const char *event, const Row *row, Buffer *out) {
    buffer_text(out, "data: {\"model\":");
    json_write_string(out, slice_of(row->id));
    buffer_printf(out, ",\"event\":\"%s\"", event);
}

static void write_status(const Row *row, Buffer *out) {
    write_event("status_change", row, out);
    buffer_printf(out, ",\"data\":{\"status\":\"%s\"", states[row->state]);
    if (row->state == ROW_UNLOADED) buffer_printf(out, ",\"exit_code\":%d", row->failed);
    buffer_text(out, "}}\n\n");
}

/* before: NULL: the model was not there. */
static void write_change(const Row *before, const Row *now, Buffer *out) {
    const bool same = before && before->state == now->state && before->failed == now->failed;
    if (now->state == ROW_DOWNLOADED && !same) {
        write_event(now->failed ? "download_failed" : "download_finished", now, out);
        buffer_text(out, "}\n\n");
    } else if (!same) {
        write_status(now, out);
    }
    if (now->state != ROW_DOWNLOADING || (same && before->done_bytes == now->done_bytes)) return;
    write_event("download_progress", now, out);
    buffer_text(out, ",\"data\":{\"progress\":{");
    json_write_string(out, slice_of(now->id));
    buffer_printf(out, ":{\"done\":%" PRIu64 ",\"total\":%" PRIu64 "}}}}\n\n", now->done_bytes, now->total_bytes);
}

static void write_removal(const Row *row, Buffer *out) {
    write_event("model_remove", row, out);
    buffer_text(out, "}\n\n");
}

static void write_changes(Rows *before, Rows *now, Buffer *out) {
    for (int i = 0; i < now->count; i++) {
        const Row *row = &now->row[i], *old = find(before, slice_of(row->id));
        if (old && old->listed && !row->listed && row->state == ROW_UNLOADED && !row->failed && old->served.name[0])
            write_removal(old, out);
        else
            write_change(old, row, out);
    }
    for (int i = 0; i < before->count; i++) {
        const Row *row = &before->row[i];
        if (row->served.name[0] && !find(now, slice_of(row->id))) write_removal(row, out);
    }
}

static bool send_changes(Exchange *x) {
    Buffer out = {0};
    int64_t told_ns = clock_ns();
    Rows *before = rows_read(x->server);
    bool ok = before != NULL;
    response_stream_head(x);
    buffer_text(&out, ": models\n\n");
    while (ok && !event_stream_ends(x->server)) {
        ok = event_stream_send(x, &out, &told_ns);
        if (ok) jobs_wait(x->server->jobs, EVENT_EVERY_MS);
        Rows *now = ok ? rows_read(x->server) : NULL;
        ok = now != NULL;
        if (!ok) break;
        write_changes(before, now, &out);
        free(before);
        before = now;
    }
    free(before);
    buffer_free(&out);
    if (ok) response_stream_chunk(x, SLICE(""), true);
    return ok;
}

bool answer_router_events(Exchange *x, Slice rest) { return event_stream_run(x, send_changes); }
