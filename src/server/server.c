#include "server/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/map.h"
#include "server/http.h"
#include "server/stream.h"

enum { DRAIN_S = 10, FAREWELL_S = 1, DRAIN_STEP_MS = 20 };

static void take_number(const Json *config, const char *name, double min, double max, float *out) {
    const Json *value = json_get(config, name);
    if (json_is_number(value) && json_number(value) >= min && json_number(value) <= max)
        *out = (float)json_number(value);
}

/* What a request that says nothing gets: the model's own recommendation (generation_config.json), else OpenAI's
 * defaults. */
static SamplingOptions sampling_defaults(const Model *model) {
    SamplingOptions o = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1};
    const Json *config = model_generation_config(model);
    take_number(config, "temperature", 0, 2, &o.temperature);
    take_number(config, "top_p", 0, 1, &o.top_p);
    take_number(config, "min_p", 0, 1, &o.min_p);
    take_number(config, "repetition_penalty", 0.01, 2, &o.repetition_penalty);
    float top_k = 0;
    take_number(config, "top_k", 0, 1e6, &top_k);
    o.top_k = (int)top_k;
    return o;
}

/* Names what decides the numbers: the program, the model's size and the instruction set. */
static void make_fingerprint(Server *server) {
    char text[256];
    Model *model = engine_model(server->engine);
    const int length = snprintf(text, sizeof text, "apus 0.1 %s %llu %s", server->model_name,
        (unsigned long long)model_weight_bytes(model), model_backend(model)->ops->name);
    uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a: the same in every process */
    for (int i = 0; i < length && i < (int)sizeof text; i++) hash = (hash ^ (unsigned char)text[i]) * 0x100000001B3u;
    snprintf(server->fingerprint, sizeof server->fingerprint, "fp_%010llx", (unsigned long long)(hash & 0xFFFFFFFFFFu));
}

static bool load(Server *server, const ServerOptions *options, Error *error) {
    EngineOptions engine = options->engine;
    server->streams = stream_writer_open(error);
    if (!server->streams) return false;
    engine.notify = stream_writer_wake;
    engine.notify_context = server->streams;
    server->engine = engine_open(&engine, error); /* first: its weights come in while the vocabulary is read */
    if (!server->engine) return false;
    server->tokenizer = tokenizer_open(options->directory, error);
    if (!server->tokenizer) return false;
    Error why = {0};
    server->template = template_open(options->directory, &why);
    if (!server->template && why.code != ERROR_NOT_FOUND) {
        if (error) *error = why;
        return false;
    }
    if (!template_token_variables(options->directory, &server->token_pairs, error)) return false;
    server->defaults = sampling_defaults(engine_model(server->engine));
    make_fingerprint(server);
    return true;
}

Server *server_open(const ServerOptions *options, Error *error) {
    Server *server = calloc(1, sizeof *server);
    if (server) {
        server->model_name = strdup(options->model_name);
        server->host = strdup(options->host);
        server->api_key = options->api_key ? strdup(options->api_key) : NULL;
        server->port = options->port;
        server->created = (int64_t)time(NULL);
    }
    if (!server || !server->model_name || !server->host || (options->api_key && !server->api_key)) {
        fail(error, ERROR_MEMORY, "out of memory");
    } else if (load(server, options, error) && http_start(server, error)) {
        return server;
    }
    server_close(server);
    return NULL;
}

int server_port(const Server *server) { return server->port; }

static void sleep_ms(int ms) { nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL); }

/* Until everything is answered, or the time is over. */
static void drain(const Server *server, int seconds) {
    const int64_t deadline = clock_ns() + seconds * INT64_C(1000000000);
    while (__atomic_load_n(&server->answering, __ATOMIC_RELAXED) > 0 && clock_ns() < deadline) sleep_ms(DRAIN_STEP_MS);
}

void server_close(Server *server) {
    if (!server) return;
    __atomic_store_n(&server->stopping, 1, __ATOMIC_RELAXED);
    drain(server, DRAIN_S); /* what runs may finish, for a while */
    __atomic_store_n(&server->stopping, 2, __ATOMIC_RELAXED);
    drain(server, FAREWELL_S); /* and the rest is told why it ends, before connections are cut */
    http_stop(server);
    engine_close(server->engine);
    stream_writer_close(server->streams);
    template_free(server->template);
    tokenizer_close(server->tokenizer);
    buffer_free(&server->token_pairs);
    free(server->model_name);
    free(server->host);
    free(server->api_key);
    free(server);
}
