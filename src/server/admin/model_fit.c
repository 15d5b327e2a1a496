#include "server/admin/model_fit.h"

#include <inttypes.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "library/expected.h"
#include "server/http/body.h"
#include "server/http/response.h"

enum { NAME_BYTES_MAX = 1024, CONFIG_BYTES_MAX = 4 << 20, CONFIG_MADE_BYTES_MAX = 64 << 20 };

/* ---- the request ---- */

static bool read_model(const Exchange *x, char name[NAME_BYTES_MAX], ApiError *error) {
    Arena arena = {.limit = BODY_MADE_BYTES_LEAST + x->body.size * BODY_MADE_PER_BYTE};
    Slice model = {0};
    bool ok = body_model(x, &arena, &model, error);
    if (ok && (model.size == 0 || model.size >= NAME_BYTES_MAX || memchr(model.data, 0, model.size)))
        ok = api_fail(error, 400, "invalid_value", "model", "Invalid 'model': want the name of a model.");
    if (ok) memcpy(name, model.data, model.size);
    if (ok) name[model.size] = '\0';
    arena_free(&arena);
    return ok;
}

static bool explain(const Exchange *x, const char *name, const Error *why, ApiError *error) {
    if (why->code == ERROR_NOT_FOUND && !x->server->options.allow_pull)
        return api_fail(error, 404, "model_not_found", "model",
            "The model '%.200s' is not on this machine, and this server does not ask the hub; start it with "
            "--allow-pull.",
            name);
    if (why->code == ERROR_NOT_FOUND) return api_fail(error, 404, "model_not_found", "model", "%s.", why->text);
    if (why->code == ERROR_USAGE) return api_fail(error, 400, "invalid_value", "model", "%s.", why->text);
    if (why->code == ERROR_UNSUPPORTED || why->code == ERROR_FORMAT)
        return api_fail(error, 400, "unsupported_model", "model", "%s.", why->text);
    log_warn("the fit of %s: %s", name, why->text);
    return api_fail(error, 503, "hub_failed", NULL, "%s.", why->text);
}

/* ---- the response ---- */

static void write_rate(Buffer *out, const char *name, double rate) {
    if (rate > 0)
        buffer_printf(out, ",\"%s\":%.3g", name, rate);
    else
        buffer_printf(out, ",\"%s\":null", name);
}

/* Family and quantisation, as the config names them; null: it does not, or there is none. */
static void write_kind(const ModelOutline *outline, Buffer *out) {
    Arena arena = {.limit = CONFIG_MADE_BYTES_MAX};
    Buffer path = {0}, text = {0};
    Error none = {0};
    if (outline->directory.size) buffer_printf(&path, "%s/config.json", outline->directory.data);
    const bool there = path.size && !path.failed && file_read(path.data, CONFIG_BYTES_MAX, &text, &none);
    const Json *config = there ? json_parse(&arena, buffer_view(&text), &none) : NULL;
    const Json *type = json_get(config, "model_type"), *quantisation = json_get(config, "quantization");
    if (!quantisation) quantisation = json_get(config, "quantization_config");
    const Json *bits = json_get(quantisation, "bits");
    buffer_text(out, ",\"model_type\":");
    if (type && type->type == JSON_STRING)
        json_write_string(out, json_slice(type));
    else
        buffer_text(out, "null");
    buffer_text(out, ",\"bits\":");
    if (json_is_number(bits))
        json_write_number(out, json_number(bits));
    else
        buffer_text(out, "null");
    buffer_free(&path);
    buffer_free(&text);
    arena_free(&arena);
}

static void write_fit(const char *name, const ModelOutline *outline, const Expectation *e, Buffer *out) {
    buffer_text(out, "{\"id\":");
    json_write_string(out, slice_of(name));
    buffer_printf(out, ",\"object\":\"model_fit\",\"fit\":\"%s\",\"now\":\"%s\",\"basis\":\"%s\",\"local\":%s",
        expected_name(e->fit), expected_name(e->now), outline->gguf_bytes ? "size" : "plan",
        outline->local ? "true" : "false");
    write_kind(outline, out);
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"weight_bytes", e->weight_bytes}, {"needed_bytes", e->needed_bytes},
        {"least_bytes", e->floor_bytes}, {"free_bytes", e->memory_bytes}, {"usable_bytes", e->alone_bytes},
        {"kv_cache_bytes", e->kv_bytes}, {"context_length", (uint64_t)e->context}, {"experts", (uint64_t)e->experts},
        {"experts_in_memory", (uint64_t)e->held}};
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        buffer_printf(out, ",\"%s\":%" PRIu64, numbers[i].name, numbers[i].value);
    write_rate(out, "decode_tokens_per_second", e->decode);
    write_rate(out, "prompt_tokens_per_second", e->prompt);
    buffer_printf(out, ",\"measured\":%s}", e->measured ? "true" : "false");
}

/* ---- the plan ---- */

/* One at a time: a measurement takes all threads, and a plan of a large mixture some memory. */
static bool expect(Server *server, const ModelOutline *outline, Expectation *out, Error *error) {
    const ModelPlanner *planner = server->options.planner;
    bool busy;
    if (!planner) return fail(error, ERROR_UNSUPPORTED, "this program does not plan models");
    mutex_lock(&server->fit_lock);
    const EngineOptions options = models_engine_options(server->models, outline->directory.data);
    const uint64_t held = models_held_bytes(server->models, &busy);
    if (!busy) expected_measure(planner, &options); /* a model that answers would be slower, and so would be measured */
    const bool ok = expected_of(planner, &options, outline, held, out, error);
    mutex_unlock(&server->fit_lock);
    return ok;
}

bool answer_fit(Exchange *x, Slice rest) {
    ApiError error = {0};
    Error why = {0};
    char name[NAME_BYTES_MAX];
    ModelOutline outline;
    Expectation expectation;
    Buffer body = {0};
    if (!read_model(x, name, &error)) return response_error(x, &error);
    bool ok = outline_find(name, x->server->options.allow_pull, &outline, &why);
    if (ok) {
        ok = expect(x->server, &outline, &expectation, &why);
        if (ok) write_fit(name, &outline, &expectation, &body);
        outline_free(&outline);
    }
    if (ok) return response_json(x, 200, &body);
    explain(x, name, &why, &error);
    return response_error(x, &error);
}
