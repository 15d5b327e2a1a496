/* A conversation in the terminal: answers streamed, Ctrl-C stops an answer. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/line_input.h"
#include "cli/progress.h"
#include "library/library.h"
#include "library/named.h"
#include "cli/session.h"

static const Command command = {"chat", "MODEL", "A conversation with a model in the terminal.",
    "In the conversation: /help lists the commands, a line ending in \\ goes on in the next, pasted lines stay\n"
    "together, Ctrl-C stops an answer or drops a line, Ctrl-D leaves.\n"};

static const char slash_help[] = "/image FILE         the next message begins with this image\n"
                                 "/video FILE         the next message begins with this video (GIF, WebP, MJPEG)\n"
                                 "/audio FILE         the next message begins with this audio\n"
                                 "/retry              answer the last message again\n"
                                 "/undo               take the last message and its answer back\n"
                                 "/clear              start over; the system message stays\n"
                                 "/system TEXT        start over with this system message\n"
                                 "/set NAME VALUE     temperature, top-p, top-k, min-p, repetition-penalty, seed or\n"
                                 "                    max-tokens; /set alone shows them\n"
                                 "/model [NAME]       go on with another model; alone: what is used\n"
                                 "/save FILE          write the conversation as JSON, as the API takes messages\n"
                                 "/load FILE          go on with a saved conversation\n"
                                 "/stats              counts and speed of the last answer\n"
                                 "/quit               leave (also /exit, /bye and Ctrl-D)\n";

typedef struct Chat {
    ChatModel *model;
    const EngineArguments *engine;
    char *name; /* as the user called the model; owned */
    SamplingArguments sampling;
    ChatMessage *messages; /* [count]; their parts are owned: images and audio, then a text, which is NUL-terminated */
    size_t count, capacity;
    ContentPart media[IMAGES_MAX]; /* [media_count] images and audio of the next message */
    size_t media_count;
    SessionAnswer last; /* zero tokens: no answer yet */
} Chat;

static void free_part(const ContentPart *part) {
    free((char *)(part->kind == CONTENT_TEXT ? part->text.data : part->media.bytes.data));
}

static void free_message(const ChatMessage *message) {
    for (size_t i = 0; i < message->part_count; i++) free_part(&message->parts[i]);
    free((ContentPart *)message->parts);
}

static void forget_messages(Chat *chat, size_t from) {
    while (chat->count > from) free_message(&chat->messages[--chat->count]);
}

static void forget_media(Chat *chat) {
    while (chat->media_count > 0) free_part(&chat->media[--chat->media_count]);
}

static bool grow(Chat *chat) {
    const size_t capacity = chat->capacity ? 2 * chat->capacity : 16;
    if (chat->count < chat->capacity) return true;
    ChatMessage *messages = realloc(chat->messages, capacity * sizeof *messages);
    if (!messages) return false;
    chat->messages = messages;
    chat->capacity = capacity;
    return true;
}

/* A user's message takes the images and the audio. */
static bool add_message(Chat *chat, const char *role, Slice content, Error *error) {
    Buffer text = {0};
    const size_t media = strcmp(role, "user") ? 0 : chat->media_count;
    ContentPart *parts = calloc(media + 1, sizeof *parts);
    session_clean(content, &text);
    buffer_text(&text, ""); /* so that there is a text even when it is empty */
    if (text.failed || !parts || !grow(chat)) {
        buffer_free(&text);
        free(parts);
        return fail(error, ERROR_MEMORY, "no memory for the conversation");
    }
    memcpy(parts, chat->media, media * sizeof *parts);
    parts[media] = (ContentPart){.kind = CONTENT_TEXT, .text = buffer_view(&text)};
    if (media > 0) chat->media_count = 0;
    chat->messages[chat->count++] = (ChatMessage){.role = role, .parts = parts, .part_count = media + 1};
    return true;
}

static void add_media(Chat *chat, ContentKind kind, const char *path) {
    const char *name = kind == CONTENT_AUDIO ? "audio" : kind == CONTENT_VIDEO ? "videos" : "images";
    Buffer file = {0};
    Error error = {0};
    ContentPart *part = &chat->media[chat->media_count];
    if (chat->media_count == IMAGES_MAX)
        printf("at most %d files\n", IMAGES_MAX);
    else if (!prompt_media_takes(chat->model, kind))
        printf("this model takes no %s\n", name);
    else if (session_read_media(kind, path, &file, part, &error))
        printf("(file %zu of the next message)\n", ++chat->media_count);
    else
        printf("%s\n", error.text);
    if (error.code != ERROR_NONE) buffer_free(&file);
}

/* A text alone, or a list of parts. */
static void write_content(const ChatMessage *message, Buffer *out) {
    const ContentPart *text = &message->parts[message->part_count - 1];
    if (message->part_count == 1) {
        json_write_string(out, text->text);
        return;
    }
    buffer_byte(out, '[');
    for (const ContentPart *part = message->parts; part < text; part++) {
        const char *name = part->kind == CONTENT_AUDIO ? "audio" : part->kind == CONTENT_VIDEO ? "video" : "image";
        buffer_printf(out, "{\"type\": \"%s_url\", \"%s_url\": {\"url\": \"data:%s;base64,", name, name, name);
        base64_encode(part->media.bytes, out);
        buffer_text(out, "\"}}, ");
    }
    buffer_text(out, "{\"type\": \"text\", \"text\": ");
    json_write_string(out, text->text);
    buffer_text(out, "}]");
}

static void save(const Chat *chat, const char *path) {
    Buffer out = {0};
    buffer_text(&out, "[");
    for (size_t i = 0; i < chat->count; i++) {
        buffer_printf(&out, "%s\n  {\"role\": \"%s\", \"content\": ", i ? "," : "", chat->messages[i].role);
        write_content(&chat->messages[i], &out);
        buffer_text(&out, "}");
    }
    buffer_text(&out, "\n]\n");
    FILE *file = out.failed ? NULL : fopen(path, "wx"); /* nothing that is there is overwritten */
    const bool written = file && fwrite(out.data, 1, out.size, file) == out.size;
    const bool closed = file && !fclose(file);
    if (written && closed)
        printf("(%zu messages in %s)\n", chat->count, path);
    else
        printf("cannot write %s: %s\n", path, strerror(errno));
    buffer_free(&out);
}

/* ---- /load ---- */

/* The file of a data URL becomes one of the next message. */
static bool load_file(Chat *chat, ContentKind kind, const Json *url, Error *error) {
    const Slice mark = SLICE(";base64,");
    const Slice text = url && url->type == JSON_STRING ? json_slice(url) : (Slice){0};
    size_t at = 0, size = 0;
    while (at + mark.size <= text.size && memcmp(text.data + at, mark.data, mark.size) != 0) at++;
    if (at + mark.size > text.size || !slice_starts(text, SLICE("data:")) || chat->media_count == IMAGES_MAX)
        return fail(error, ERROR_FORMAT, "a file that is no data URL in base64, or more than %d", IMAGES_MAX);
    const Slice code = {text.data + at + mark.size, text.size - at - mark.size};
    uint8_t *bytes = malloc(base64_bytes_max(code.size) + 1);
    if (!bytes) return fail(error, ERROR_MEMORY, "no memory for a file");
    if (!base64_decode(code, bytes, &size)) {
        free(bytes);
        return fail(error, ERROR_FORMAT, "a file is not base64");
    }
    chat->media[chat->media_count++] =
        (ContentPart){.kind = kind, .media = {.bytes = {(const char *)bytes, size}, .part = "file", .field = "file"}};
    return true;
}

/* Files and a text, as /save writes them. */
static bool load_content(Chat *chat, const Json *content, Slice *text, Error *error) {
    static const struct {
        const char *name;
        ContentKind kind;
    } files[] = {{"image_url", CONTENT_IMAGE}, {"video_url", CONTENT_VIDEO}, {"audio_url", CONTENT_AUDIO}};
    *text = (Slice){"", 0};
    if (content->type == JSON_STRING) *text = json_slice(content);
    if (content->type != JSON_ARRAY) return true;
    for (JSON_EACH(part, content)) {
        const Json *words = json_get(part, "text");
        if (words && words->type == JSON_STRING) *text = json_slice(words);
        for (size_t i = 0; i < COUNT_OF(files); i++) {
            const Json *file = json_get(part, files[i].name);
            if (file && !load_file(chat, files[i].kind, json_get(file, "url"), error)) return false;
        }
    }
    return true;
}

static bool load_messages(Chat *chat, const Json *list, Error *error) {
    static const char *const roles[] = {"system", "user", "assistant"};
    if (list->type != JSON_ARRAY) return fail(error, ERROR_FORMAT, "not a list of messages");
    for (JSON_EACH(message, list)) {
        const Json *role = json_get(message, "role"), *content = json_get(message, "content");
        const char *known = NULL;
        for (size_t i = 0; role && role->type == JSON_STRING && i < COUNT_OF(roles); i++)
            if (slice_is(json_slice(role), roles[i])) known = roles[i];
        if (!known || !content || (content->type != JSON_STRING && content->type != JSON_ARRAY))
            return fail(error, ERROR_FORMAT,
                "a message needs a role (system, user, assistant) and as content a text or a list of parts");
        Slice text;
        if (!load_content(chat, content, &text, error) || !add_message(chat, known, text, error)) return false;
    }
    return true;
}

/* Replaces the conversation; on failure it stays as it was. */
static void load(Chat *chat, const char *path) {
    enum { FILE_BYTES_MAX = 64 << 20 };
    Buffer text = {0};
    Arena arena = {0};
    Error why = {0};
    const size_t before = chat->count;
    forget_media(chat);
    const Json *list =
        file_read(path, FILE_BYTES_MAX, &text, &why) ? json_parse(&arena, buffer_view(&text), &why) : NULL;
    if (list && load_messages(chat, list, &why)) {
        const size_t count = chat->count - before;
        for (size_t i = 0; i < before; i++) free_message(&chat->messages[i]);
        memmove(chat->messages, chat->messages + before, count * sizeof *chat->messages);
        chat->count = count;
        printf("(%zu messages from %s)\n", count, path);
    } else {
        forget_media(chat);
        forget_messages(chat, before);
        printf("cannot load %s: %s\n", path, why.text);
    }
    arena_free(&arena);
    buffer_free(&text);
}

/* ---- /set and /model ---- */

static void set(Chat *chat, const char *line) {
    SamplingArguments *s = &chat->sampling;
    const struct {
        const char *name;
        double *number;
        int64_t *integer;
        double min, max;
    } settings[] = {{"temperature", &s->temperature, NULL, 0, 2}, {"top-p", &s->top_p, NULL, 0, 1},
        {"top-k", NULL, &s->top_k, 0, 1 << 30}, {"min-p", &s->min_p, NULL, 0, 1},
        {"repetition-penalty", &s->repetition_penalty, NULL, 0.01, 2}, {"seed", NULL, &s->seed, -1, 9e15},
        {"max-tokens", NULL, &s->max_tokens, 0, 1 << 30}};
    char name[32] = "", value[32] = "";
    const int words = sscanf(line, " %31s %31s", name, value);
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        char *end = value;
        if (words >= 1 && strcmp(name, settings[i].name) != 0) continue;
        const double number = strtod(value, &end);
        const bool fits = words == 2 && *value && !*end && number >= settings[i].min && number <= settings[i].max &&
            (settings[i].number || number == (double)(int64_t)number);
        if (fits && settings[i].number) *settings[i].number = number;
        if (fits && settings[i].integer) *settings[i].integer = (int64_t)number;
        if (words == 2 && !fits)
            printf("%s: want a %snumber from %g to %g\n", name, settings[i].number ? "" : "whole ", settings[i].min,
                settings[i].max);
        else
            printf("%s %.10g\n", settings[i].name,
                settings[i].number ? *settings[i].number : (double)*settings[i].integer);
        if (words >= 1) return;
    }
    if (words >= 1) printf("there is no setting %s\n", name);
}

/* The conversation goes on with another model; if that cannot be loaded, with the one before. */
static void change_model(Chat *chat, const char *name) {
    Error why = {0};
    Buffer directory = {0};
    char *copy = strdup(name);
    ChatModel *model = copy && named_resolve(name, progress_on_terminal(), &directory, NULL, &why)
        ? session_open(directory.data, chat->engine, &why)
        : NULL;
    buffer_free(&directory);
    if (!model) {
        printf("%s\n", why.text);
        free(copy);
        return;
    }
    chat_model_close(chat->model);
    free(chat->name);
    chat->model = model;
    chat->name = copy;
    printf("(now %s)\n", name);
}

static bool answer_last(Chat *chat, size_t before, Buffer *text, Error *error);

/* The number of messages up to the last one of the user; 0: there is none, which is said. */
static size_t find_last(const Chat *chat) {
    size_t count = chat->count;
    while (count > 0 && strcmp(chat->messages[count - 1].role, "user") != 0) count--;
    if (count == 0) printf("(there is no message yet)\n");
    return count;
}

static void undo(Chat *chat) {
    const size_t count = find_last(chat);
    if (count == 0) return;
    forget_messages(chat, count - 1);
    printf("(%zu messages are left)\n", chat->count);
}

static bool retry(Chat *chat, Error *error) {
    const size_t count = find_last(chat);
    Buffer text = {0};
    if (count == 0) return true;
    forget_messages(chat, count);
    const bool ok = answer_last(chat, count - 1, &text, error);
    buffer_free(&text);
    return ok;
}

/* A line beginning with a slash. */
static bool handle_slash(Chat *chat, const char *line, bool *leave, Error *error) {
    if (!strcmp(line, "/quit") || !strcmp(line, "/exit") || !strcmp(line, "/bye")) {
        *leave = true;
    } else if (!strcmp(line, "/clear")) {
        forget_messages(chat, chat->count && !strcmp(chat->messages[0].role, "system") ? 1 : 0);
        printf("(a new conversation)\n");
    } else if (!strncmp(line, "/system ", 8)) {
        forget_messages(chat, 0);
        if (!add_message(chat, "system", slice_of(line + 8), error)) return false;
        printf("(a new conversation with this system message)\n");
    } else if (!strncmp(line, "/image ", 7)) {
        add_media(chat, CONTENT_IMAGE, line + 7);
    } else if (!strncmp(line, "/video ", 7)) {
        add_media(chat, CONTENT_VIDEO, line + 7);
    } else if (!strncmp(line, "/audio ", 7)) {
        add_media(chat, CONTENT_AUDIO, line + 7);
    } else if (!strncmp(line, "/save ", 6)) {
        save(chat, line + 6);
    } else if (!strncmp(line, "/load ", 6)) {
        load(chat, line + 6);
    } else if (!strcmp(line, "/retry")) {
        return retry(chat, error);
    } else if (!strcmp(line, "/undo")) {
        undo(chat);
    } else if (!strcmp(line, "/set") || !strncmp(line, "/set ", 5)) {
        set(chat, line + 4);
    } else if (!strcmp(line, "/model")) {
        printf("%s\n", chat->name);
    } else if (!strncmp(line, "/model ", 7)) {
        change_model(chat, line + 7);
    } else if (!strcmp(line, "/stats")) {
        session_print_stats(&chat->last, stdout);
    } else {
        if (strcmp(line, "/help")) printf("unknown: %s\n", line);
        fputs(slash_help, stdout);
    }
    return true;
}

/* The answer to the messages. before: how many are kept when there is no room for the last. */
static bool answer_last(Chat *chat, size_t before, Buffer *text, Error *error) {
    const SessionPrompt prompt = {chat->messages, chat->count, NULL};
    buffer_clear(text);
    SessionAnswer answer;
    if (session_answer(chat->model, &prompt, &chat->sampling, &line_input_interrupted, text, &answer, error)) {
        chat->last = answer;
        printf("%s\n",
            answer.finish == FINISH_CANCELLED    ? " [stopped]"
                : answer.finish == FINISH_LENGTH ? " [the answer reached its limit]"
                                                 : "");
        return add_message(chat, "assistant", buffer_view(text), error);
    }
    const bool media = error->code == ERROR_FORMAT || error->code == ERROR_UNSUPPORTED;
    if (error->code != ERROR_LIMIT && !media) return false;
    printf("%s\n(/clear starts a new conversation)\n", error->text); /* full: it can go on without this message */
    forget_messages(chat, before);
    return true;
}

/* One message and its answer. */
static bool take_turn(Chat *chat, Slice line, Buffer *text, Error *error) {
    const size_t before = chat->count;
    return add_message(chat, "user", line, error) && answer_last(chat, before, text, error);
}

static bool converse(Chat *chat, Error *error) {
    Buffer line = {0}, text = {0};
    bool ok = true, leave = false;
    while (ok && !leave && line_input_read(&line)) {
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
    bool ok = named_resolve(arguments.values[0], progress_on_terminal(), &directory, NULL, &error);
    chat.engine = &engine;
    chat.name = strdup(arguments.values[0]);
    chat.model = ok ? session_open(directory.data, &engine, &error) : NULL;
    ok = chat.model && (chat.name || fail(&error, ERROR_MEMORY, "no memory for a name")) &&
        (!system || add_message(&chat, "system", slice_of(system), &error));
    if (ok) {
        const bool terminal = isatty(STDIN_FILENO);
        Error ignored;
        const bool kept = terminal && library_path(&history, &ignored) && file_make_directories(history.data, &ignored);
        if (kept) buffer_text(&history, "/../history");
        line_input_open(kept && !history.failed ? history.data : NULL);
        if (terminal) printf("%s — /help shows commands, Ctrl-C stops an answer, Ctrl-D leaves\n", arguments.values[0]);
        ok = converse(&chat, &error);
        line_input_close();
    }
    forget_messages(&chat, 0);
    forget_media(&chat);
    free(chat.name);
    free(chat.messages);
    chat_model_close(chat.model);
    buffer_free(&directory);
    buffer_free(&history);
    return ok ? 0 : report(&error);
}
