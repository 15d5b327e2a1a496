#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "cli/announce.h"
#include "cli/commands.h"
#include "cli/events.h"
#include "cli/lan.h"
#include "cli/lists.h"
#include "cli/presets.h"
#include "cli/served.h"
#include "engine/fitting.h"
#include "cli/service.h"
#include "cli/session.h"
#include "server/server.h"

enum { GRACE_S = 30 /* least time that a model stays after its last answer */ };

/* What SwiftLM has and this program has not. Sources/SwiftLM/Server.swift. */
#define LATER_OPTIONS LATER("--dflash", "speculative decoding"), LATER("--dflash-block-size", "speculative decoding")
#define LATER(name, what)                                                                                              \
    { name, NULL, OPTION_LATER, NULL, 0, 0, NULL, what }

/* Options of SwiftLM, by their names there: what requests get that say nothing, and what is done by other options. */
typedef struct SwiftArguments {
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k, max_tokens, mem_limit;
    bool thinking, info, vision, audio, calibrate;
} SwiftArguments;

typedef struct ServeArguments {
    EngineArguments engine;
    SwiftArguments swift;
    Presets presets;
    const char *host, *key, *key_file, *name, *config, *log, *pooling, *history;
    const char *certificate, *certificate_key;       /* files */
    const char *models_dir;                          /* directory */
    const char *pinned, *aliases;                    /* lists of models */
    const char *mcp, *origins, *hosts, *media_hosts; /* lists of the network's names */
    int64_t port, idle_s, request_timeout_s, queue_timeout_s, drain_s;
    bool lenient, events, lan, verbose, pull, quiet, open_metrics;
} ServeArguments;

static ServeArguments given;

static const Command command = {"serve", "[MODEL…]",
    "Serves models over the APIs of OpenAI, Anthropic and Ollama; `model` in a request chooses.",
    "Without a MODEL, the app or POST /v1/jobs loads local ones. Examples:\n"
    "  apus serve qwen-0.5b                        a model in the cache, on http://127.0.0.1:5413/v1\n"
    "  apus serve model.gguf --port 8080           converted once, then served\n"
    "  apus serve qwen-0.5b gemma-270m --idle-unload 10m\n"
    "  apus serve ./model --host 0.0.0.0 --api-key secret\n"
    "  curl http://127.0.0.1:5413/v1/chat/completions -H 'Content-Type: application/json' \\\n"
    "       -d '{\"model\":\"qwen-0.5b\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n"
    "Each option can also come from the environment (APUS_API_KEY, APUS_KV_MEMORY …) or from a file: --config FILE,\n"
    "with lines as in `kv-memory = 8G` and `model = qwen-0.5b`.\n"};

static const Option serve_options[] = {
    OPTIONS_TITLE("Server"),
    {"--model", "-m", OPTION_ARGUMENT, NULL, 0, 0, "MODEL", "another way to name a model to serve"},
    {"--host", NULL, OPTION_TEXT, &given.host, 0, 0, "ADDRESS", "address to listen on (127.0.0.1)"},
    {"--port", "-p", OPTION_INTEGER, &given.port, 0, 65535, "N", "port; 0 takes a free one (5413)"},
    {"--model-name", NULL, OPTION_TEXT, &given.name, 0, 0, "ID", "id of the model in the API (its file name)"},
    {"--config", NULL, OPTION_TEXT, &given.config, 0, 0, "FILE", "take options from a file (APUS_CONFIG)"},
    {"--log-format", NULL, OPTION_TEXT, &given.log, 0, 0, "FORM", "lines of the log: text, or json (text)"},
    {"--no-request-log", NULL, OPTION_FLAG, &given.quiet, 0, 0, NULL, "do not log a line for each request"},
    {"--verbose", "-v", OPTION_FLAG, &given.verbose, 0, 0, NULL, "log in detail, requests of probes too (never texts)"},
    {"--events", NULL, OPTION_FLAG, &given.events, 0, 0, NULL,
        "print JSON events (ready, exiting) for a supervising program instead of text"},
    OPTIONS_TITLE("Models"),
    {"--alias", NULL, OPTION_TEXT, &given.aliases, 0, 0, "NAME=MODEL",
        "another name of a served model, several with commas; claude-*=MODEL is every name that begins so (none)"},
    {"--models-dir", NULL, OPTION_TEXT, &given.models_dir, 0, 0, "DIR",
        "also serve each checkpoint and GGUF file in this directory, loaded by its first request (none)"},
    {"--idle-unload", NULL, OPTION_DURATION, &given.idle_s, GRACE_S, 365 * 86400, "TIME",
        "unload a model so long after its last answer, as in 10m, at least 30s; the next request loads it (never)"},
    {"--pin", NULL, OPTION_TEXT, &given.pinned, 0, 0, "NAMES",
        "models that are never unloaded, several with commas (none)"},
    {"--pooling", NULL, OPTION_TEXT, &given.pooling, 0, 0, "HOW",
        "/v1/embeddings from any model: last (the last token), mean, or cls (as a model's files say, else none)"},
    {"--preset", NULL, OPTION_READ, &(OptionReader){presets_read, &given.presets}, 0, 0, "MODEL:SETTINGS",
        "what a model's requests get that do not say, as in qwen-0.5b:temp=0.2,top-k=20; also a section [MODEL] of "
        "the file of --config (none)"},
    OPTIONS_TITLE("Requests"),
    {"--slots", "-np, --parallel", OPTION_INT, &given.engine.options.slots, 1, 1024, "N",
        "answers computed at once (8)"},
    {"--queue", NULL, OPTION_INT, &given.engine.options.queue_max, 0, 100000, "N",
        "requests that may wait; then 429 (256)"},
    {"--request-timeout", NULL, OPTION_DURATION, &given.request_timeout_s, 1, 365 * 86400, "TIME",
        "a request that takes longer ends with an error, as in 5m; its header x-request-timeout may ask for less "
        "(never)"},
    {"--queue-timeout", NULL, OPTION_DURATION, &given.queue_timeout_s, 1, 365 * 86400, "TIME",
        "a request that waits longer for its turn ends with 503 (never)"},
    {"--drain-timeout", NULL, OPTION_DURATION, &given.drain_s, 0, 86400, "TIME",
        "time that running answers have after SIGTERM (10s)"},
    {"--lenient", NULL, OPTION_FLAG, &given.lenient, 0, 0, NULL,
        "ignore fields of requests that are not supported; the header x-ignored-params of the response names them"},
    {"--history", NULL, OPTION_TEXT, &given.history, 0, 0, "DIR",
        "keep the web app's chats in this directory, for all devices that have the key (each browser keeps its "
        "own)"},
    OPTIONS_TITLE("Who may ask"),
    {"--api-key", NULL, OPTION_TEXT, &given.key, 0, 0, "KEY", "clients must send this key (APUS_API_KEY)"},
    {"--api-key-file", NULL, OPTION_TEXT, &given.key_file, 0, 0, "FILE", "clients must send one of its lines"},
    {"--lan", NULL, OPTION_FLAG, &given.lan, 0, 0, NULL,
        "listen on the local network over HTTPS with a certificate of its own, and print a QR code that pairs a "
        "phone; each device gets a key (apus devices)"},
    {"--tls-cert", NULL, OPTION_TEXT, &given.certificate, 0, 0, "FILE",
        "serve HTTPS with this certificate (PEM, its chain behind it)"},
    {"--tls-key", NULL, OPTION_TEXT, &given.certificate_key, 0, 0, "FILE", "the certificate's private key (PEM)"},
    {"--allow-origin", "--cors", OPTION_TEXT, &given.origins, 0, 0, "ORIGINS",
        "web pages of these origins may use the API, as in http://localhost:3000,app://obsidian.md; * is any "
        "(none)"},
    {"--allow-host", NULL, OPTION_TEXT, &given.hosts, 0, 0, "NAMES",
        "further names of this server in requests to a loopback address, as in host.docker.internal; * is any "
        "(none)"},
    {"--allow-media-from", NULL, OPTION_TEXT, &given.media_hosts, 0, 0, "HOSTS",
        "images and audio may be named by http and https addresses of these hosts, as in images.example.com; only "
        "public addresses are asked (none)"},
    {"--open-metrics", NULL, OPTION_FLAG, &given.open_metrics, 0, 0, NULL, "/metrics needs no API key"},
    {"--mcp", NULL, OPTION_TEXT, &given.mcp, 0, 0, "URLS",
        "MCP servers, as in http://127.0.0.1:9000, that the web app may connect to; several with commas (none)"},
    {"--allow-pull", NULL, OPTION_FLAG, &given.pull, 0, 0, NULL,
        "clients may download models from the hub into the cache (/v1/models/pull)"},
    OPTIONS_TITLE("Sampling, for requests that do not set it (default: the model's generation_config.json)"),
    {"--max-tokens", NULL, OPTION_INTEGER, &given.swift.max_tokens, 1, INT32_MAX, "N",
        "maximum tokens of an answer (what the context holds)"},
    {"--temp", "--temperature", OPTION_NUMBER, &given.swift.temperature, 0, 2, "X",
        "randomness; 0 takes the likeliest token"},
    {"--top-p", NULL, OPTION_NUMBER, &given.swift.top_p, 0, 1, "X",
        "the likeliest tokens that make up this probability"},
    {"--top-k", NULL, OPTION_INTEGER, &given.swift.top_k, 0, 1 << 30, "N", "the N likeliest tokens; 0: all"},
    {"--min-p", NULL, OPTION_NUMBER, &given.swift.min_p, 0, 1, "X",
        "tokens at least this likely, relative to the best"},
    {"--repeat-penalty", "--repetition-penalty", OPTION_NUMBER, &given.swift.repetition_penalty, 0.01, 2, "X",
        "makes repeats less likely; 1: off"},
    {"--thinking", NULL, OPTION_FLAG, &given.swift.thinking, 0, 0, NULL,
        "switch reasoning on, for models whose template has such a switch"},
    ENGINE_OPTIONS(given.engine),
    OPTIONS_TITLE("SwiftLM's names"),
    {"--info", NULL, OPTION_FLAG, &given.swift.info, 0, 0, NULL, "print what `apus info` prints, and serve nothing"},
    {"--vision", NULL, OPTION_FLAG, &given.swift.vision, 0, 0, NULL,
        "changes nothing: models that can take images take them"},
    {"--audio", NULL, OPTION_FLAG, &given.swift.audio, 0, 0, NULL,
        "changes nothing: models that can take audio take it"},
    {"--calibrate", NULL, OPTION_FLAG, &given.swift.calibrate, 0, 0, NULL,
        "measure this machine with each model first, as `apus info MODEL --fit` does"},
    {"--mem-limit", NULL, OPTION_INTEGER, &given.swift.mem_limit, 1, 1e9, "MB", "--memory-budget in megabytes"},
    LATER_OPTIONS,
    {0},
};

static int serve(ServerOptions *options, Events *events) {
    Error error = {0};
    const double start = clock_seconds();
    options->listener = events->restart.listener;
    options->restarted = events->restart.reason[0] ? events->restart.reason : NULL;
    options->models.engine.failed = events_device_failed;
    options->models.engine.failed_context = events;
    Server *server = server_open(options, &error);
    if (!server) {
        if (given.events) announce_exit(&error);
        return report(&error);
    }
    events_concern(events, server);
    if (given.events)
        announce_ready_event(server, options);
    else
        announce_ready(server, options, clock_seconds() - start);
    if (options->lan_directory && !given.events) lan_print(server);
    service_notify("READY=1");
    events_wait(events);
    service_notify("STOPPING=1");
    if (!given.events) printf("stopping: waiting for running answers (Ctrl-C again: at once)\n");
    fflush(stdout);
    server_close(server);
    if (given.events) announce_exit(NULL);
    return 0;
}

/* Measures this machine with each model, as `apus info MODEL --fit` does, and keeps the figures for the plan. */
static bool calibrate(const ServerOptions *options, Error *error) {
    for (int i = 0; i < options->models.count; i++) {
        EngineOptions engine = options->models.engine;
        EnginePlan plan;
        engine.directory = options->models.sources[i].directory;
        if (!engine_plan(&engine, PLAN_MEASURED, &plan, error)) return false;
        log_info(
            "%s: calibrated: %.1f tokens per second are expected", options->models.sources[i].name, plan.fit.decode);
    }
    return true;
}

static int serve_models(const Arguments *arguments, ServerOptions *options) {
    static Events events; /* its thread ends with the process */
    Error error = {0};
    Served *served = calloc(1, sizeof *served);
    bool ok = served || fail(&error, ERROR_MEMORY, "no memory for the list of models");
    if (ok && !restart_pending()) ok = server_check_address(options->host, options->port, &error);
    if (ok && given.name && arguments->count > 1) ok = fail(&error, ERROR_USAGE, "--model-name is for a single model");
    for (int i = 0; ok && i < arguments->count; i++) ok = served_add(served, arguments->values[i], given.name, &error);
    if (ok && given.models_dir) ok = served_add_directory(served, given.models_dir, &error);
    if (ok) {
        options->models.sources = served->sources;
        options->models.count = served->count;
        /* Signals are blocked before the options are read: --device auto opens the device, whose driver starts threads,
         * and a thread that does not inherit the mask would take SIGTERM with its default action. */
        ok = events_open(&events, given.key_file, &error) &&
            engine_options(&given.engine, NULL, &options->models.engine, &error) &&
            (!given.swift.calibrate || calibrate(options, &error));
    }
    if (!ok && given.events) announce_exit(&error);
    const int code = ok ? serve(options, &events) : report(&error);
    if (served) served_free(served);
    free(served);
    return code;
}

/* An empty key would admit every client although a key seems to be required. */
static bool take_keys(const char *key, const char *file, Buffer *keys, Error *error) {
    if (key && file) return fail(error, ERROR_USAGE, "--api-key and --api-key-file: give one of them");
    if (file) return events_read_keys(file, keys, error);
    if (key && !key[0])
        return fail(error, ERROR_USAGE, "--api-key or APUS_API_KEY is empty: leave it out to ask for no key");
    if (key) buffer_text(keys, key);
    return !keys->failed || fail(error, ERROR_MEMORY, "no memory for the API key");
}

static bool take_log(const char *form, Error *error) {
    const bool json = !strcmp(form, "json");
    log_set_format(json ? LOG_JSON : LOG_TEXT);
    return json || !strcmp(form, "text") || fail(error, ERROR_USAGE, "--log-format %s: want text or json", form);
}

static bool take_pooling(const char *name, Pooling *pooling, Error *error) {
    const bool last = name && !strcmp(name, "last"), mean = name && !strcmp(name, "mean");
    const bool first = name && !strcmp(name, "cls");
    *pooling = last ? POOLING_LAST : mean ? POOLING_MEAN : first ? POOLING_FIRST : POOLING_NONE;
    return !name || last || mean || first || fail(error, ERROR_USAGE, "--pooling %s: want last, mean or cls", name);
}

/* Those of options that are not given are negative. */
static DefaultNumber default_number(double value) { return (DefaultNumber){value >= 0, (float)value}; }

static RequestDefaults request_defaults(const SwiftArguments *swift) {
    return (RequestDefaults){.temperature = default_number(swift->temperature),
        .top_p = default_number(swift->top_p),
        .min_p = default_number(swift->min_p),
        .repetition_penalty = default_number(swift->repetition_penalty),
        .top_k_given = swift->top_k >= 0,
        .top_k = (int)swift->top_k,
        .max_tokens = (int)swift->max_tokens,
        .thinking = swift->thinking};
}

static bool settle_swift(const SwiftArguments *swift, EngineArguments *engine, Error *error) {
    EngineOptions *options = &engine->options;
    if (swift->mem_limit) options->model.experts.memory_budget = (uint64_t)swift->mem_limit << 20;
    const char *experts = options->model.experts.stream ? getenv("SWIFTLM_TOP_K") : NULL;
    char *end = NULL;
    const long count = experts ? strtol(experts, &end, 10) : 0;
    if (experts && (end == experts || *end || count < 1 || count > 32))
        return fail(
            error, ERROR_USAGE, "SWIFTLM_TOP_K=%s: want experts of a layer that a token uses, 1 to 32", experts);
    if (experts && !options->model.experts_used) options->model.experts_used = (int)count;
    return true;
}

/* --info: the table of `apus info`, of each model. */
static int print_info(const Arguments *arguments) {
    int code = 0;
    for (int i = 0; i < arguments->count && !code; i++)
        code = command_info(1, (char *[]){(char *)arguments->values[i]});
    return code;
}

/* Texts of the server's options, which stay until it has closed. */
typedef struct ServeTexts {
    Buffer keys, mcp_origins, origins, hosts, media_hosts, alias_text;
    ModelAlias aliases[ALIASES_MAX];
    int alias_count;
} ServeTexts;

static bool take_texts(ServeTexts *texts, Error *error) {
    if (!take_keys(given.key, given.key_file, &texts->keys, error)) return false;
    if (given.mcp && !list_take_origins(given.mcp, &texts->mcp_origins, error)) return false;
    if (!list_take("--allow-origin", given.origins ? given.origins : "", true, &texts->origins, error)) return false;
    if (!list_take("--allow-host", given.hosts ? given.hosts : "", false, &texts->hosts, error)) return false;
    if (given.media_hosts && strchr(given.media_hosts, '*'))
        return fail(error, ERROR_USAGE, "--allow-media-from %s: want names of hosts", given.media_hosts);
    if (given.media_hosts && !list_take("--allow-media-from", given.media_hosts, false, &texts->media_hosts, error))
        return false;
    buffer_text(&texts->alias_text, given.aliases ? given.aliases : "");
    buffer_byte(&texts->alias_text, 0);
    if (texts->alias_text.failed) return fail(error, ERROR_MEMORY, "no memory for --alias");
    return list_take_aliases(texts->alias_text.data, texts->aliases, &texts->alias_count, error);
}

static void free_texts(ServeTexts *texts) {
    Buffer *const all[] = {
        &texts->keys, &texts->mcp_origins, &texts->origins, &texts->hosts, &texts->media_hosts, &texts->alias_text};
    for (size_t i = 0; i < COUNT_OF(all); i++) buffer_free(all[i]);
}

static ServerOptions server_options(const ServeTexts *texts) {
    const char *host = given.lan ? "0.0.0.0" : "127.0.0.1";
    return (ServerOptions){.host = given.host ? given.host : host,
        .port = (int)given.port,
        .api_keys = buffer_view(&texts->keys),
        .tls_certificate = given.certificate,
        .tls_key = given.certificate_key,
        .mcp_origins = texts->mcp_origins.data,
        .allowed_origins = texts->origins.data,
        .allowed_hosts = texts->hosts.data,
        .media_hosts = texts->media_hosts.data,
        .history = given.history,
        .lenient = given.lenient,
        .allow_pull = given.pull,
        .open_metrics = given.open_metrics,
        .log_requests = !given.quiet,
        .request_timeout_s = given.request_timeout_s,
        .queue_timeout_s = given.queue_timeout_s,
        .drain_s = (int)given.drain_s,
        .defaults = request_defaults(&given.swift),
        .presets = given.presets.list,
        .preset_count = given.presets.count,
        .planner = &engine_planner,
        .models.pinned = given.pinned,
        .models.aliases = texts->aliases,
        .models.alias_count = texts->alias_count,
        .models.idle_unload_ms = given.idle_s * 1000};
}

/* models_min: models that must be named. */
static int serve_from(int argc, char **argv, int models_min) {
    static ServeTexts texts;
    Arguments arguments;
    Error error = {0};
    given = (ServeArguments){.engine = ENGINE_ARGUMENTS_DEFAULT,
        .swift = {.temperature = -1, .top_p = -1, .min_p = -1, .repetition_penalty = -1, .top_k = -1},
        .log = "text",
        .port = 5413,
        .drain_s = 10};
    const OptionsResult result =
        options_parse_configured(&command, serve_options, argc, argv, models_min, MODELS_MAX, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    if (given.verbose) log_set_level(LOG_DEBUG);
    if (!take_log(given.log, &error)) return report(&error);
    if (given.swift.info) return print_info(&arguments);
    if (!given.certificate != !given.certificate_key)
        return fail(&error, ERROR_USAGE, "--tls-cert and --tls-key: one needs the other"), report(&error);
    if (!settle_swift(&given.swift, &given.engine, &error) ||
        !take_pooling(given.pooling, &given.engine.options.pooling, &error) || !take_texts(&texts, &error))
        return report(&error);
    ServerOptions server = server_options(&texts);
    if (given.lan && !lan_prepare(&server, &error)) return report(&error);
    const int code = serve_models(&arguments, &server);
    free_texts(&texts);
    return code;
}

int command_serve(int argc, char **argv) { return serve_from(argc, argv, 0); }

int command_serve_swiftlm(int argc, char **argv) { return serve_from(argc, argv, 1); }
