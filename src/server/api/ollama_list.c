#include "server/api/ollama_list.h"

#include <stdio.h>
#include <time.h>

#include "base/sha256.h"
#include "server/http/body.h"
#include "server/api/members.h"
#include "server/api/model_list.h"
#include "server/http/response.h"

static const char details[] =
    "\"details\":{\"parent_model\":\"\",\"format\":\"safetensors\",\"family\":\"\",\"families\":[],"
    "\"parameter_size\":\"\",\"quantization_level\":\"\"}";

static void write_model(const ModelStatus *status, Buffer *out) {
    uint8_t digest[SHA256_BYTES];
    char date[32];
    struct tm utc;
    const time_t seconds = (time_t)status->created;
    Sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, status->name, strlen(status->name));
    sha256_end(&sha, digest);
    gmtime_r(&seconds, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    buffer_text(out, "{\"name\":");
    json_write_string(out, slice_of(status->name));
    member_text("model", slice_of(status->name), out);
    member_text("modified_at", slice_of(date), out);
    buffer_text(out, ",\"size\":0,\"digest\":\"");
    for (int i = 0; i < SHA256_BYTES; i++) buffer_printf(out, "%02x", digest[i]);
    buffer_printf(out, "\",%s}", details);
}

static bool answer_list(Exchange *x, bool loaded) {
    Buffer body = {0};
    int count = 0;
    buffer_text(&body, "{\"models\":[");
    for (int i = 0; i < MODELS_MAX; i++) {
        ModelStatus status;
        if (!models_status(x->server->models, i, &status)) continue;
        if (loaded && status.state != MODEL_LOADED) continue;
        if (count++) buffer_byte(&body, ',');
        write_model(&status, &body);
    }
    buffer_text(&body, "]}");
    return response_json(x, 200, &body);
}

bool answer_ollama_tags(Exchange *x, Slice rest) { return answer_list(x, false); }
bool answer_ollama_ps(Exchange *x, Slice rest) { return answer_list(x, true); }

bool answer_ollama_version(Exchange *x, Slice rest) {
    Buffer body = {0};
    buffer_printf(&body, "{\"version\":\"%s\"}", APUS_VERSION);
    return response_json(x, 200, &body);
}

static bool write_show(Exchange *x, Slice name, Buffer *out, ApiError *error) {
    if (models_find(x->server->models, name) < 0) return model_unknown(x->server, name, error);
    ChatModel *model = model_take(x, name, error);
    if (!model) return false;
    buffer_text(out, "{\"modelfile\":\"\",\"parameters\":\"\"");
    member_text("template", model->template ? template_source(model->template) : SLICE(""), out);
    buffer_printf(out,
        ",%s,\"model_info\":{\"general.architecture\":\"apus\",\"apus.context_length\":%d},\"capabilities\":["
        "\"completion\"%s%s]}",
        details, chat_model_context(model), model->calls ? ",\"tools\"" : "", model->reasoning ? ",\"thinking\"" : "");
    models_release(x->server->models, model);
    return true;
}

bool answer_ollama_show(Exchange *x, Slice rest) {
    ApiError error = {0};
    Arena arena = {.limit = BODY_MADE_BYTES_LEAST};
    Buffer body = {0};
    Slice name;
    const Json *object = body_object(x, &arena, &error);
    const Json *model = object ? member_get(object, "model") : NULL;
    if (object && !model) model = member_get(object, "name"); /* as older clients call it */
    const bool ok = object && (model || api_missing("model", &error)) && api_string(model, "model", &name, &error) &&
        write_show(x, name, &body, &error);
    arena_free(&arena);
    return ok ? response_json(x, 200, &body) : response_error(x, &error);
}
