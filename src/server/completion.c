#include "server/completion.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "server/reply.h"
#include "server/stream.h"

enum { PUMP_MS = 100, ARENA_BYTES_MAX = 1 << 30 };

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

static const Json *parse_body(Exchange *x, ApiError *error) {
    Error why = {0};
    x->arena.limit = ARENA_BYTES_MAX;
    const Json *body = json_parse(&x->arena, buffer_view(&x->body), &why);
    if (body && body->type == JSON_OBJECT) return body;
    if (body)
        api_fail(error, 400, NULL, NULL, "The body of your request must be a JSON object, but it is %s.",
            json_type_name(body));
    else if (why.code == ERROR_MEMORY)
        api_out_of_memory(error);
    else
        api_fail(error, 400, NULL, NULL, "We could not parse the JSON body of your request: %s.", why.text);
    return NULL;
}

/* What a request that says nothing gets. */
static ApiRequest default_params(Exchange *x) {
    ApiRequest params = {.arena = &x->arena,
        .vocab = chat_model_vocab(x->model),
        .sampling = x->model->sampling,
        .max_tokens = -1,
        .choices = 1};
    if (getentropy(&params.sampling.seed, sizeof params.sampling.seed)) params.sampling.seed = (uint64_t)clock_ns();
    return params;
}

static bool check_model(const Exchange *x, ApiError *error) {
    const Slice name = x->params.model;
    if (slice_is(name, x->model->name)) return true;
    return api_fail(error, 404, "model_not_found", "model", "The model '%.*s' does not exist; this server has '%s'.",
        name.size < 200 ? (int)name.size : 200, name.data, x->model->name);
}

static bool check_context(const Exchange *x, ApiError *error) {
    const int64_t context = chat_model_context(x->model), limit = x->params.max_tokens;
    const int64_t wanted = limit > 0 ? limit : limit < 0 ? 1 : 0;
    const char *field = x->params.messages ? "messages" : "prompt";
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

static bool submit(Exchange *x, ApiError *error) {
    const ApiRequest *params = &x->params;
    const int64_t limit = params->max_tokens;
    const GenerationOptions options = {
        .prompts = x->prompts,
        .prompt_count = x->prompt_count,
        .choices = params->choices,
        .max_tokens = limit > 0 ? (int)limit
            : limit == 0        ? 1
                                : INT32_MAX,
        .echo_logprobs = params->echo && params->logprobs,
        .sampling = params->sampling,
        .stops = params->stops,
        .stop_count = params->stop_count,
    };
    x->given = arena_alloc(&x->arena, (size_t)x->prompt_count * (size_t)params->choices, sizeof *x->given);
    if (!x->given) return api_out_of_memory(error);
    Error why = {0};
    if (generation_open(&x->generation, x->model, &options, &why)) return true;
    if (why.code != ERROR_LIMIT) return api_engine_failed(error, &why);
    return api_fail(error, 400, "context_length_exceeded", params->messages ? "messages" : "prompt", "%s.", why.text);
}

static bool prepare(Exchange *x, ApiError *error) {
    if (x->body.failed) return api_out_of_memory(error);
    const Json *body = parse_body(x, error);
    if (!body) return false;
    x->model = x->server->model;
    x->params = default_params(x);
    return x->endpoint->read_params(&x->params, body, error) && check_model(x, error) &&
        x->endpoint->make_prompts(x, error) && check_context(x, error) && submit(x, error);
}

/* ---- the answer ---- */

/* Called once the headers are out. What libmicrohttpd adds is the end of the body. */
static ssize_t stream_body(void *cls, uint64_t position, char *bytes, size_t size) {
    Exchange *x = cls;
    return stream_write(x->server->streams, x) ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
}

static enum MHD_Result answer_stream(Exchange *x) {
    for (int i = 0; x->endpoint->write_start && i < x->generation.choice_count; i++)
        x->endpoint->write_start(x, i, &x->out);
    return reply_stream(x, stream_body);
}

static enum MHD_Result answer_whole(Exchange *x) {
    ApiError error = {0};
    Error why = {0};
    while (!generation_done(&x->generation)) {
        if (reply_client_gone(x)) return MHD_NO;
        if (!generation_pump(&x->generation, PUMP_MS, &why)) {
            api_engine_failed(&error, &why);
            return reply_error(x, &error);
        }
        if (generation_done(&x->generation) || !server_stopped(x->server)) continue;
        api_fail(&error, 503, "shutting_down", NULL, "The server is shutting down.");
        return reply_error(x, &error);
    }
    Buffer body = {0};
    x->endpoint->write_whole(x, &body);
    generation_close(&x->generation);
    if (!body.failed) return reply_json(x, 200, &body);
    buffer_free(&body);
    api_out_of_memory(&error);
    return reply_error(x, &error);
}

enum MHD_Result completion_answer(Exchange *x, const Endpoint *endpoint) {
    ApiError error = {0};
    x->endpoint = endpoint;
    x->created = (int64_t)time(NULL);
    make_id(x, endpoint->id_prefix);
    __atomic_fetch_add(&x->server->answering, 1, __ATOMIC_RELAXED);
    if (!prepare(x, &error)) return reply_error(x, &error);
    return x->params.stream ? answer_stream(x) : answer_whole(x);
}

void completion_close(Exchange *x) {
    if (!x->endpoint) return;
    generation_close(&x->generation);
    for (int i = 0; i < x->prompt_count; i++) tokens_free(&x->prompts[i]);
    buffer_free(&x->head);
    buffer_free(&x->out);
    arena_free(&x->arena);
    __atomic_fetch_sub(&x->server->answering, 1, __ATOMIC_RELAXED);
}
