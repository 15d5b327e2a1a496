#include "server/api/completion.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "server/http/body.h"
#include "server/http/deadlines.h"
#include "server/http/form.h"
#include "server/admin/metrics.h"
#include "server/api/cache_params.h"
#include "server/api/model_list.h"
#include "server/http/response.h"
#include "server/admin/request_log.h"
#include "server/api/reasoning.h"
#include "server/api/resumable.h"
#include "server/api/stream.h"
#include "server/api/tool_constraint.h"
#include "server/routes.h"

enum { PUMP_MS = 100 };

static void make_id(Exchange *x, const char *prefix) {
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    enum { ID_RANDOM = 29 };
    unsigned char random[ID_RANDOM];
    if (getentropy(random, sizeof random)) memset(random, 0, sizeof random);
    const size_t start = strlen(prefix);
    memcpy(x->id, prefix, start);
    for (size_t i = 0; i < ID_RANDOM; i++) x->id[start + i] = alphabet[random[i] % (sizeof alphabet - 1)];
    x->id[start + ID_RANDOM] = 0;
}

/* ---- the request ---- */

static void take_default(const DefaultNumber *standing, float *value) {
    if (standing->given) *value = standing->value;
}

static void take_defaults(const RequestDefaults *defaults, ChatRequest *request) {
    SamplingOptions *sampling = &request->generation.request.sampling;
    take_default(&defaults->temperature, &sampling->temperature);
    take_default(&defaults->top_p, &sampling->top_p);
    take_default(&defaults->min_p, &sampling->min_p);
    take_default(&defaults->repetition_penalty, &sampling->repetition_penalty);
    if (defaults->top_k_given) sampling->top_k = defaults->top_k;
    if (defaults->max_tokens) request->default_max_tokens = defaults->max_tokens;
}

/* The preset of the request's model; NULL: it has none. */
static const ModelPreset *preset_of(const Exchange *x) {
    const ServerOptions *options = &x->server->options;
    for (int i = 0; x->model && i < options->preset_count; i++) {
        const int index = models_find(x->server->models, slice_of(options->presets[i].model));
        if (index >= 0 && index == models_find(x->server->models, slice_of(x->model->name)))
            return &options->presets[i];
    }
    return NULL;
}

/* A request without fields. */
static ChatRequest default_request(Exchange *x, Arena *arena) {
    const ModelPreset *preset = preset_of(x);
    const ChatModel *model = x->model;
    ChatRequest request = request_init(arena, model ? chat_model_vocab(model) : INT32_MAX);
    SamplingOptions *sampling = &request.generation.request.sampling;
    if (model) {
        *sampling = model->sampling;
        request.cache.server_format = engine_kv_format(model->engine);
        request.cache.server_dtype = engine_kv_dtype(model->engine);
    }
    request.media_hosts = x->server->options.media_hosts;
    take_defaults(&x->server->options.defaults, &request);
    if (preset) take_defaults(&preset->defaults, &request);
    request.ignored = x->ignored;
    request.ignored_size = sizeof x->ignored;
    if (x->server->options.lenient) {
        request.lenient = true;
        request.stop_max = STOP_STRINGS_MAX;
        request.reasoning.advisory = true;
    }
    if (getentropy(&sampling->seed, sizeof sampling->seed)) sampling->seed = (uint64_t)clock_ns();
    return request;
}

/* The model that the body names. An unknown or missing name is reported after errors of other fields. */
static bool take_model(Exchange *x, const Json *body, ApiError *error) {
    const Json *name = json_get(body, "model");
    if (!name || name->type != JSON_STRING || models_find(x->server->models, json_slice(name)) < 0) return true;
    x->model = model_take(x, json_slice(name), error);
    return x->model;
}

bool completion_fits(const ChatModel *model, size_t bytes, const char *field, ApiError *error) {
    const int64_t context = chat_model_context(model);
    const size_t longest = tokenizer_longest(model->tokenizer);
    if (!longest || bytes / longest <= (size_t)context) return true;
    return api_fail(error, 400, "context_length_exceeded", field,
        "This model's maximum context length is %lld tokens. However, the %zu bytes in the %s are at least %zu tokens. "
        "Please reduce the length of the %s.",
        (long long)context, bytes, field, bytes / longest, field);
}

bool completion_knows(const ChatModel *model, const Tokens *prompt, const char *field, ApiError *error) {
    enum { SHOWN = 64 };
    const int vocab = chat_model_vocab(model);
    size_t at = 0;
    while (at < prompt->count && prompt->ids[at] < vocab) at++;
    if (at == prompt->count) return true;
    Buffer text = {0};
    if (!tokenizer_bytes(model->tokenizer, prompt->ids[at], &text, NULL)) buffer_clear(&text);
    api_fail(error, 400, "invalid_value", field,
        "Invalid '%s': '%.*s' is token %d, and this model's vocabulary ends with %d. Its tokenizer was made for a "
        "larger "
        "one.",
        field, text.size < SHOWN ? (int)text.size : SHOWN, text.data ? text.data : "", prompt->ids[at], vocab - 1);
    buffer_free(&text);
    return false;
}

static bool check_vocabulary(const Exchange *x, const ChatRequest *request, ApiError *error) {
    bool ok = true;
    for (int p = 0; ok && p < x->prompt_count; p++)
        ok = completion_knows(x->model, &x->prompts[p], request->input_field, error);
    return ok;
}

static bool check_context(const Exchange *x, const ChatRequest *request, ApiError *error) {
    const int64_t context = chat_model_context(x->model), limit = request->generation.request.max_tokens;
    const int64_t wanted = limit > 0 && !request->cut ? limit : limit == 0 ? 0 : 1;
    const char *field = request->input_field;
    for (int p = 0; p < x->prompt_count; p++) {
        const size_t count = x->prompts[p].count;
        if (count <= INT32_MAX && (int64_t)count + wanted <= context) continue;
        return api_fail(error, 400, "context_length_exceeded", field,
            "This model's maximum context length is %lld tokens. However, you requested %lld tokens (%zu in the %s, "
            "%lld in the completion). Please reduce the length of the %s or completion.",
            (long long)context, (long long)((int64_t)count + wanted), count, field, (long long)wanted, field);
    }
    return true;
}

/* Chooses the parser of the answer. A format with channels is parsed without tools too, because reasoning and text are
 * separate channels. */
static void choose_calls(const Exchange *x, const ChatRequest *request, GenerationOptions *options) {
    const CallFormat *calls = x->model->calls;
    options->parsed = request->chat.message_count > 0;
    if (calls && calls->syntax == CALL_CHANNELS) options->calls = calls;
    if (!request->chat.tools) return;
    options->calls = chat_model_calls(x->model);
    options->tools = request->chat.tools;
    options->only_calls = request->tools.mode == TOOLS_REQUIRED;
    options->formatted = request->tools.mode == TOOLS_AUTO && request->format.field;
}

/* A prediction is a hint: it ends before a token that the model does not have, and at the length limit. */
static bool make_prediction(
    const Exchange *x, const ChatRequest *request, Tokens *tokens, RequestOptions *options, ApiError *error) {
    Error why = {0};
    const int vocab = chat_model_vocab(x->model);
    if (request->prediction.size == 0 || !engine_looks_up(x->model->engine)) return true;
    if (!tokenizer_encode(x->model->tokenizer, request->prediction, CONTROL_AS_TEXT, false, tokens, &why))
        return api_engine_failed(error, &why);
    int count = 0;
    while ((size_t)count < tokens->count && count < PREDICTION_TOKENS_MAX && tokens->ids[count] < vocab) count++;
    options->prediction = tokens->ids;
    options->prediction_count = count;
    return true;
}

static bool open_generation(Exchange *x, ChatRequest *request, ApiError *error) {
    Error why = {0};
    Tokens prediction = {0};
    bool ok = make_prediction(x, request, &prediction, &request->generation.request, error);
    if (ok && !generation_open(&x->generation, x->model, &request->generation, &why)) {
        ok = false;
        if (why.code != ERROR_LIMIT)
            api_engine_failed(error, &why);
        else
            api_fail(error, 400, "context_length_exceeded", request->input_field, "%s.", why.text);
    }
    tokens_free(&prediction);
    return ok;
}

static bool submit(Exchange *x, ChatRequest *request, Constraint *constraint, ApiError *error) {
    GenerationOptions *options = &request->generation;
    const int limit = options->request.max_tokens;
    options->request.max_tokens = limit > 0 ? limit : limit == 0 ? 1 : INT32_MAX;
    options->request.echo_logprobs = request->response.echo && request->response.logprobs;
    options->request.kv_format = request->cache.format_given ? &request->cache.format : NULL;
    options->request.cache_salt = cache_salt(&request->cache, x->key);
    options->request.adapter =
        model_adapter(engine_model(x->model->engine), models_adapter(x->server->models, request->model));
    options->request.constraint = constraint;
    prompt_media_request(&x->media, &options->request);
    x->audio_tokens = x->media.audio_tokens;
    options->prompts = x->prompts;
    options->prompt_count = x->prompt_count;
    options->stops = request->stops;
    choose_calls(x, request, options);
    x->kv_format = request->cache.format_given ? request->cache.format : *engine_kv_format(x->model->engine);
    x->kv_bits = request->cache.bits;
    x->given = arena_alloc(&x->arena, (size_t)x->prompt_count * (size_t)options->request.choices, sizeof *x->given);
    if (!x->given) return api_out_of_memory(error);
    return open_generation(x, request, error);
}

static void free_prompts(Exchange *x) {
    prompt_media_close(&x->media);
    for (int i = 0; i < x->prompt_count; i++) tokens_free(&x->prompts[i]);
}

/* What requests get that do not say whether to think. on: by an option of the server. */
static void settle_thinking(ChatRequest *request, bool on) {
    ReasoningOptions *r = &request->reasoning;
    const bool off = r->off_unless_given && !r->thinking_given;
    if (on) {
        const bool given = r->thinking_given || r->effort.data || json_get(request->chat.arguments, "enable_thinking");
        if (!given) reasoning_advise_thinking(r, true);
    } else if (off) {
        reasoning_advise_thinking(r, false);
    }
    request->response.hide_reasoning = r->off_unless_given && !r->thinking;
}

static const Json *read_body(const Exchange *x, Arena *arena, ApiError *error) {
    if (!x->route || !x->route->form) return body_object(x, arena, error);
    const char *type = http_request_header(x->request, "Content-Type");
    return form_object(slice_of(type ? type : ""), buffer_view(&x->body), "file", arena, error);
}

/* The request and its prompts. */
static bool read_request(Exchange *x, ChatRequest *request, Arena *arena, ApiError *error) {
    const Json *body = read_body(x, arena, error);
    if (!body) return false;
    if (!take_model(x, body, error)) return false;
    *request = default_request(x, arena);
    if (!x->endpoint->read(request, body, error)) return false;
    if (!x->model) return model_unknown(x->server, request->model, error);
    if (model_encodes(engine_model(x->model->engine)))
        return api_fail(
            error, 400, "unsupported_model", "model", "The model '%s' makes embeddings, no answers.", x->model->name);
    if (request->keep_alive_given) (void)models_keep(x->server->models, x->model, request->keep_alive_ms);
    const ModelPreset *preset = preset_of(x);
    const bool own = preset && preset->thinking_given;
    settle_thinking(request, own ? preset->defaults.thinking : x->server->options.defaults.thinking);
    return x->endpoint->make_prompts(x, request, error);
}

/* arena: of the request. */
static bool understand(Exchange *x, Arena *arena, ApiError *error) {
    ChatRequest request;
    Constraint *constraint;
    if (!read_request(x, &request, arena, error) || !check_context(x, &request, error) ||
        !check_vocabulary(x, &request, error) || !tool_constraint(&request, x->model, x->prompts, &constraint, error))
        return false;
    const bool ok = submit(x, &request, constraint, error);
    constraint_release(constraint); /* the requests have their own references */
    if (!ok) return false;
    x->response_options = request.response;
    x->reads_request = request.generation.tools || request.response.repeated.data;
    prompt_media_close(&x->media);
    if (!x->response_options.echo) free_prompts(x);
    return true;
}

/* The body and its arena stay only where the response reads them: other requests hold their tokens alone. */
static bool prepare(Exchange *x, ApiError *error) {
    x->request_arena.limit = BODY_MADE_BYTES_LEAST + x->body.size * BODY_MADE_PER_BYTE;
    const bool ok = understand(x, &x->request_arena, error);
    if (ok && x->reads_request) {
        body_keep(x, x->request_arena.used);
        return true;
    }
    arena_free(&x->request_arena);
    body_free(x);
    return ok;
}

/* ---- the answer ---- */

/* The generation has ended, or its client is gone. */
static void close_generation(Exchange *x) {
    if (x->generation.request_count > 0) {
        metrics_note_completion(
            x->server->metrics, x->model_index, &x->generation, (double)(clock_ns() - x->started_ns) * 1e-9);
        request_log_note(x);
    }
    generation_close(&x->generation);
}

static bool answer_stream(Exchange *x) {
    for (int i = 0; x->endpoint->write_start && i < x->generation.choice_count; i++)
        x->endpoint->write_start(x, i, &x->event_bytes);
    if (!stream_write(x->server->streams, x)) return false;
    close_generation(x);
    response_stream_chunk(x, SLICE(""), true);
    return true;
}

static bool answer_whole(Exchange *x) {
    ApiError error = {0};
    Error why = {0};
    while (!generation_done(&x->generation)) {
        if (response_client_gone(x)) return false;
        if (!generation_pump(&x->generation, PUMP_MS, &why)) {
            api_engine_failed(&error, &why);
            return response_error(x, &error);
        }
        metrics_note_tokens(x->server->metrics, x->model_index, &x->generation, x->given);
        if (!generation_done(&x->generation) && deadlines_must_end(x, &error)) return response_error(x, &error);
    }
    Buffer body = {0};
    x->endpoint->write_whole(x, &body);
    close_generation(x);
    if (!body.failed && x->response_options.plain) return response_text(x, "text/plain; charset=utf-8", &body);
    if (!body.failed) return response_json(x, 200, &body);
    buffer_free(&body);
    api_out_of_memory(&error);
    return response_error(x, &error);
}

bool completion_answer(Exchange *x, const Endpoint *endpoint) {
    ApiError error = {0};
    x->endpoint = endpoint;
    x->created = (int64_t)time(NULL);
    make_id(x, endpoint->id_prefix);
    if (!prepare(x, &error)) return response_error(x, &error);
    if (x->response_options.stream && !endpoint->media && !resumable_begin(x, &error)) return response_error(x, &error);
    return x->response_options.stream ? answer_stream(x) : answer_whole(x);
}

/* Makes x->prompts of the request, and nothing more. */
static bool read_prompt(Exchange *x, const Endpoint *endpoint, ApiError *error) {
    ChatRequest request;
    Arena arena = {.limit = BODY_MADE_BYTES_LEAST + x->body.size * BODY_MADE_PER_BYTE};
    x->endpoint = endpoint;
    const bool ok = read_request(x, &request, &arena, error);
    arena_free(&arena);
    return ok;
}

bool completion_count(Exchange *x, const Endpoint *endpoint) {
    ApiError error = {0};
    if (!read_prompt(x, endpoint, &error)) return response_error(x, &error);
    Buffer body = {0};
    const bool openai = !endpoint->write_error; /* its answer names its kind */
    buffer_printf(
        &body, "{%s\"input_tokens\":%zu}", openai ? "\"object\":\"response.input_tokens\"," : "", x->prompts->count);
    return response_json(x, 200, &body);
}

bool completion_render(Exchange *x, const Endpoint *endpoint) {
    ApiError error = {0};
    Error why = {0};
    if (!read_prompt(x, endpoint, &error)) return response_error(x, &error);
    Buffer body = {0}, text = {0};
    const Tokens *prompt = x->prompts;
    if (!tokenizer_decode(x->model->tokenizer, prompt->ids, prompt->count, false, &text, &why)) {
        buffer_free(&text);
        api_out_of_memory(&error);
        return response_error(x, &error);
    }
    buffer_text(&body, "{\"prompt\":");
    json_write_string(&body, buffer_view(&text));
    buffer_byte(&body, '}');
    buffer_free(&text);
    return response_json(x, 200, &body);
}

void completion_close(Exchange *x) {
    if (!x->endpoint) return;
    resumable_end(x->resumable, x->ended);
    close_generation(x);
    free_prompts(x);
    answer_events_free(&x->kept);
    buffer_free(&x->head);
    buffer_free(&x->event_bytes);
    arena_free(&x->arena);
    arena_free(&x->request_arena);
    models_release(x->server->models, x->model);
}
