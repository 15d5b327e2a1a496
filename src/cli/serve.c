#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/events.h"
#include "cli/lan.h"
#include "cli/presets.h"
#include "cli/progress.h"
#include "engine/fitting.h"
#include "library/library.h"
#include "library/named.h"
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

/* A request's body as a word for the shell, whatever the model is called. */
static void quote_body(const char *name, Buffer *out) {
    Buffer json = {0};
    buffer_text(&json, "{\"model\":");
    json_write_string(&json, slice_of(name));
    buffer_text(&json, ",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}");
    buffer_byte(out, '\'');
    for (size_t i = 0; i < json.size; i++) buffer_text(out, json.data[i] == '\'' ? "'\\''" : (char[]){json.data[i], 0});
    buffer_byte(out, '\'');
    buffer_free(&json);
}

static bool print_events; /* JSON for a supervisor instead of text */

/* A line of JSON on standard output: {"event": …}. SwiftLM has such events. */
static void print_ready_event(const Server *server, const char *address) {
    Buffer line = {0};
    ModelStatus status;
    const char *separator = "";
    buffer_printf(&line,
        "{\"event\":\"ready\",\"engine\":\"apus\",\"version\":\"" APUS_VERSION "\",\"port\":%d,\"url\":",
        server_port(server));
    json_write_string(&line, slice_of(address));
    buffer_text(&line, ",\"models\":[");
    for (int i = 0; i < MODELS_MAX; i++) {
        if (!server_model(server, i, &status)) continue;
        buffer_text(&line, separator);
        json_write_string(&line, slice_of(status.name));
        separator = ",";
    }
    buffer_text(&line, "]}\n");
    if (!line.failed) fputs(line.data, stdout);
    fflush(stdout);
    buffer_free(&line);
}

/* Why the process ends, in a supervisor's words. */
static void print_exit_event(const Error *why) {
    if (!print_events) return;
    Buffer line = {0};
    const bool port = why && !strncmp(why->text, "cannot listen", 13);
    buffer_printf(&line, "{\"event\":\"exiting\",\"reason\":\"%s\"",
        !why                                                        ? "requested"
            : why->code == ERROR_MEMORY || why->code == ERROR_LIMIT ? "out_of_memory"
            : port                                                  ? "port_conflict"
            : why->code == ERROR_USAGE                              ? "usage"
                                                                    : "model_load_failed");
    if (why) buffer_text(&line, ",\"message\":");
    if (why) json_write_string(&line, slice_of(why->text));
    buffer_text(&line, "}\n");
    if (!line.failed) fputs(line.data, stdout);
    fflush(stdout);
    buffer_free(&line);
}

/* The models, with what one conversation may hold, how many run at once, and the cache that they share. */
static void print_models(const Server *server, const ServerOptions *options) {
    ModelStatus status;
    bool any = false;
    for (int i = 0; i < MODELS_MAX; i++) {
        if (!server_model(server, i, &status)) continue;
        any = true;
        if (status.state != MODEL_LOADED) {
            printf("  model    %s  loaded by its first request\n", status.name);
            continue;
        }
        char form[64] = "";
        kv_format_name(&options->models.engine.kv_format, form, sizeof form);
        printf("  model    %s  %d tokens of context, %d slots, KV cache of %.1f GB%s%s\n", status.name, status.context,
            status.stats.slots, (double)status.stats.kv_bytes_total * 1e-9, form[0] ? " as " : "", form);
    }
    if (!any) printf("  model    none: the app or POST /v1/jobs loads one\n");
}

static void print_ready(const Server *server, const ServerOptions *options, double seconds) {
    const bool key = options->api_keys.data != NULL;
    const char *host = options->host;
    const bool any = !strcmp(host, "0.0.0.0") || !strcmp(host, "::"), six = strchr(host, ':') != NULL;
    char address[128];
    snprintf(address, sizeof address, "http%s://%s%s%s:%d", options->tls_certificate ? "s" : "", six && !any ? "[" : "",
        options->lan_address ? options->lan_address
            : any            ? "127.0.0.1"
                             : host,
        six && !any ? "]" : "", server_port(server));
    if (print_events) {
        print_ready_event(server, address);
        return;
    }
    printf("ready in %.2f s\n\n"
           "  app      %s\n"
           "  API      %s/v1   base URL of OpenAI clients\n"
           "           %s      base URL of Anthropic and Ollama clients\n"
           "  metrics  %s/metrics\n",
        seconds, address, address, address, address);
    print_models(server, options);
    printf("  API key  %s\n\n",
        key && options->lan_directory ? "required, or that of a paired device"
            : options->lan_directory  ? "that of a paired device"
            : key                     ? "required"
                                      : "none (this machine only)");
    Buffer body = {0};
    if (options->models.count) quote_body(options->models.sources[0].name, &body);
    if (body.size)
        printf("  curl %s/v1/chat/completions -H 'Content-Type: application/json'%s \\\n    -d %s\n\n", address,
            key ? " -H 'Authorization: Bearer KEY'" : "", body.data);
    printf("Ctrl-C stops the server.\n");
    buffer_free(&body);
    fflush(stdout);
}

static int serve(ServerOptions *options, Events *events) {
    Error error = {0};
    const double start = clock_seconds();
    options->listener = events->restart.listener;
    options->restarted = events->restart.reason[0] ? events->restart.reason : NULL;
    options->models.engine.failed = events_device_failed;
    options->models.engine.failed_context = events;
    Server *server = server_open(options, &error);
    if (!server) {
        print_exit_event(&error);
        return report(&error);
    }
    events_concern(events, server);
    print_ready(server, options, clock_seconds() - start);
    if (options->lan_directory && !print_events) lan_print(server);
    service_notify("READY=1");
    events_wait(events);
    service_notify("STOPPING=1");
    if (!print_events) printf("stopping: waiting for running answers (Ctrl-C again: at once)\n");
    fflush(stdout);
    server_close(server);
    print_exit_event(NULL);
    return 0;
}

/* What the user calls models, as directories with names. */
typedef struct Served {
    ModelSource sources[MODELS_MAX];
    Buffer directories[MODELS_MAX], names[MODELS_MAX];
    int count;
} Served;

static void served_free(Served *served) {
    for (int i = 0; i < MODELS_MAX; i++) {
        buffer_free(&served->directories[i]);
        buffer_free(&served->names[i]);
    }
}

/* name: of the only model; NULL: they are called as their files are. */
static bool served_add(Served *served, const char *model, const char *name, Error *error) {
    const int i = served->count++;
    Buffer *directory = &served->directories[i], *own = &served->names[i];
    if (name) buffer_text(own, name);
    if (!named_resolve(model, progress_on_terminal(), directory, name ? NULL : own, error)) return false;
    if (own->failed) return fail(error, ERROR_MEMORY, "no memory for the name of a model");
    served->sources[i] = (ModelSource){.name = own->data, .directory = directory->data};
    return true;
}

static int compare_names(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Each checkpoint and GGUF file of a directory, in the order of their names. They are loaded when they are needed. */
static bool served_add_directory(Served *served, const char *path, Error *error) {
    struct dirent **entries = NULL;
    const int count = scandir(path, &entries, NULL, compare_names);
    if (count < 0) return fail(error, ERROR_USAGE, "--models-dir %s: %s", path, strerror(errno));
    bool ok = true;
    for (int i = 0; i < count; i++) {
        Buffer file = {0}, config = {0};
        buffer_printf(&file, "%s/%s", path, entries[i]->d_name);
        buffer_printf(&config, "%s/config.json", file.data ? file.data : "");
        const size_t size = strlen(entries[i]->d_name);
        const bool gguf = size > 5 && !strcmp(entries[i]->d_name + size - 5, ".gguf");
        const bool model = !file.failed && !config.failed && entries[i]->d_name[0] != '.' &&
            (file_exists(config.data) || (gguf && file_exists(file.data)));
        if (ok && model && served->count == MODELS_MAX)
            ok = fail(error, ERROR_USAGE, "--models-dir %s: more than %d models", path, MODELS_MAX);
        if (ok && model) {
            ok = served_add(served, file.data, NULL, error);
            served->sources[served->count - 1].on_demand = true;
        }
        buffer_free(&file);
        buffer_free(&config);
        free(entries[i]);
    }
    free(entries);
    return ok;
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

static int serve_models(const Arguments *arguments, const EngineArguments *engine, const char *name,
    const char *key_file, const char *models_dir, bool measure, ServerOptions *options) {
    static Events events; /* its thread ends with the process */
    Error error = {0};
    Served *served = calloc(1, sizeof *served);
    bool ok = served || fail(&error, ERROR_MEMORY, "no memory for the list of models");
    if (ok && name && arguments->count > 1) ok = fail(&error, ERROR_USAGE, "--model-name is for a single model");
    for (int i = 0; ok && i < arguments->count; i++) ok = served_add(served, arguments->values[i], name, &error);
    if (ok && models_dir) ok = served_add_directory(served, models_dir, &error);
    if (ok) {
        options->models.sources = served->sources;
        options->models.count = served->count;
        /* Signals are blocked before the options are read: --device auto opens the device, whose driver starts threads,
         * and a thread that does not inherit the mask would take SIGTERM with its default action. */
        ok = events_open(&events, key_file, &error) && engine_options(engine, NULL, &options->models.engine, &error) &&
            (!measure || calibrate(options, &error));
    }
    if (!ok) print_exit_event(&error);
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

/* The origins of URLs that have commas between them, with spaces between them and a NUL behind. They go into a header,
 * so they hold no other characters than those of scheme, host and port. */
static bool take_origins(const char *urls, Buffer *origins, Error *error) {
    for (const char *at = urls; *at;) {
        const size_t size = strcspn(at, ","),
                     scheme = !strncmp(at, "https://", 8) ? 8
            : !strncmp(at, "http://", 7)                  ? 7
                                                          : 0;
        const size_t host = strspn(at + scheme, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-:[]");
        if (!scheme || !host || (scheme + host < size && at[scheme + host] != '/'))
            return fail(error, ERROR_USAGE, "--mcp %.*s: want http://HOST:PORT or https://HOST", (int)size, at);
        if (origins->size) buffer_byte(origins, ' ');
        buffer_append(origins, at, scheme + host);
        at += size + (at[size] == ',');
    }
    buffer_byte(origins, 0);
    return !origins->failed || fail(error, ERROR_MEMORY, "no memory for the addresses of MCP servers");
}

/* The end of the host that a text begins with: a name, or an IPv6 address in brackets. The text's beginning: there is
 * none. */
static const char *host_end(const char *at, const char *end) {
    static const char name[] = "abcdefghijklmnopqrstuvwxyz0123456789-._";
    const char *last = at;
    if (at < end && *at == '[') {
        while (++last < end && strchr("0123456789abcdef:.", *last)) continue;
        return last < end && *last == ']' && last - at > 2 ? last + 1 : at;
    }
    while (last < end && strchr(name, *last)) last++;
    return last;
}

/* scheme://host:port as browsers write it, in lower case; schemes of their own may have no host. */
static bool is_origin(Slice text) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789+-.";
    const char *at = text.data, *end = at + text.size, *host = memmem(at, text.size, "://", 3);
    if (!host || host == at) return false;
    const bool web =
        slice_is((Slice){at, (size_t)(host - at)}, "http") || slice_is((Slice){at, (size_t)(host - at)}, "https");
    for (; at < host; at++)
        if (!strchr(letters, *at)) return false;
    at = host_end(host + 3, end);
    if (at == host + 3) return at == end && !web;
    if (at == end) return true;
    if (*at++ != ':') return false;
    long port = 0;
    for (; at < end && *at >= '0' && *at <= '9' && port <= UINT16_MAX; at++) port = 10 * port + (*at - '0');
    return at == end && port >= 1 && port <= UINT16_MAX;
}

static bool is_host(Slice text) {
    return text.size > 0 && host_end(text.data, text.data + text.size) == text.data + text.size;
}

/* A list with commas becomes one with spaces and a NUL behind: what --allow-origin and --allow-host take. */
static bool take_list(const char *option, const char *given, bool origins, Buffer *list, Error *error) {
    for (const char *at = given; *at;) {
        const Slice one = {at, strcspn(at, ",")};
        const bool right = slice_is(one, "*") || (origins ? slice_is(one, "null") || is_origin(one) : is_host(one));
        if (!right)
            return fail(error, ERROR_USAGE, "%s %.*s: want %s", option, SLICE_SHOWN(one),
                origins
                    ? "an origin without a path, in lower case, such as http://localhost:3000 or app://obsidian.md, "
                      "or *"
                    : "a name without a port, in lower case, such as host.docker.internal, or *");
        if (list->size) buffer_byte(list, ' ');
        buffer_append(list, at, one.size);
        at += one.size + (at[one.size] == ',');
    }
    buffer_byte(list, 0);
    return !list->failed || fail(error, ERROR_MEMORY, "no memory for the value of %s", option);
}

enum { ALIASES_MAX = 256 };

/* NAME=MODEL with commas between; changes the text. */
static bool take_aliases(char *text, ModelAlias *aliases, int *count, Error *error) {
    *count = 0;
    for (char *at = text; *at;) {
        const size_t size = strcspn(at, ",");
        char *next = at + size + (at[size] == ',');
        at[size] = 0;
        char *equals = strchr(at, '=');
        if (equals) *equals = 0;
        if (!*at || *count == ALIASES_MAX)
            return fail(error, ERROR_USAGE, "--alias: want NAME=MODEL, at most %d of them", ALIASES_MAX);
        aliases[(*count)++] = (ModelAlias){at, equals ? equals + 1 : ""};
        at = next;
    }
    return true;
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

/* models_min: models that must be named. */
static int serve_from(int argc, char **argv, int models_min) {
    EngineArguments engine = ENGINE_ARGUMENTS_DEFAULT;
    const char *host = NULL, *key = NULL, *key_file = NULL, *name = NULL, *config = NULL, *pooling = NULL;
    const char *certificate = NULL, *certificate_key = NULL;
    const char *log = "text", *mcp = NULL;
    int64_t port = 5413, idle = 0, request_timeout = 0, queue_timeout = 0, drain = 10;
    const char *origins_given = NULL, *hosts_given = NULL, *media_given = NULL, *aliases_given = NULL;
    const char *pinned = NULL, *models_dir = NULL, *history = NULL;
    bool lenient = false, events = false, lan = false;
    bool verbose = false, pull = false, quiet = false, open_metrics = false;
    static Presets presets;
    SwiftArguments swift = {.temperature = -1, .top_p = -1, .min_p = -1, .repetition_penalty = -1, .top_k = -1};
    const Option options[] = {
        OPTIONS_TITLE("Server"),
        {"--model", "-m", OPTION_ARGUMENT, NULL, 0, 0, "MODEL", "another way to name a model to serve"},
        {"--host", NULL, OPTION_TEXT, &host, 0, 0, "ADDRESS", "address to listen on (127.0.0.1)"},
        {"--port", "-p", OPTION_INTEGER, &port, 0, 65535, "N", "port; 0 takes a free one (5413)"},
        {"--model-name", NULL, OPTION_TEXT, &name, 0, 0, "ID", "id of the model in the API (its file name)"},
        {"--config", NULL, OPTION_TEXT, &config, 0, 0, "FILE", "take options from a file (APUS_CONFIG)"},
        {"--log-format", NULL, OPTION_TEXT, &log, 0, 0, "FORM", "lines of the log: text, or json (text)"},
        {"--no-request-log", NULL, OPTION_FLAG, &quiet, 0, 0, NULL, "do not log a line for each request"},
        {"--verbose", "-v", OPTION_FLAG, &verbose, 0, 0, NULL, "log in detail, requests of probes too (never texts)"},
        {"--events", NULL, OPTION_FLAG, &events, 0, 0, NULL,
            "print JSON events (ready, exiting) for a supervising program instead of text"},
        OPTIONS_TITLE("Models"),
        {"--alias", NULL, OPTION_TEXT, &aliases_given, 0, 0, "NAME=MODEL",
            "another name of a served model, several with commas; claude-*=MODEL is every name that begins so (none)"},
        {"--models-dir", NULL, OPTION_TEXT, &models_dir, 0, 0, "DIR",
            "also serve each checkpoint and GGUF file in this directory, loaded by its first request (none)"},
        {"--idle-unload", NULL, OPTION_DURATION, &idle, GRACE_S, 365 * 86400, "TIME",
            "unload a model so long after its last answer, as in 10m, at least 30s; the next request loads it (never)"},
        {"--pin", NULL, OPTION_TEXT, &pinned, 0, 0, "NAMES",
            "models that are never unloaded, several with commas (none)"},
        {"--pooling", NULL, OPTION_TEXT, &pooling, 0, 0, "HOW",
            "/v1/embeddings from any model: last (the last token), mean, or cls (as a model's files say, else none)"},
        {"--preset", NULL, OPTION_READ, &(OptionReader){presets_read, &presets}, 0, 0, "MODEL:SETTINGS",
            "what a model's requests get that do not say, as in qwen-0.5b:temp=0.2,top-k=20; also a section [MODEL] of "
            "the file of --config (none)"},
        OPTIONS_TITLE("Requests"),
        {"--slots", "-np, --parallel", OPTION_INT, &engine.options.slots, 1, 1024, "N", "answers computed at once (8)"},
        {"--queue", NULL, OPTION_INT, &engine.options.queue_max, 0, 100000, "N",
            "requests that may wait; then 429 (256)"},
        {"--request-timeout", NULL, OPTION_DURATION, &request_timeout, 1, 365 * 86400, "TIME",
            "a request that takes longer ends with an error, as in 5m; its header x-request-timeout may ask for less "
            "(never)"},
        {"--queue-timeout", NULL, OPTION_DURATION, &queue_timeout, 1, 365 * 86400, "TIME",
            "a request that waits longer for its turn ends with 503 (never)"},
        {"--drain-timeout", NULL, OPTION_DURATION, &drain, 0, 86400, "TIME",
            "time that running answers have after SIGTERM (10s)"},
        {"--lenient", NULL, OPTION_FLAG, &lenient, 0, 0, NULL,
            "ignore fields of requests that are not supported; the header x-ignored-params of the response names them"},
        {"--history", NULL, OPTION_TEXT, &history, 0, 0, "DIR",
            "keep the web app's chats in this directory, for all devices that have the key (each browser keeps its "
            "own)"},
        OPTIONS_TITLE("Who may ask"),
        {"--api-key", NULL, OPTION_TEXT, &key, 0, 0, "KEY", "clients must send this key (APUS_API_KEY)"},
        {"--api-key-file", NULL, OPTION_TEXT, &key_file, 0, 0, "FILE", "clients must send one of its lines"},
        {"--lan", NULL, OPTION_FLAG, &lan, 0, 0, NULL,
            "listen on the local network over HTTPS with a certificate of its own, and print a QR code that pairs a "
            "phone; each device gets a key (apus devices)"},
        {"--tls-cert", NULL, OPTION_TEXT, &certificate, 0, 0, "FILE",
            "serve HTTPS with this certificate (PEM, its chain behind it)"},
        {"--tls-key", NULL, OPTION_TEXT, &certificate_key, 0, 0, "FILE", "the certificate's private key (PEM)"},
        {"--allow-origin", "--cors", OPTION_TEXT, &origins_given, 0, 0, "ORIGINS",
            "web pages of these origins may use the API, as in http://localhost:3000,app://obsidian.md; * is any "
            "(none)"},
        {"--allow-host", NULL, OPTION_TEXT, &hosts_given, 0, 0, "NAMES",
            "further names of this server in requests to a loopback address, as in host.docker.internal; * is any "
            "(none)"},
        {"--allow-media-from", NULL, OPTION_TEXT, &media_given, 0, 0, "HOSTS",
            "images and audio may be named by http and https addresses of these hosts, as in images.example.com; only "
            "public addresses are asked (none)"},
        {"--open-metrics", NULL, OPTION_FLAG, &open_metrics, 0, 0, NULL, "/metrics needs no API key"},
        {"--mcp", NULL, OPTION_TEXT, &mcp, 0, 0, "URLS",
            "MCP servers, as in http://127.0.0.1:9000, that the web app may connect to; several with commas (none)"},
        {"--allow-pull", NULL, OPTION_FLAG, &pull, 0, 0, NULL,
            "clients may download models from the hub into the cache (/v1/models/pull)"},
        OPTIONS_TITLE("Sampling, for requests that do not set it (default: the model's generation_config.json)"),
        {"--max-tokens", NULL, OPTION_INTEGER, &swift.max_tokens, 1, INT32_MAX, "N",
            "maximum tokens of an answer (what the context holds)"},
        {"--temp", "--temperature", OPTION_NUMBER, &swift.temperature, 0, 2, "X",
            "randomness; 0 takes the likeliest token"},
        {"--top-p", NULL, OPTION_NUMBER, &swift.top_p, 0, 1, "X", "the likeliest tokens that make up this probability"},
        {"--top-k", NULL, OPTION_INTEGER, &swift.top_k, 0, 1 << 30, "N", "the N likeliest tokens; 0: all"},
        {"--min-p", NULL, OPTION_NUMBER, &swift.min_p, 0, 1, "X", "tokens at least this likely, relative to the best"},
        {"--repeat-penalty", "--repetition-penalty", OPTION_NUMBER, &swift.repetition_penalty, 0.01, 2, "X",
            "makes repeats less likely; 1: off"},
        {"--thinking", NULL, OPTION_FLAG, &swift.thinking, 0, 0, NULL,
            "switch reasoning on, for models whose template has such a switch"},
        ENGINE_OPTIONS(engine),
        OPTIONS_TITLE("SwiftLM's names"),
        {"--info", NULL, OPTION_FLAG, &swift.info, 0, 0, NULL, "print what `apus info` prints, and serve nothing"},
        {"--vision", NULL, OPTION_FLAG, &swift.vision, 0, 0, NULL,
            "changes nothing: models that can take images take them"},
        {"--audio", NULL, OPTION_FLAG, &swift.audio, 0, 0, NULL, "changes nothing: models that can take audio take it"},
        {"--calibrate", NULL, OPTION_FLAG, &swift.calibrate, 0, 0, NULL,
            "measure this machine with each model first, as `apus info MODEL --fit` does"},
        {"--mem-limit", NULL, OPTION_INTEGER, &swift.mem_limit, 1, 1e9, "MB", "--memory-budget in megabytes"},
        LATER_OPTIONS,
        {0},
    };
    Arguments arguments;
    const OptionsResult result =
        options_parse_configured(&command, options, argc, argv, models_min, MODELS_MAX, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    if (verbose) log_set_level(LOG_DEBUG);
    Error error = {0};
    Buffer keys = {0}, origins = {0}, allowed_origins = {0}, allowed_hosts = {0}, media_hosts = {0}, alias_text = {0};
    static ModelAlias aliases[ALIASES_MAX];
    int alias_count = 0;
    if (!take_log(log, &error)) return report(&error);
    if (swift.info) return print_info(&arguments);
    if (!certificate != !certificate_key)
        return fail(&error, ERROR_USAGE, "--tls-cert and --tls-key: one needs the other"), report(&error);
    if (!settle_swift(&swift, &engine, &error) || !take_pooling(pooling, &engine.options.pooling, &error) ||
        !take_keys(key, key_file, &keys, &error) || (mcp && !take_origins(mcp, &origins, &error)) ||
        !take_list("--allow-origin", origins_given ? origins_given : "", true, &allowed_origins, &error) ||
        !take_list("--allow-host", hosts_given ? hosts_given : "", false, &allowed_hosts, &error) ||
        !take_list("--allow-media-from", media_given ? media_given : "", false, &media_hosts, &error) ||
        (media_given && strchr(media_given, '*') &&
            !fail(&error, ERROR_USAGE, "--allow-media-from %s: want names of hosts", media_given)))
        return report(&error);
    buffer_text(&alias_text, aliases_given ? aliases_given : "");
    buffer_byte(&alias_text, 0);
    if (alias_text.failed) return fail(&error, ERROR_MEMORY, "no memory for --alias"), report(&error);
    if (!take_aliases(alias_text.data, aliases, &alias_count, &error)) return report(&error);
    ServerOptions server = {.host = host ? host
            : lan                        ? "0.0.0.0"
                                         : "127.0.0.1",
        .port = (int)port,
        .api_keys = buffer_view(&keys),
        .tls_certificate = certificate,
        .tls_key = certificate_key,
        .mcp_origins = mcp ? origins.data : NULL,
        .allowed_origins = allowed_origins.data,
        .allowed_hosts = allowed_hosts.data,
        .media_hosts = media_given ? media_hosts.data : NULL,
        .history = history,
        .lenient = lenient,
        .allow_pull = pull,
        .open_metrics = open_metrics,
        .log_requests = !quiet,
        .request_timeout_s = request_timeout,
        .queue_timeout_s = queue_timeout,
        .drain_s = (int)drain,
        .defaults = request_defaults(&swift),
        .presets = presets.list,
        .preset_count = presets.count,
        .planner = &engine_planner,
        .models.pinned = pinned,
        .models.aliases = aliases,
        .models.alias_count = alias_count,
        .models.idle_unload_ms = idle * 1000};
    print_events = events;
    if (lan && !lan_prepare(&server, &error)) return report(&error);
    const int code = serve_models(&arguments, &engine, name, key_file, models_dir, swift.calibrate, &server);
    buffer_free(&keys);
    buffer_free(&origins);
    buffer_free(&allowed_origins);
    buffer_free(&allowed_hosts);
    buffer_free(&media_hosts);
    buffer_free(&alias_text);
    return code;
}

int command_serve(int argc, char **argv) { return serve_from(argc, argv, 0); }

int command_serve_swiftlm(int argc, char **argv) { return serve_from(argc, argv, 1); }
