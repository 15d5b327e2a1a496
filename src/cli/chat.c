/* A conversation in the terminal: line editing and history by libedit, answers streamed, Ctrl-C stops an answer. */
#include <editline/readline.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
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
    Session session;
    SamplingArguments sampling;
    Buffer messages; /* the JSON array without its brackets */
} Chat;

static void add_message(Chat *chat, const char *role, Slice content) {
    if (chat->messages.size) buffer_byte(&chat->messages, ',');
    buffer_printf(&chat->messages, "{\"role\":\"%s\",\"content\":", role);
    json_write_string(&chat->messages, content);
    buffer_byte(&chat->messages, '}');
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

/* Commands beginning with a slash. True: handled. */
static bool handle_slash(Chat *chat, const char *line, bool *leave) {
    if (line[0] != '/') return false;
    if (!strcmp(line, "/quit") || !strcmp(line, "/exit") || !strcmp(line, "/bye")) {
        *leave = true;
    } else if (!strcmp(line, "/clear")) {
        buffer_clear(&chat->messages);
        printf("(a new conversation)\n");
    } else if (!strncmp(line, "/system ", 8)) {
        buffer_clear(&chat->messages);
        add_message(chat, "system", slice_of(line + 8));
        printf("(a new conversation with this system message)\n");
    } else {
        printf("/clear, /system TEXT, /quit\n");
    }
    return true;
}

static bool converse(Chat *chat, Error *error) {
    Buffer line = {0}, text = {0}, array = {0};
    bool ok = true, leave = false;
    while (ok && !leave && read_message(&line)) {
        if (line.size == 0 || handle_slash(chat, line.data, &leave)) continue;
        const size_t before = chat->messages.size;
        add_message(chat, "user", buffer_view(&line));
        buffer_clear(&array);
        buffer_printf(&array, "[%s]", chat->messages.data);
        buffer_clear(&text);
        interrupted = 0;
        SessionAnswer answer;
        Error why = {0};
        if (session_answer(
                &chat->session, buffer_view(&array), NULL, &chat->sampling, &interrupted, &text, &answer, &why)) {
            printf("%s\n",
                answer.finish == FINISH_CANCELLED    ? " [stopped]"
                    : answer.finish == FINISH_LENGTH ? " [the answer reached its limit]"
                                                     : "");
            add_message(chat, "assistant", buffer_view(&text));
        } else if (why.code == ERROR_LIMIT) { /* the conversation is full: it can go on without this message */
            printf("%s\n(/clear starts a new conversation)\n", why.text);
            chat->messages.size = before;
            chat->messages.data[before] = 0;
        } else {
            *error = why;
            ok = false;
        }
        if (ok && chat->messages.failed) ok = fail(error, ERROR_MEMORY, "out of memory");
    }
    buffer_free(&line);
    buffer_free(&text);
    buffer_free(&array);
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
    bool ok = model_resolve(arguments.values[0], &directory, &error) &&
        session_open(&chat.session, directory.data, &engine, &error);
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
        if (system) add_message(&chat, "system", slice_of(system));
        ok = converse(&chat, &error);
        if (terminal && history.size) write_history(history.data);
        session_close(&chat.session);
    }
    buffer_free(&chat.messages);
    buffer_free(&directory);
    buffer_free(&history);
    return ok ? 0 : report(&error);
}
