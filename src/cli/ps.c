/* `apus ps` and `apus stop`: what a running server serves. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/client.h"
#include "cli/commands.h"

static const Command ps_command = {"ps", "", "The models of a running server of this machine.", NULL};
static const Command stop_command = {
    "stop", "MODEL", "Unloads a model of a running server; the next request loads it again.", NULL};

typedef struct ServerArguments {
    int64_t port;
    const char *key;
} ServerArguments;

#define SERVER_OPTIONS(s)                                                                                              \
    {"--port", "-p", OPTION_INTEGER, &(s).port, 1, 65535, "N", "port of the server (5413)"}, {                         \
        "--api-key", NULL, OPTION_TEXT, &(s).key, 0, 0, "KEY", "key of the server (APUS_API_KEY)"                      \
    }

/* The response as JSON; NULL: an error, which is printed. model: the model that the request names; NULL: none. */
static const Json *ask(
    const ServerArguments *server, const char *method, const char *path, const char *model, Slice body, Arena *arena) {
    Error error = {0};
    Buffer text = {0};
    int status = 0;
    const char *key = server->key ? server->key : getenv("APUS_API_KEY");
    const Json *answer = NULL;
    if (client_ask((int)server->port, key, method, path, body, &status, &text, &error)) {
        const char *copy = arena_copy(arena, buffer_view(&text));
        answer = copy ? json_parse(arena, (Slice){copy, text.size}, &error) : NULL;
        const Json *problem = json_get(json_get(answer, "error"), "message");
        if (answer && status == 404 && model) {
            fail(&error, ERROR_NOT_FOUND, "the server on port %lld does not serve %s (apus ps shows its models)",
                (long long)server->port, model);
            answer = NULL;
        } else if (answer && status != 200) {
            const Slice said =
                problem && problem->type == JSON_STRING ? json_slice(problem) : SLICE("the request failed");
            fail(&error, ERROR_IO, "%.*s", SLICE_SHOWN(said));
            answer = NULL;
        }
    }
    buffer_free(&text);
    if (!answer) report(&error);
    return answer;
}

/* A field's text, "" without one. */
static Slice text_of(const Json *object, const char *name) {
    const Json *value = json_get(object, name);
    return value && value->type == JSON_STRING ? json_slice(value) : SLICE("");
}

int command_ps(int argc, char **argv) {
    ServerArguments server = {.port = CLIENT_PORT_DEFAULT};
    const Option options[] = {SERVER_OPTIONS(server), {0}};
    Arguments arguments;
    const OptionsResult result = options_parse(&ps_command, options, argc, argv, 0, 0, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Arena arena = {0};
    const Json *answer = ask(&server, "GET", "/v1/models", NULL, (Slice){0}, &arena), *list = json_get(answer, "data");
    if (answer) printf("%-40s  %-10s  CONTEXT\n", "NAME", "STATUS");
    if (list && list->type == JSON_ARRAY) {
        for (JSON_EACH(model, list)) {
            const Json *context = json_get(model, "context_length");
            const Slice id = text_of(model, "id"), status = text_of(model, "status");
            printf("%-40.*s  %-10.*s  %lld\n", SLICE_SHOWN(id), SLICE_SHOWN(status),
                context && context->type == JSON_INTEGER ? (long long)context->integer : 0);
        }
    }
    arena_free(&arena);
    return answer ? 0 : 1;
}

int command_stop(int argc, char **argv) {
    ServerArguments server = {.port = CLIENT_PORT_DEFAULT};
    const Option options[] = {SERVER_OPTIONS(server), {0}};
    Arguments arguments;
    const OptionsResult result = options_parse(&stop_command, options, argc, argv, 1, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Arena arena = {0};
    Buffer body = {0};
    buffer_text(&body, "{\"model\":");
    json_write_string(&body, slice_of(arguments.values[0]));
    buffer_byte(&body, '}');
    const char *model = arguments.values[0];
    const Json *answer =
        body.failed ? NULL : ask(&server, "POST", "/v1/models/unload", model, buffer_view(&body), &arena);
    const Slice id = text_of(answer, "id");
    if (answer) printf("%.*s is unloaded\n", SLICE_SHOWN(id));
    buffer_free(&body);
    arena_free(&arena);
    return answer ? 0 : 1;
}
