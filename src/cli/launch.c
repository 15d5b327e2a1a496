/* `apus launch`: coding agents on a running server. Nothing is written to their settings: all goes by environment and
 * arguments. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/client.h"
#include "cli/commands.h"

static const Command command = {"launch", "codex|claude|opencode|aider [MODEL] [-- ARGUMENTS]",
    "Starts a coding agent on a running server.",
    "It prints what it sets and changes no file of the agent. MODEL is one that the server serves, else its first "
    "one.\n"
    "  apus serve qwen3-coder-30b &\n"
    "  apus launch claude\n"
    "  apus launch codex -- exec 'Fix the failing test'\n"};

enum { WORDS_MAX = 256, VARIABLES_MAX = 16, CONTEXT_WANTED = 32768, OUTPUT_MAX = 32000 };

static const char KEY_NONE[] = "apus"; /* where the server wants no key, but the agent does */

typedef struct Launch {
    const char *model, *url, *key; /* url: without /v1; key: KEY_NONE where the server wants none */
    int context; /* tokens; 0: not known. Agents that do not know a model assume more, and never shorten a talk */
    const char *words[WORDS_MAX]; /* [word_count + 1] the agent's command line, with NULL behind it */
    const char *names[VARIABLES_MAX], *values[VARIABLES_MAX];
    int word_count, variable_count;
    Arena arena;
    bool failed;
} Launch;

static void add_word(Launch *l, const char *word) {
    l->failed |= !word || l->word_count == WORDS_MAX - 1;
    if (!l->failed) l->words[l->word_count++] = word;
}

static void add_variable(Launch *l, const char *name, const char *value) {
    l->failed |= !value || l->variable_count == VARIABLES_MAX;
    if (l->failed) return;
    l->names[l->variable_count] = name;
    l->values[l->variable_count++] = value;
}

/* What an answer may take of the context: agents shorten a talk before that much is left. */
static int output_tokens(const Launch *l) { return l->context / 4 < OUTPUT_MAX ? l->context / 4 : OUTPUT_MAX; }

static void set_claude(Launch *l) {
    add_variable(l, "ANTHROPIC_BASE_URL", l->url);
    add_variable(l, "ANTHROPIC_AUTH_TOKEN", l->key);
    static const char *const models[] = {"ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL",
        "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_SMALL_FAST_MODEL",
        "CLAUDE_CODE_SUBAGENT_MODEL"};
    for (size_t i = 0; i < COUNT_OF(models); i++) add_variable(l, models[i], l->model);
    if (l->context > 0) {
        add_variable(l, "CLAUDE_CODE_MAX_CONTEXT_TOKENS", arena_printf(&l->arena, "%d", l->context));
        add_variable(l, "CLAUDE_CODE_MAX_OUTPUT_TOKENS", arena_printf(&l->arena, "%d", output_tokens(l)));
    }
    add_variable(l, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    add_variable(
        l, "CLAUDE_CODE_ATTRIBUTION_HEADER", "0"); /* it changes with each request: the prefix cache would not hold */
}

static void set_codex(Launch *l) {
    static const char *const settings[] = {"model_provider=apus", "model_providers.apus.name=Apus",
        "model_providers.apus.wire_api=responses", "model_providers.apus.env_key=APUS_API_KEY"};
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        add_word(l, "-c");
        add_word(l, settings[i]);
    }
    add_word(l, "-c");
    add_word(l, arena_printf(&l->arena, "model_providers.apus.base_url=%s/v1", l->url));
    if (l->context > 0) {
        add_word(l, "-c");
        add_word(l, arena_printf(&l->arena, "model_context_window=%d", l->context));
    }
    add_word(l, "-c");
    add_word(l, arena_printf(&l->arena, "model=\"%s\"", l->model));
    add_variable(l, "APUS_API_KEY", l->key);
}

static void set_opencode(Launch *l) {
    Buffer config = {0}, name = {0}, limit = {0};
    json_write_string(&name, slice_of(l->model));
    buffer_text(&limit, "");
    if (l->context > 0)
        buffer_printf(&limit, ",\"limit\":{\"context\":%d,\"output\":%d}", l->context, output_tokens(l));
    buffer_printf(&config,
        "{\"provider\":{\"apus\":{\"npm\":\"@ai-sdk/openai-compatible\",\"name\":\"Apus\",\"options\":{\"baseURL\":"
        "\"%s/v1\",\"apiKey\":\"{env:APUS_API_KEY}\"},\"models\":{%s:{\"name\":%s%s}}}},\"model\":",
        l->url, name.data ? name.data : "", name.data ? name.data : "", limit.data ? limit.data : "");
    buffer_clear(&name);
    buffer_printf(&name, "apus/%s", l->model);
    json_write_string(&config, buffer_view(&name));
    buffer_byte(&config, '}');
    add_variable(l, "OPENCODE_CONFIG_CONTENT",
        config.failed || name.failed || limit.failed ? NULL : arena_copy(&l->arena, buffer_view(&config)));
    add_variable(l, "APUS_API_KEY", l->key);
    buffer_free(&config);
    buffer_free(&name);
    buffer_free(&limit);
}

static void set_aider(Launch *l) {
    add_variable(l, "OPENAI_API_BASE", arena_printf(&l->arena, "%s/v1", l->url));
    add_variable(l, "OPENAI_API_KEY", l->key);
    add_word(l, "--model");
    add_word(l, arena_printf(&l->arena, "openai/%s", l->model));
    add_word(l, "--no-show-model-warnings");
}

static const struct Agent {
    const char *name, *install;
    void (*set)(Launch *launch);
} agents[] = {{"claude", "npm install -g @anthropic-ai/claude-code", set_claude},
    {"codex", "npm install -g @openai/codex", set_codex}, {"opencode", "npm install -g opencode-ai", set_opencode},
    {"aider", "python -m pip install aider-chat", set_aider}};

/* The model that is meant: of that name, else the only one that begins so; without a name the first. NULL: none. */
static const Json *pick_model(const Json *list, const char *wanted) {
    const Json *found = NULL;
    int count = 0;
    for (JSON_EACH(item, list)) {
        const Json *id = json_get(item, "id");
        if (!id || id->type != JSON_STRING) continue;
        if (!wanted || slice_is(json_slice(id), wanted)) return item;
        if (!slice_starts(json_slice(id), slice_of(wanted))) continue;
        found = item;
        count++;
    }
    return count == 1 ? found : NULL;
}

/* Sets the model and its context. */
static bool find_model(Launch *l, int port, const char *key, const char *wanted, Error *error) {
    Buffer text = {0};
    int status = 0;
    if (client_ask(port, key, "GET", "/v1/models", (Slice){0}, &status, &text, error)) {
        const Json *answer = json_parse(&l->arena, buffer_view(&text), error), *list = json_get(answer, "data");
        const Json *model = list && list->type == JSON_ARRAY ? pick_model(list, wanted) : NULL;
        const Json *context = json_get(model, "context_length"),
                   *problem = json_get(json_get(answer, "error"), "message");
        if (model) l->model = arena_copy(&l->arena, json_slice(json_get(model, "id")));
        if (context && json_is_number(context)) l->context = (int)json_number(context);
        if (problem && problem->type == JSON_STRING) /* it loads its models, or ends */
            fail(error, ERROR_IO, "the server on port %d: %.*s", port, SLICE_SHOWN(json_slice(problem)));
        else if (!model && wanted)
            fail(error, ERROR_NOT_FOUND, "the server on port %d does not serve %s (apus ps shows its models)", port,
                wanted);
        else if (!model)
            fail(error, ERROR_NOT_FOUND, "the server on port %d serves no model", port);
    }
    buffer_free(&text);
    return l->model != NULL;
}

/* As a shell reads it. */
static void print_quoted(FILE *out, const char *text) {
    const char *plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,@%+-";
    if (text[0] && !text[strspn(text, plain)]) {
        fputs(text, out);
        return;
    }
    fputc('\'', out);
    for (; *text; text++) fputs(*text == '\'' ? "'\\''" : (char[]){*text, 0}, out);
    fputc('\'', out);
}

static int start(Launch *l, const struct Agent *agent, bool only_print) {
    FILE *out = only_print ? stdout : stderr;
    for (int i = 0; i < l->variable_count; i++) {
        fprintf(out, "%s=", l->names[i]);
        if (l->values[i] == l->key && strcmp(l->key, KEY_NONE) != 0)
            fputs("…", out);
        else
            print_quoted(out, l->values[i]);
        fputc('\n', out);
        if (!only_print && setenv(l->names[i], l->values[i], 1)) return 1;
    }
    for (int i = 0; i < l->word_count; i++) {
        if (i) fputc(' ', out);
        print_quoted(out, l->words[i]);
    }
    fputc('\n', out);
    if (l->context > 0 && l->context < CONTEXT_WANTED)
        fprintf(stderr, "apus: %s is served with a context of %d tokens; agents want %d or more (--ctx-size)\n",
            l->model, l->context, CONTEXT_WANTED);
    if (only_print) return 0;
    fflush(stderr);
    execvp(l->words[0], (char *const *)(uintptr_t)l->words);
    fprintf(stderr, errno == ENOENT ? "apus: %s is not installed: %s\n" : "apus: cannot start %s: %s\n", agent->name,
        errno == ENOENT ? agent->install : strerror(errno));
    return 1;
}

int command_launch(int argc, char **argv) {
    int64_t port = CLIENT_PORT_DEFAULT;
    const char *key = getenv("APUS_API_KEY");
    bool only_print = false;
    const Option options[] = {
        {"--port", "-p", OPTION_INTEGER, &port, 1, 65535, "N", "port of the server (5413)"},
        {"--api-key", NULL, OPTION_TEXT, &key, 0, 0, "KEY", "key of the server (APUS_API_KEY)"},
        {"--print", NULL, OPTION_FLAG, &only_print, 0, 0, NULL, "print what would be set and run, and start nothing"},
        {0},
    };
    /* What stands behind "--" is the agent's. */
    int own = 0;
    while (own < argc && strcmp(argv[own], "--") != 0) own++;
    Arguments arguments;
    const OptionsResult result = options_parse(&command, options, own, argv, 1, 2, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    const struct Agent *agent = NULL;
    for (size_t i = 0; i < COUNT_OF(agents); i++)
        if (!strcmp(agents[i].name, arguments.values[0])) agent = &agents[i];
    Error error = {0};
    if (!agent) {
        fail(&error, ERROR_USAGE, "%s: want codex, claude, opencode or aider", arguments.values[0]);
        return report(&error);
    }
    Launch launch = {.key = key && key[0] ? key : KEY_NONE};
    launch.url = arena_printf(&launch.arena, "http://127.0.0.1:%d", (int)port);
    int code = 1;
    if (find_model(&launch, (int)port, key, arguments.count > 1 ? arguments.values[1] : NULL, &error) && launch.url) {
        add_word(&launch, agent->name);
        agent->set(&launch);
        for (int i = own + 1; i < argc; i++) add_word(&launch, argv[i]);
        if (launch.failed) fail(&error, ERROR_MEMORY, "no memory for the command line of %s", agent->name);
        code = launch.failed ? report(&error) : start(&launch, agent, only_print);
    } else {
        code = report(&error);
    }
    arena_free(&launch.arena);
    return code;
}
