/* The common course of both completion endpoints: read, check, submit, then answer whole or as server-sent events. */
#include <string.h>
#include <time.h>
#include <sys/random.h>

#include "base/clock.h"
#include "server/exchange.h"
#include "server/stream.h"

enum { PUMP_MS = 100 };

void write_head(Exchange *x, const char *object, Buffer *out) {
    buffer_printf(
        out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", x->id, object, (long long)x->created);
    json_write_string(out, slice_of(x->server->model_name));
    buffer_printf(out, ",\"system_fingerprint\":\"%s\"", x->server->fingerprint);
}

void write_event_head(Exchange *x, const char *object, Buffer *out) {
    if (x->head.size == 0) {
        buffer_text(&x->head, "data: ");
        write_head(x, object, &x->head);
    }
    buffer_slice(out, buffer_view(&x->head));
    out->failed |= x->head.failed;
}

bool completion_check_model(const Exchange *x, ApiError *error) {
    if (slice_is(x->params.model, x->server->model_name)) return true;
    return api_fail(error, 404, "model_not_found", "model", "The model '%.*s' does not exist; this server has '%s'.",
        x->params.model.size < 200 ? (int)x->params.model.size : 200, x->params.model.data, x->server->model_name);
}

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

/* Called once the headers are out. What libmicrohttpd adds is the end of the body. */
static ssize_t stream_body(void *cls, uint64_t position, char *bytes, size_t size) {
    Exchange *x = cls;
    return stream_write(x->server->streams, x) ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
}

static enum MHD_Result answer_stream(Exchange *x) {
    for (int i = 0; x->endpoint->write_start && i < x->generation.choice_count; i++)
        x->endpoint->write_start(x, &x->generation.choices[i], &x->out);
    return http_reply_stream(x, stream_body);
}

static enum MHD_Result answer_whole(Exchange *x) {
    ApiError error = {0};
    while (!generation_done(&x->generation)) {
        if (http_client_gone(x)) return MHD_NO;
        if (!generation_pump(&x->generation, PUMP_MS, &error)) return http_reply_error(x, &error);
        if (generation_done(&x->generation) || !server_stopped(x->server)) continue;
        api_fail(&error, 503, "shutting_down", NULL, "The server is shutting down.");
        return http_reply_error(x, &error);
    }
    Buffer body = {0};
    x->endpoint->write_whole(x, &body);
    generation_close(&x->generation);
    if (!body.failed) return http_reply(x, 200, &body);
    buffer_free(&body);
    api_fail(&error, 503, "out_of_memory", NULL, "Out of memory.");
    return http_reply_error(x, &error);
}

static bool prepare(Exchange *x, ApiError *error) {
    Error why = {0};
    x->arena.limit = (size_t)1 << 30;
    if (x->body.failed) return api_fail(error, 503, "out_of_memory", NULL, "Out of memory.");
    const Json *body = json_parse(&x->arena, buffer_view(&x->body), &why);
    if (!body && why.code == ERROR_MEMORY) return api_fail(error, 503, "out_of_memory", NULL, "Out of memory.");
    if (!body)
        return api_fail(error, 400, NULL, NULL, "We could not parse the JSON body of your request: %s.", why.text);
    if (body->type != JSON_OBJECT)
        return api_fail(error, 400, NULL, NULL, "The body of your request must be a JSON object, but it is %s.",
            json_type_name(body));
    x->params = (ApiRequest){.arena = &x->arena,
        .vocab = model_vocab(engine_model(x->server->engine)),
        .sampling = x->server->defaults,
        .max_tokens = -1,
        .choices = 1};
    if (getentropy(&x->params.sampling.seed, sizeof x->params.sampling.seed))
        x->params.sampling.seed = (uint64_t)clock_ns();
    if (!x->endpoint->prepare(x, body, error)) return false;
    return generation_open(
        &x->generation, x->server->engine, x->server->tokenizer, &x->params, x->prompts, x->prompt_count, error);
}

enum MHD_Result completion_answer(Exchange *x, const Endpoint *endpoint) {
    ApiError error = {0};
    x->endpoint = endpoint;
    x->created = (int64_t)time(NULL);
    make_id(x, endpoint->id_prefix);
    __atomic_fetch_add(&x->server->answering, 1, __ATOMIC_RELAXED);
    if (!prepare(x, &error)) return http_reply_error(x, &error);
    return x->params.stream ? answer_stream(x) : answer_whole(x);
}
