#include "server/admin/props.h"

#include <string.h>

#include "server/api/members.h"
#include "server/api/model_list.h"
#include "server/http/response.h"

/* The model that the query names, else the first one. */
static bool choose(Exchange *x, ModelStatus *status, ApiError *error) {
    static const char key[] = "model=";
    const char *query = x->request->query;
    Slice name = {0};
    for (const char *at = query; *at; at += strspn(at, "&")) {
        const size_t size = strcspn(at, "&");
        if (!strncmp(at, key, sizeof key - 1)) name = (Slice){at + sizeof key - 1, size - (sizeof key - 1)};
        at += size;
    }
    if (name.data) {
        const int index = models_find(x->server->models, name);
        return (index >= 0 && models_status(x->server->models, index, status)) || model_unknown(x->server, name, error);
    }
    return models_first(x->server->models, status) ||
        api_fail(error, 404, "model_not_found", "model", "No model is served.");
}

bool answer_props(Exchange *x, Slice rest) {
    ApiError error = {0};
    ModelStatus status;
    if (!choose(x, &status, &error)) return response_error(x, &error);
    Buffer body = {0};
    ChatModel *model = models_hold(x->server->models, slice_of(status.name));
    buffer_printf(&body, "{\"default_generation_settings\":{\"n_ctx\":%d", status.context);
    if (model) {
        const SamplingOptions *o = &model->sampling;
        buffer_text(&body, ",\"params\":{\"temperature\":");
        json_write_number(&body, o->temperature);
        buffer_text(&body, ",\"top_p\":");
        json_write_number(&body, o->top_p);
        buffer_text(&body, ",\"min_p\":");
        json_write_number(&body, o->min_p);
        buffer_printf(&body, ",\"top_k\":%d}", o->top_k);
    }
    buffer_printf(&body, "},\"total_slots\":%d", status.stats.slots);
    member_text("model_alias", slice_of(status.name), &body);
    member_text("model_path", slice_of(status.name), &body);
    buffer_printf(&body, ",\"modalities\":{\"vision\":%s,\"audio\":%s}", status.takes_images ? "true" : "false",
        status.takes_audio ? "true" : "false");
    member_text("chat_template", model && model->template ? template_source(model->template) : SLICE(""), &body);
    member_text("build_info", SLICE("apus " APUS_VERSION), &body);
    buffer_printf(&body, ",\"is_sleeping\":%s}", status.state == MODEL_LOADED ? "false" : "true");
    models_release(x->server->models, model);
    return response_json(x, 200, &body);
}

/* Answers are not bound to slots: as many of them are shown as busy as answers are computed. */
bool answer_slots(Exchange *x, Slice rest) {
    ApiError error = {0};
    ModelStatus status;
    if (!choose(x, &status, &error)) return response_error(x, &error);
    Buffer body = {0};
    buffer_byte(&body, '[');
    for (int i = 0; i < status.stats.slots; i++)
        buffer_printf(&body, "%s{\"id\":%d,\"n_ctx\":%d,\"is_processing\":%s}", i ? "," : "", i, status.context,
            i < status.stats.running ? "true" : "false");
    buffer_byte(&body, ']');
    return response_json(x, 200, &body);
}
