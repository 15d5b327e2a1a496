#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "library/library.h"
#include "library/named.h"
#include "cli/session.h"

static const Command command = {"run", "MODEL [PROMPT …]",
    "Answers one prompt, given as arguments, on standard input, or both: then the input follows the prompt.",
    "Examples:\n"
    "  apus run qwen-0.5b 'Write a haiku about swifts'\n"
    "  cat main.c | apus run qwen-0.5b 'Explain this code.'    the prompt, then what was piped\n"
    "  apus run gemma-270m --raw 'Once upon a time' -n 100     continues the text, without a chat template\n"};

/* Something was piped in, or is a file: not a terminal, and not what programs have that were given nothing. */
static bool has_input(void) {
    struct stat info;
    return !fstat(STDIN_FILENO, &info) && (S_ISFIFO(info.st_mode) || S_ISREG(info.st_mode));
}

static bool read_input(Buffer *prompt, Error *error) {
    const size_t begin = prompt->size;
    char block[1 << 16];
    for (size_t got; (got = fread(block, 1, sizeof block, stdin)) > 0;) buffer_append(prompt, block, got);
    const Slice input = {prompt->data + begin, prompt->size - begin};
    uint32_t code;
    for (size_t at = 0; at < input.size && !prompt->failed;) {
        const int length = utf8_decode(input.data + at, input.size - at, &code);
        if (length <= 0)
            return fail(error, ERROR_USAGE, "standard input is not a UTF-8 text: byte %zu is 0x%02X", at,
                (unsigned char)input.data[at]);
        at += (size_t)length;
    }
    return true;
}

static bool read_prompt(const Arguments *arguments, Buffer *prompt, Error *error) {
    enum { PROMPT_BYTES_MAX = 64 << 20 };
    prompt->limit = PROMPT_BYTES_MAX;
    for (int i = 1; i < arguments->count; i++) buffer_printf(prompt, "%s%s", i > 1 ? " " : "", arguments->values[i]);
    if (arguments->count < 2 || slice_is(buffer_view(prompt), "-")) {
        buffer_clear(prompt);
        if (isatty(STDIN_FILENO)) fprintf(stderr, "apus: reading the prompt from the terminal; end it with Ctrl-D\n");
        if (!read_input(prompt, error)) return false;
    } else if (has_input()) {
        const size_t asked = prompt->size;
        buffer_text(prompt, "\n\n");
        if (!read_input(prompt, error)) return false;
        if (prompt->size == asked + 2) prompt->size = asked;
    }
    if (prompt->failed) return fail(error, ERROR_LIMIT, "the prompt is longer than %d bytes", PROMPT_BYTES_MAX);
    return prompt->size > 0 || fail(error, ERROR_USAGE, "the prompt is empty");
}

/* What stands before the prompt: paths of files; NULL: none. */
enum { ATTACHED_MAX = 3 };
typedef struct Attached {
    const char *image, *video, *audio;
} Attached;

/* A file's bytes stay allocated in `files`. */
static bool read_attached(
    const Attached *attached, Buffer files[ATTACHED_MAX], ContentPart *parts, size_t *count, Error *error) {
    const struct {
        ContentKind kind;
        const char *path;
    } all[ATTACHED_MAX] = {
        {CONTENT_IMAGE, attached->image}, {CONTENT_VIDEO, attached->video}, {CONTENT_AUDIO, attached->audio}};
    for (int i = 0; i < ATTACHED_MAX; i++)
        if (all[i].path && !session_read_media(all[i].kind, all[i].path, &files[i], &parts[(*count)++], error))
            return false;
    return true;
}

static bool answer(const char *directory, const char *system, const Attached *attached, bool raw,
    const EngineArguments *engine, const SamplingArguments *sampling, const Buffer *prompt, bool stats, Error *error) {
    ChatModel *model = session_open(directory, engine, error);
    if (!model) return false;
    Buffer system_text = {0}, user_text = {0}, text = {0}, files[ATTACHED_MAX] = {{0}};
    session_clean(slice_of(system ? system : ""), &system_text);
    session_clean(buffer_view(prompt), &user_text);
    ContentPart parts[ATTACHED_MAX + 1];
    size_t count = 0;
    bool ok = (!system_text.failed && !user_text.failed) || fail(error, ERROR_MEMORY, "no memory for the prompt");
    ok = ok && read_attached(attached, files, parts, &count, error);
    parts[count++] = (ContentPart){.kind = CONTENT_TEXT, .text = buffer_view(&user_text)};
    const ChatMessage messages[] = {{.role = "system", CHAT_TEXT(buffer_view(&system_text))},
        {.role = "user", .parts = parts, .part_count = count}};
    const int first = system ? 0 : 1;
    const SessionPrompt asked = {messages + first, (size_t)(2 - first), raw ? user_text.data : NULL};
    SessionAnswer result;
    ok = ok && session_answer(model, &asked, sampling, NULL, &text, &result, error);
    if (ok) printf("\n");
    fflush(stdout); /* before what goes to the other stream of the same terminal */
    if (ok && stats) session_print_stats(&result, stderr);
    buffer_free(&system_text);
    buffer_free(&user_text);
    buffer_free(&text);
    for (int i = 0; i < ATTACHED_MAX; i++) buffer_free(&files[i]);
    chat_model_close(model);
    return ok;
}

int command_run(int argc, char **argv) {
    EngineArguments engine = ENGINE_ARGUMENTS_DEFAULT;
    SamplingArguments sampling = SAMPLING_ARGUMENTS_DEFAULT;
    const char *system = NULL;
    Attached attached = {0};
    bool raw = false, stats = false;
    const Option options[] = {
        {"--system", "-s", OPTION_TEXT, &system, 0, 0, "TEXT", "system message"},
        {"--image", NULL, OPTION_TEXT, &attached.image, 0, 0, "FILE",
            "an image before the prompt, for models that take images"},
        {"--video", NULL, OPTION_TEXT, &attached.video, 0, 0, "FILE",
            "a video before the prompt (GIF, WebP, MJPEG), for models that take videos"},
        {"--audio", NULL, OPTION_TEXT, &attached.audio, 0, 0, "FILE",
            "audio before the prompt, for models that take audio"},
        {"--raw", NULL, OPTION_FLAG, &raw, 0, 0, NULL, "continue the prompt as it stands, without a chat template"},
        {"--stats", NULL, OPTION_FLAG, &stats, 0, 0, NULL, "print counts and speed on standard error"},
        SAMPLING_OPTIONS(sampling),
        ENGINE_OPTIONS(engine),
        {0},
    };
    Arguments arguments;
    const OptionsResult result = options_parse(&command, options, argc, argv, 1, POSITIONAL_MAX, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    Buffer directory = {0}, prompt = {0};
    const bool plain = !raw || (!attached.image && !attached.video && !attached.audio);
    const bool ok =
        (plain || fail(&error, ERROR_USAGE, "--image, --video and --audio need the chat template: no --raw")) &&
        named_resolve(arguments.values[0], progress_on_terminal(), &directory, NULL, &error) &&
        read_prompt(&arguments, &prompt, &error) &&
        answer(directory.data, system, &attached, raw, &engine, &sampling, &prompt, stats, &error);
    buffer_free(&directory);
    buffer_free(&prompt);
    return ok ? 0 : report(&error);
}
