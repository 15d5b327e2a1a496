#include "server/admin/pull.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"
#include "hub/hub.h"
#include "server/http/body.h"
#include "server/http/response.h"

enum { EVENT_EVERY_MS = 500 };

typedef struct Pull {
    Server *server;
    HubName name;
    Thread thread;
    Mutex lock; /* of what follows; the fetching thread writes it, the connection's reads it */
    Condition ended;
    HubProgress progress;
    char why[128];
    bool done, stop;
    Error error; /* of what failed, when it is done */
    Buffer out;  /* the connection's: events on their way */
    bool last;   /* no event comes after those in out */
} Pull;

/* ---- fetching ---- */

static bool take_progress(void *context, const HubProgress *progress) {
    Pull *pull = context;
    mutex_lock(&pull->lock);
    pull->progress = *progress;
    snprintf(pull->why, sizeof pull->why, "%s", progress->why ? progress->why : "");
    const bool go_on = !pull->stop && !__atomic_load_n(&pull->server->stopping, __ATOMIC_RELAXED);
    mutex_unlock(&pull->lock);
    return go_on;
}

static void *fetch(void *context) {
    Pull *pull = context;
    HubSettings settings;
    Error error = {0}, stale = {0};
    Buffer path = {0};
    const HubWatch watch = {take_progress, pull};
    bool ok = hub_settings_read(&settings, &error);
    if (ok) {
        ok = hub_pull(&settings, &pull->name, &watch, &path, &stale, &error);
        hub_settings_free(&settings);
    }
    buffer_free(&path);
    if (!ok) log_warn("pull of %s: %s", pull->name.repo, error.text);
    __atomic_store_n(&pull->server->pulling, false, __ATOMIC_RELEASE); /* before the client hears of the end */
    mutex_lock(&pull->lock);
    pull->error = error;
    pull->done = true;
    condition_signal(&pull->ended);
    mutex_unlock(&pull->lock);
    return NULL;
}

/* ---- events ---- */

static void write_progress(Pull *pull) {
    static const char *const phases[] = {"asking", "downloading", "checking", "waiting"};
    const HubProgress *p = &pull->progress;
    Buffer *out = &pull->out;
    buffer_printf(out, "data: {\"status\":\"%s\",\"model\":", phases[p->phase]);
    json_write_string(out, slice_of(pull->name.repo));
    buffer_printf(out,
        ",\"completed_bytes\":%" PRIu64 ",\"total_bytes\":%" PRIu64 ",\"completed_files\":%d,\"total_files\":%d",
        p->done_bytes, p->total_bytes, p->files_done, p->files_total);
    buffer_printf(out, ",\"bytes_per_second\":%.0f,\"seconds_left\":", p->bytes_per_s);
    if (p->eta_s < 0)
        buffer_text(out, "null");
    else
        buffer_printf(out, "%.0f", p->eta_s);
    if (pull->why[0]) {
        buffer_text(out, ",\"reason\":");
        json_write_string(out, slice_of(pull->why));
    }
    buffer_text(out, "}\n\n");
}

static void write_end(Pull *pull) {
    Buffer *out = &pull->out;
    pull->last = true;
    if (!pull->error.code) {
        buffer_text(out, "data: {\"status\":\"done\",\"model\":");
        json_write_string(out, slice_of(pull->name.repo));
        buffer_text(out, "}\n\ndata: [DONE]\n\n");
        return;
    }
    ApiError error = {0};
    const ErrorCode code = pull->error.code;
    api_fail(&error,
        code == ERROR_NOT_FOUND   ? 404
            : code == ERROR_USAGE ? 400
                                  : 503,
        code == ERROR_NOT_FOUND ? "model_not_found" : "pull_failed", "model", "%s.", pull->error.text);
    buffer_text(out, "data: ");
    api_write_error(out, &error);
    buffer_text(out, "\n\n");
}

/* Waits for the next event when all are given. */
static void next_events(Pull *pull) {
    buffer_clear(&pull->out);
    mutex_lock(&pull->lock);
    if (!pull->done) condition_wait_ms(&pull->ended, &pull->lock, EVENT_EVERY_MS);
    write_progress(pull);
    if (pull->done) write_end(pull);
    mutex_unlock(&pull->lock);
}

static bool send_events(Exchange *x) {
    Pull *pull = x->pull;
    response_stream_head(x);
    while (!pull->last) {
        if (response_client_gone(x)) return false;
        next_events(pull);
        if (pull->out.failed) return false;
        response_stream_chunk(x, buffer_view(&pull->out), pull->last);
        if (!response_send(x)) return false;
    }
    return true;
}

/* ---- requests ---- */

static bool read_request(Exchange *x, HubName *name, ApiError *error) {
    Arena arena = {.limit = BODY_MADE_BYTES_LEAST + x->body.size * BODY_MADE_PER_BYTE};
    Slice model = {0};
    char text[HUB_REPO_MAX + HUB_FILE_MAX + HUB_REVISION_MAX];
    Error why = {0};
    bool ok = body_model(x, &arena, &model, error);
    if (ok && model.size >= sizeof text) ok = api_fail(error, 400, "invalid_value", "model", "The name is too long.");
    if (ok) {
        memcpy(text, model.data, model.size);
        text[model.size] = '\0';
        if (strlen(text) != model.size || !hub_name_parse(text, name, &why))
            ok = api_fail(error, 400, "invalid_value", "model",
                "Invalid 'model': want ORG/NAME, ORG/NAME:FILE or ORG/NAME@REVISION.");
    }
    arena_free(&arena);
    return ok;
}

static bool start(Exchange *x, const HubName *name, ApiError *error) {
    Error why = {0};
    Pull *pull = calloc(1, sizeof *pull);
    if (!pull) return api_out_of_memory(error);
    if (__atomic_exchange_n(&x->server->pulling, true, __ATOMIC_ACQ_REL)) {
        free(pull);
        return api_fail(error, 409, "pull_in_progress", NULL, "Another model is being pulled; one at a time.");
    }
    pull->server = x->server;
    pull->name = *name;
    pull->progress.eta_s = -1;
    mutex_init(&pull->lock);
    condition_init(&pull->ended);
    if (thread_start(&pull->thread, fetch, pull, "pull", &why)) {
        x->pull = pull;
        return true;
    }
    mutex_destroy(&pull->lock);
    condition_destroy(&pull->ended);
    free(pull);
    __atomic_store_n(&x->server->pulling, false, __ATOMIC_RELEASE);
    return api_fail(error, 503, "pull_failed", NULL, "%s.", why.text);
}

bool answer_pull(Exchange *x, Slice rest) {
    ApiError error = {0};
    HubName name;
    if (!x->server->options.allow_pull)
        api_fail(
            &error, 403, "pull_not_allowed", NULL, "This server does not pull models; start it with --allow-pull.");
    else if (read_request(x, &name, &error) && start(x, &name, &error))
        return send_events(x);
    return response_error(x, &error);
}

void pull_close(Exchange *x) {
    Pull *pull = x->pull;
    if (!pull) return;
    mutex_lock(&pull->lock);
    pull->stop = true;
    mutex_unlock(&pull->lock);
    thread_join(pull->thread);
    mutex_destroy(&pull->lock);
    condition_destroy(&pull->ended);
    buffer_free(&pull->out);
    free(pull);
    x->pull = NULL;
}

bool answer_local(Exchange *x, Slice rest) {
    HubSettings settings;
    HubModels models;
    ApiError error = {0};
    Error why = {0};
    Buffer body = {0};
    bool ok = hub_settings_read(&settings, &why);
    if (ok) {
        ok = hub_list(&settings, &models, &why);
        hub_settings_free(&settings);
    }
    if (!ok) {
        log_warn("the list of local models: %s", why.text);
        api_fail(&error, 503, NULL, NULL, "The models of this machine cannot be listed; the server's log says why.");
        return response_error(x, &error);
    }
    buffer_text(&body, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < models.count; i++) {
        const HubModel *model = &models.models[i];
        buffer_text(&body, i ? ",{\"id\":" : "{\"id\":");
        json_write_string(&body, slice_of(model->name));
        buffer_printf(&body,
            ",\"object\":\"local_model\",\"format\":\"%s\",\"bytes\":%" PRIu64 ",\"last_used\":%" PRId64 "}",
            model->format == HUB_GGUF ? "gguf" : "safetensors", model->bytes, model->used_s);
    }
    buffer_printf(&body, "],\"unfinished_bytes\":%" PRIu64 "}", models.unfinished_bytes);
    hub_models_free(&models);
    return response_json(x, 200, &body);
}
