#include "server/api/ollama_list.h"

#include <stdio.h>
#include <time.h>

#include "base/sha256.h"
#include "server/http/body.h"
#include "server/api/members.h"
#include "server/api/model_list.h"
#include "server/http/response.h"

/* The API that is spoken here is that of this version of Ollama. Clients refuse older ones. */
#define OLLAMA_VERSION "0.11.0"

/* {"format", "family", …}; facts of a model that is not loaded are empty. */
static void write_details(const ModelFacts *facts, Buffer *out) {
    buffer_text(out, "\"details\":{\"parent_model\":\"\",\"format\":\"safetensors\"");
    member_text("family", slice_of(facts->family), out);
    buffer_text(out, ",\"families\":[");
    if (facts->family[0]) json_write_string(out, slice_of(facts->family));
    buffer_text(out, "],\"parameter_size\":\"");
    if (facts->parameters >= 1000000000)
        buffer_printf(out, "%.1fB", (double)facts->parameters * 1e-9);
    else if (facts->parameters)
        buffer_printf(out, "%.1fM", (double)facts->parameters * 1e-6);
    buffer_printf(out, "\",\"quantization_level\":\"%s\"}", facts->weights);
}

static void write_model(Exchange *x, const ModelStatus *status, Buffer *out) {
    uint8_t digest[SHA256_BYTES];
    char date[32];
    struct tm utc;
    const time_t seconds = (time_t)status->created;
    ChatModel *model = models_hold(x->server->models, slice_of(status->name));
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
    const ModelFacts facts = model ? chat_model_facts(model) : (ModelFacts){.family = ""};
    const unsigned long long bytes = facts.bytes;
    buffer_printf(
        out, ",\"size\":%llu,\"size_vram\":%llu,\"context_length\":%d,\"digest\":\"", bytes, bytes, status->context);
    for (int i = 0; i < SHA256_BYTES; i++) buffer_printf(out, "%02x", digest[i]);
    buffer_text(out, "\",");
    write_details(&facts, out);
    buffer_byte(out, '}');
    models_release(x->server->models, model);
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
        write_model(x, &status, &body);
    }
    buffer_text(&body, "]}");
    return response_json(x, 200, &body);
}

bool answer_ollama_tags(Exchange *x, Slice rest) { return answer_list(x, false); }
bool answer_ollama_ps(Exchange *x, Slice rest) { return answer_list(x, true); }

bool answer_ollama_version(Exchange *x, Slice rest) {
    Buffer body = {0};
    buffer_printf(&body, "{\"version\":\"%s\",\"apus_version\":\"%s\"}", OLLAMA_VERSION, APUS_VERSION);
    return response_json(x, 200, &body);
}

static bool write_show(Exchange *x, Slice name, Buffer *out, ApiError *error) {
    if (models_find(x->server->models, name) < 0) return model_unknown(x->server, name, error);
    ChatModel *model = model_take(x, name, error);
    if (!model) return false;
    buffer_text(out, "{\"modelfile\":\"\",\"parameters\":\"\"");
    member_text("template", model->template ? template_source(model->template) : SLICE(""), out);
    const ModelFacts facts = chat_model_facts(model);
    const char *family = facts.family[0] ? facts.family : "apus";
    buffer_byte(out, ',');
    write_details(&facts, out);
    buffer_text(out, ",\"model_info\":{\"general.architecture\":");
    json_write_string(out, slice_of(family));
    member_text("general.basename", slice_of(model->name), out);
    buffer_printf(out,
        ",\"general.parameter_count\":%llu,\"%s.context_length\":%d,\"%s.embedding_length\":%d,\"%s.block_count\":%d}",
        (unsigned long long)facts.parameters, family, chat_model_context(model), family, facts.width, family,
        facts.layers);
    buffer_printf(out, ",\"capabilities\":[\"completion\"%s%s%s%s]}", model->calls ? ",\"tools\"" : "",
        model->reasoning ? ",\"thinking\"" : "", engine_vision(model->engine) ? ",\"vision\"" : "",
        engine_audio(model->engine) ? ",\"audio\"" : "");
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
