#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/models.h"
#include "cli/session.h"

static const Command command = {"run", "MODEL [PROMPT]", "Answers one prompt, given as argument or on standard input.",
    "Examples:\n"
    "  apus run qwen-0.5b 'Write a haiku about swifts'\n"
    "  cat main.c | apus run qwen-0.5b --system 'Review this code.'\n"
    "  apus run gemma-270m --raw 'Once upon a time' -n 100     continues the text, without a chat template\n"};

static bool read_prompt(const Arguments *arguments, Buffer *prompt, Error *error) {
    enum { PROMPT_BYTES_MAX = 64 << 20 };
    prompt->limit = PROMPT_BYTES_MAX;
    if (arguments->count > 1) buffer_text(prompt, arguments->values[1]);
    if (arguments->count < 2 || !strcmp(arguments->values[1], "-")) {
        buffer_clear(prompt);
        if (isatty(STDIN_FILENO)) fprintf(stderr, "apus: reading the prompt from the terminal; end it with Ctrl-D\n");
        char block[1 << 16];
        for (size_t got; (got = fread(block, 1, sizeof block, stdin)) > 0;) buffer_append(prompt, block, got);
    }
    if (prompt->failed) return fail(error, ERROR_LIMIT, "the prompt is longer than %d bytes", PROMPT_BYTES_MAX);
    return prompt->size > 0 || fail(error, ERROR_USAGE, "the prompt is empty");
}

static bool answer(const char *directory, const char *system, bool raw, const EngineArguments *engine,
    const SamplingArguments *sampling, const Buffer *prompt, bool stats, Error *error) {
    Session session;
    if (!session_open(&session, directory, engine, error)) return false;
    Buffer messages = {0}, text = {0};
    buffer_byte(&messages, '[');
    if (system) {
        buffer_text(&messages, "{\"role\":\"system\",\"content\":");
        json_write_string(&messages, slice_of(system));
        buffer_text(&messages, "},");
    }
    buffer_text(&messages, "{\"role\":\"user\",\"content\":");
    json_write_string(&messages, buffer_view(prompt));
    buffer_text(&messages, "}]");
    SessionAnswer result;
    const bool ok = session_answer(
        &session, buffer_view(&messages), raw ? prompt->data : NULL, sampling, NULL, &text, &result, error);
    if (ok) printf("\n");
    if (ok && stats)
        fprintf(stderr, "%d prompt tokens, %d tokens, first after %.2f s, %.1f tok/s\n", result.prompt_tokens,
            result.tokens, result.first_s,
            result.tokens > 1 ? (result.tokens - 1) / (result.total_s - result.first_s) : 0.0);
    buffer_free(&messages);
    buffer_free(&text);
    session_close(&session);
    return ok;
}

int command_run(int argc, char **argv) {
    EngineArguments engine = ENGINE_ARGUMENTS_DEFAULT;
    SamplingArguments sampling = SAMPLING_ARGUMENTS_DEFAULT;
    const char *system = NULL;
    bool raw = false, stats = false;
    const Option options[] = {
        {"--system", "-s", OPTION_TEXT, &system, 0, 0, "TEXT", "system message"},
        {"--raw", NULL, OPTION_FLAG, &raw, 0, 0, NULL, "continue the prompt as it stands, without a chat template"},
        {"--stats", NULL, OPTION_FLAG, &stats, 0, 0, NULL, "print counts and speed on standard error"},
        SAMPLING_OPTIONS(sampling),
        ENGINE_OPTIONS(engine),
        {0},
    };
    Arguments arguments;
    const OptionsResult result = options_parse(&command, options, argc, argv, 1, 2, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    Buffer directory = {0}, prompt = {0};
    const bool ok = model_resolve(arguments.values[0], &directory, &error) &&
        read_prompt(&arguments, &prompt, &error) &&
        answer(directory.data, system, raw, &engine, &sampling, &prompt, stats, &error);
    buffer_free(&directory);
    buffer_free(&prompt);
    return ok ? 0 : report(&error);
}
