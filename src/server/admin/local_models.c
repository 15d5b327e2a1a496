#include "server/admin/local_models.h"

#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "library/local.h"
#include "server/http/response.h"

/* A served model's id is the last part of its name, without the ending of its file. */
static bool is_served(const Server *server, const char *name) {
    const char *last = strrchr(name, '/');
    Slice id = slice_of(last ? last + 1 : name);
    const Slice ending = SLICE(".gguf");
    if (models_find(server->models, id) >= 0) return true;
    if (id.size <= ending.size || memcmp(id.data + id.size - ending.size, ending.data, ending.size) != 0) return false;
    return models_find(server->models, (Slice){id.data, id.size - ending.size}) >= 0;
}

bool local_models_remove(const Exchange *x, const char *name, uint64_t *freed_bytes, ApiError *error) {
    Error why = {0};
    LocalModels local;
    if (!x->server->options.allow_pull)
        return api_fail(
            error, 403, "pull_not_allowed", NULL, "This server does not remove models; start it with --allow-pull.");
    if (is_served(x->server, name))
        return api_fail(error, 409, "model_in_use", "model", "The model '%.200s' is served.", name);
    bool ok = local_list(&local, &why);
    if (ok) {
        ok = local_remove(&local, name, freed_bytes, &why);
        local_free(&local);
    }
    if (ok) return true;
    if (why.code == ERROR_NOT_FOUND || why.code == ERROR_USAGE)
        return api_fail(error, 404, "model_not_found", "model", "%s.", why.text);
    log_warn("removal of %s: %s", name, why.text);
    return api_fail(error, 503, "remove_failed", NULL, "%s.", why.text);
}

bool answer_local_remove(Exchange *x, Slice name) {
    uint64_t freed_bytes = 0;
    ApiError error;
    if (!local_models_remove(x, name.data, &freed_bytes, &error)) return response_error(x, &error);
    Buffer body = {0};
    buffer_text(&body, "{\"id\":");
    json_write_string(&body, name);
    buffer_printf(&body, ",\"deleted\":true,\"freed_bytes\":%" PRIu64 "}", freed_bytes);
    return response_json(x, 200, &body);
}

bool answer_local(Exchange *x, Slice rest) {
    LocalModels models;
    ApiError error = {0};
    Error why = {0};
    Buffer body = {0};
    if (!local_list(&models, &why)) {
        log_warn("the list of local models: %s", why.text);
        api_fail(&error, 503, NULL, NULL, "The models of this machine cannot be listed; the server's log says why.");
        return response_error(x, &error);
    }
    buffer_text(&body, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < models.count; i++) {
        const LocalModel *model = &models.models[i];
        buffer_text(&body, i ? ",{\"id\":" : "{\"id\":");
        json_write_string(&body, slice_of(model->name));
        buffer_printf(&body,
            ",\"object\":\"local_model\",\"format\":\"%s\",\"bytes\":%" PRIu64 ",\"last_used\":%" PRId64 "}",
            strncmp(model->format, "GGUF", 4) ? "safetensors" : "gguf", model->bytes, model->used_s);
    }
    buffer_printf(&body, "],\"unfinished_bytes\":%" PRIu64 "}", models.unfinished_bytes);
    local_free(&models);
    return response_json(x, 200, &body);
}
