/* The common course of both completion endpoints: read, check, submit, then answer whole or as server-sent events. */
#include <string.h>
#include <time.h>
#include <sys/random.h>

#include "base/clock.h"
#include "server/exchange.h"

enum { PUMP_MS = 100, LOOK_MS = 100, HEARTBEAT_S = 10 };

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

static bool engine_stopped(const Exchange *x) { return __atomic_load_n(&x->server->stopping, __ATOMIC_RELAXED) > 1; }

static void write_error_event(Exchange *x, const ApiError *error) {
    buffer_text(&x->out, "data: ");
    api_write_error(&x->out, error);
    buffer_text(&x->out, "\n\n");
    x->ended = true;
}

/* Turns what the engine has produced into events. */
static void collect_events(Exchange *x) {
    Generation *g = &x->generation;
    ApiError error = {0};
    if (!generation_pump(g, PUMP_MS, &error)) {
        write_error_event(x, &error);
        return;
    }
    for (int i = 0; i < g->choice_count; i++) {
        Choice *choice = &g->choices[i];
        if (choice->pending.size > 0 || choice->token_count > 0) x->endpoint->write_delta(x, choice, &x->out);
        if (choice->finish == FINISH_NONE || choice->finish_sent) continue;
        x->endpoint->write_finish(x, choice, &x->out);
        choice->finish_sent = true;
    }
    if (!generation_done(g)) return;
    if (x->params.include_usage) x->endpoint->write_usage(x, &x->out);
    buffer_text(&x->out, "data: [DONE]\n\n");
    x->ended = true;
}

static ssize_t stream_read(void *cls, uint64_t position, char *bytes, size_t size) {
    Exchange *x = cls;
    http_touch(x);
    while (x->out_read == x->out.size) {
        if (x->ended) return MHD_CONTENT_READER_END_OF_STREAM;
        buffer_clear(&x->out);
        x->out_read = 0;
        const int64_t before = clock_ns();
        if (before - x->last_look_ns >
            LOOK_MS * INT64_C(1000000)) { /* sending finds out, too, but may have nothing to send */
            if (http_client_gone(x)) return MHD_CONTENT_READER_END_WITH_ERROR;
            x->last_look_ns = before;
        }
        if (engine_stopped(x)) {
            ApiError error = {0};
            api_fail(&error, 503, "shutting_down", NULL, "The server is shutting down.");
            write_error_event(x, &error);
        } else {
            collect_events(x);
        }
        if (x->out.failed) return MHD_CONTENT_READER_END_WITH_ERROR;
        const int64_t now = clock_ns();
        if (x->out.size > 0)
            x->last_event_ns = now;
        else if (now - x->last_event_ns > HEARTBEAT_S * INT64_C(1000000000)) {
            buffer_text(&x->out, ": waiting\n\n"); /* a comment: keeps proxies and clients from giving up */
            x->last_event_ns = now;
        }
    }
    const size_t left = x->out.size - x->out_read, take = left < size ? left : size;
    memcpy(bytes, x->out.data + x->out_read, take);
    x->out_read += take;
    return (ssize_t)take;
}

static enum MHD_Result answer_stream(Exchange *x) {
    for (int i = 0; x->endpoint->write_start && i < x->generation.choice_count; i++)
        x->endpoint->write_start(x, &x->generation.choices[i], &x->out);
    x->last_event_ns = clock_ns();
    return http_reply_stream(x, stream_read);
}

static enum MHD_Result answer_whole(Exchange *x) {
    ApiError error = {0};
    while (!generation_done(&x->generation)) {
        if (http_client_gone(x)) return MHD_NO;
        if (engine_stopped(x)) api_fail(&error, 503, "shutting_down", NULL, "The server is shutting down.");
        if (error.status || !generation_pump(&x->generation, PUMP_MS, &error)) return http_reply_error(x, &error);
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
    if (!prepare(x, &error)) return http_reply_error(x, &error);
    return x->params.stream ? answer_stream(x) : answer_whole(x);
}
