/* A conversation in the terminal: line editing and history by libedit, answers streamed, Ctrl-C stops an answer. */
#include <editline/readline.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/models.h"
#include "cli/session.h"

enum { HISTORY_MAX = 1000 };

static const Command command = {"chat", "MODEL", "A conversation with a model in the terminal.",
    "In the conversation: /clear starts over, /system TEXT sets the system message, /quit or Ctrl-D leaves,\n"
    "a line ending in \\ goes on in the next, Ctrl-C stops an answer.\n"};

static volatile int interrupted;
static void on_interrupt(int number) { interrupted = 1; }

typedef struct Chat {
    ChatModel *model;
    SamplingArguments sampling;
    ChatMessage *messages; /* their texts are NUL-terminated and the conversation's own */
    size_t count, capacity;
} Chat;

static void forget_messages(Chat *chat, size_t from) {
    while (chat->count > from) free((char *)chat->messages[--chat->count].content.data);
}

static bool add_message(Chat *chat, const char *role, Slice content, Error *error) {
    Buffer text = {0};
    session_clean(content, &text);
    buffer_text(&text, ""); /* so that there is a text even when it is empty */
    if (chat->count == chat->capacity) {
        const size_t capacity = chat->capacity ? 2 * chat->capacity : 16;
        ChatMessage *grown = realloc(chat->messages, capacity * sizeof *grown);
        if (grown) {
            chat->messages = grown;
            chat->capacity = capacity;
        }
    }
    if (text.failed || chat->count == chat->capacity) {
        buffer_free(&text);
        return fail(error, ERROR_MEMORY, "no memory for the conversation");
    }
    chat->messages[chat->count++] = (ChatMessage){.role = role, .content = buffer_view(&text)};
    return true;
}

/* One message, over several lines when they end in a backslash. False: end of input. */
static bool read_message(Buffer *line) {
    const bool terminal = isatty(STDIN_FILENO);
    buffer_clear(line);
    for (bool more = true; more;) {
        char *part = NULL;
        if (terminal) {
            part = readline(line->size ? "... " : ">>> ");
        } else {
            size_t capacity = 0;
            const ssize_t length = getline(&part, &capacity, stdin);
            if (length < 0) {
                free(part);
                part = NULL;
            } else if (length > 0 && part[length - 1] == '\n') {
                part[length - 1] = 0;
            }
        }
        if (!part) return line->size > 0;
        const size_t length = strlen(part);
        more = length > 0 && part[length - 1] == '\\';
        buffer_append(line, part, more ? length - 1 : length);
        if (more) buffer_byte(line, '\n');
        free(part);
    }
    if (terminal && line->size && !memchr(line->data, '\n', line->size)) add_history(line->data);
    return true;
}

/* A line beginning with a slash. */
static bool handle_slash(Chat *chat, const char *line, bool *leave, Error *error) {
    if (!strcmp(line, "/quit") || !strcmp(line, "/exit") || !strcmp(line, "/bye")) {
        *leave = true;
    } else if (!strcmp(line, "/clear")) {
        forget_messages(chat, 0);
        printf("(a new conversation)\n");
    } else if (!strncmp(line, "/system ", 8)) {
        forget_messages(chat, 0);
        if (!add_message(chat, "system", slice_of(line + 8), error)) return false;
        printf("(a new conversation with this system message)\n");
    } else {
        printf("/clear, /system TEXT, /quit\n");
    }
    return true;
}

/* One message and its answer. */
static bool take_turn(Chat *chat, Slice line, Buffer *text, Error *error) {
    const size_t before = chat->count;
    if (!add_message(chat, "user", line, error)) return false;
    const SessionPrompt prompt = {chat->messages, chat->count, NULL};
    buffer_clear(text);
    interrupted = 0;
    SessionAnswer answer;
    if (session_answer(chat->model, &prompt, &chat->sampling, &interrupted, text, &answer, error)) {
        printf("%s\n",
            answer.finish == FINISH_CANCELLED    ? " [stopped]"
                : answer.finish == FINISH_LENGTH ? " [the answer reached its limit]"
                                                 : "");
        return add_message(chat, "assistant", buffer_view(text), error);
    }
    if (error->code != ERROR_LIMIT) return false;
    printf("%s\n(/clear starts a new conversation)\n", error->text); /* full: it can go on without this message */
    forget_messages(chat, before);
    return true;
}

static bool converse(Chat *chat, Error *error) {
    Buffer line = {0}, text = {0};
    bool ok = true, leave = false;
    while (ok && !leave && read_message(&line)) {
        if (line.size == 0) continue;
        ok = line.data[0] == '/' ? handle_slash(chat, line.data, &leave, error)
                                 : take_turn(chat, buffer_view(&line), &text, error);
    }
    buffer_free(&line);
    buffer_free(&text);
    return ok;
}

int command_chat(int argc, char **argv) {
    EngineArguments engine = ENGINE_ARGUMENTS_DEFAULT;
    Chat chat = {.sampling = SAMPLING_ARGUMENTS_DEFAULT};
    const char *system = NULL;
    const Option options[] = {
        {"--system", "-s", OPTION_TEXT, &system, 0, 0, "TEXT", "system message"},
        SAMPLING_OPTIONS(chat.sampling),
        ENGINE_OPTIONS(engine),
        {0},
    };
    Arguments arguments;
    const OptionsResult result = options_parse(&command, options, argc, argv, 1, 1, &arguments);
    if (result != OPTIONS_OK) return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    Error error = {0};
    Buffer directory = {0}, history = {0};
    bool ok = model_resolve(arguments.values[0], &directory, &error);
    chat.model = ok ? session_open(directory.data, &engine, &error) : NULL;
    ok = chat.model && (!system || add_message(&chat, "system", slice_of(system), &error));
    if (ok) {
        const bool terminal = isatty(STDIN_FILENO);
        Error ignored;
        if (terminal && models_cache(&history, &ignored) && file_make_directories(history.data, &ignored)) {
            buffer_text(&history, "/../history");
            using_history();
            read_history(history.data);
            stifle_history(HISTORY_MAX);
        }
        signal(SIGINT, on_interrupt);
        if (terminal) printf("%s — /quit leaves, Ctrl-C stops an answer\n", arguments.values[0]);
        ok = converse(&chat, &error);
        if (terminal && history.size) write_history(history.data);
    }
    forget_messages(&chat, 0);
    free(chat.messages);
    chat_model_close(chat.model);
    buffer_free(&directory);
    buffer_free(&history);
    return ok ? 0 : report(&error);
}
