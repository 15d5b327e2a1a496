#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "cli/commands.h"
#include "cli/models.h"
#include "cli/session.h"
#include "server/server.h"

static const Command command = {"serve", "MODEL", "Serves a model over the OpenAI API.",
    "Examples:\n"
    "  apus serve qwen-0.5b                        a model in the cache, on http://127.0.0.1:5413/v1\n"
    "  apus serve model.gguf --port 8080           converted once, then served\n"
    "  apus serve ./model --host 0.0.0.0 --api-key secret\n"
    "  curl http://127.0.0.1:5413/v1/chat/completions -H 'Content-Type: application/json' \\\n"
    "       -d '{\"model\":\"qwen-0.5b\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n"
    "The key can also come from the environment: APUS_API_KEY.\n"};

static void print_ready(const Server *server, const char *host, const char *name, const char *key, double seconds) {
    const bool any = !strcmp(host, "0.0.0.0") || !strcmp(host, "::"), six = strchr(host, ':') != NULL;
    char address[128];
    snprintf(address, sizeof address, "http://%s%s%s:%d", six && !any ? "[" : "", any ? "127.0.0.1" : host,
        six && !any ? "]" : "", server_port(server));
    printf("ready in %.2f s\n\n  API      %s/v1\n  model    %s\n  API key  %s\n\n", seconds, address, name,
        key ? "required" : "none (this machine only)");
    printf("  curl %s/v1/chat/completions -H 'Content-Type: application/json'%s \\\n"
           "    -d '{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n\nCtrl-C stops the "
           "server.\n",
        address, key ? " -H 'Authorization: Bearer KEY'" : "", name);
    fflush(stdout);
}

/* A second signal does not wait for answers that are under way. */
static void *second_signal(void *set) {
    int number;
    sigwait(set, &number);
    _exit(130);
}

static int serve(const ServerOptions *options) {
    Error error = {0};
    const double start = clock_seconds();
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* before any thread: all inherit it */
    signal(SIGPIPE, SIG_IGN);
    Server *server = server_open(options, &error);
    if (!server) return report(&error);
    print_ready(server, options->host, options->model_name, options->api_key, clock_seconds() - start);
    int number;
    sigwait(&set, &number);
    printf("stopping: waiting for answers under way (Ctrl-C again: at once)\n");
    fflush(stdout);
    Thread thread;
    if (!thread_start(&thread, second_signal, &set, "signals", &error)) log_warn("%s", error.text);
    server_close(server);
    return 0;
}

int command_serve(int argc, char **argv) {
    EngineArguments engine = ENGINE_ARGUMENTS_DEFAULT;
    const char *host = "127.0.0.1", *key = getenv("APUS_API_KEY"), *name = NULL;
    int64_t port = 5413;
    bool verbose = false;
    const Option options[] = {
        {"--host", NULL, OPTION_TEXT, &host, 0, 0, "ADDRESS", "address to listen on (127.0.0.1)"},
        {"--port", "-p", OPTION_INTEGER, &port, 0, 65535, "N", "port; 0 takes a free one (5413)"},
        {"--api-key", NULL, OPTION_TEXT, &key, 0, 0, "KEY", "clients must send this key (APUS_API_KEY)"},
        {"--model-name", NULL, OPTION_TEXT, &name, 0, 0, "ID", "id of the model in the API (its file name)"},
        {"--slots", "-np", OPTION_INTEGER, &engine.slots, 1, 1024, "N", "answers computed at once (8)"},
        {"--queue", NULL, OPTION_INTEGER, &engine.queue, 0, 100000, "N", "requests that may wait; then 429 (256)"},
        ENGINE_OPTIONS(engine),
        {"--verbose", "-v", OPTION_FLAG, &verbose, 0, 0, NULL, "log every request (never its text)"},
        {0},
    };
    Arguments arguments;
    const OptionsResult result = options_parse(&command, options, argc, argv, 1, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    if (verbose) log_set_level(LOG_DEBUG);
    Error error = {0};
    Buffer directory = {0}, id = {0};
    if (key && !key[0]) key = NULL;
    if (!name) model_name_of(arguments.values[0], &id);
    int code = 1;
    if (!model_resolve(arguments.values[0], &directory, &error)) {
        code = report(&error);
    } else {
        const ServerOptions server = {.host = host,
            .port = (int)port,
            .api_key = key,
            .model_name = name ? name : id.data,
            .engine = engine_options(&engine, directory.data)};
        code = serve(&server);
    }
    buffer_free(&directory);
    buffer_free(&id);
    return code;
}
