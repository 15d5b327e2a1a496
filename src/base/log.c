#include "base/log.h"

#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/thread.h"
#include "base/utf8.h"

enum { LOG_LINE_MAX = 4096, LOG_WAIT_MS = 100 };

static atomic_int log_level = LOG_INFO, log_format = LOG_TEXT;

void log_set_level(LogLevel level) { atomic_store_explicit(&log_level, (int)level, memory_order_relaxed); }
void log_set_format(LogFormat format) { atomic_store_explicit(&log_format, (int)format, memory_order_relaxed); }

static bool wanted(LogLevel level) { return (int)level >= atomic_load_explicit(&log_level, memory_order_relaxed); }
static bool as_json(void) { return atomic_load_explicit(&log_format, memory_order_relaxed) == LOG_JSON; }

/* On the stack: what is logged when memory ends is worth most. What does not fit is cut. */
typedef struct Line {
    char text[LOG_LINE_MAX];
    size_t size;
} Line;

enum { END_ROOM = 4 }; /* for what closes a line that was cut */

static void add(Line *line, const char *text, size_t size) {
    const size_t room = sizeof line->text - END_ROOM - line->size;
    if (size > room) size = room;
    memcpy(line->text + line->size, text, size);
    line->size += size;
}

static void add_text(Line *line, const char *text) { add(line, text, strlen(text)); }

/* The bytes of a control code: below the space, or of the other 32, which terminals take in UTF-8, too; 0: it is none.
 */
static size_t control_size(const char *text) {
    const unsigned char c = (unsigned char)text[0], next = c ? (unsigned char)text[1] : 0;
    return c < 0x20 || c == 0x7F ? 1 : c == 0xC2 && next >= 0x80 && next < 0xA0 ? 2 : 0;
}

/* Between quotes, as JSON has it. */
static void add_quoted(Line *line, const char *text) {
    const bool utf8 = utf8_valid(slice_of(text));
    add(line, "\"", 1);
    for (; *text; text++) {
        char code[8];
        const unsigned char c = (unsigned char)*text;
        const bool within = utf8 && (c & 0xC0) == 0x80; /* a character, which is not cut */
        if (!within && line->size >= sizeof line->text - 2 * END_ROOM - 6) break;
        if (utf8 && control_size(text) == 2)
            add(line, code, (size_t)snprintf(code, sizeof code, "\\u%04x", (unsigned char)*++text));
        else if (c < 0x20 || c == 0x7F || (c > 0x7F && !utf8))
            add(line, code, (size_t)snprintf(code, sizeof code, "\\u%04x", c));
        else if (c == '"' || c == '\\')
            add(line, (char[]){'\\', (char)c}, 2);
        else
            add(line, text, 1);
    }
    add(line, "\"", 1);
}

static void begin(Line *line, LogLevel level, const char *message) {
    static const char *const names[] = {"debug", "info", "warn", "error"};
    struct timespec now;
    struct tm parts;
    char head[64];
    clock_gettime(CLOCK_REALTIME, &now);
    const int ms = (int)(now.tv_nsec / 1000000);
    line->size = 0;
    if (!as_json()) {
        localtime_r(&now.tv_sec, &parts);
        snprintf(head, sizeof head, "%02d:%02d:%02d.%03d %-5s ", parts.tm_hour, parts.tm_min, parts.tm_sec, ms,
            names[level]);
        add_text(line, head);
        const size_t start = line->size;
        add_text(line, message);
        line->text[line->size] = '\0';
        for (size_t i = start, n; i < line->size; i += n ? n : 1) { /* one line, no control codes for the terminal */
            n = control_size(line->text + i);
            memset(line->text + i, ' ', n);
        }
        return;
    }
    strftime(head, sizeof head, "{\"time\":\"%Y-%m-%dT%H:%M:%S", gmtime_r(&now.tv_sec, &parts));
    add_text(line, head);
    snprintf(head, sizeof head, ".%03dZ\",\"level\":\"%s\",\"message\":", ms, names[level]);
    add_text(line, head);
    add_quoted(line, message);
}

static void finish(Line *line) {
    if (as_json()) line->text[line->size++] = '}';
    line->text[line->size++] = '\n';
}

/* False: it would have had to wait for longer. A pipe that takes anything takes LOG_LINE_MAX bytes at once (PIPE_BUF).
 */
static bool put(const Line *line, int wait_ms) {
    struct pollfd file = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&file, 1, wait_ms) == 0) return false;
    for (size_t done = 0; done < line->size;) {
        const ssize_t n = write(STDERR_FILENO, line->text + done, line->size - done);
        if (n <= 0) break;
        done += (size_t)n;
    }
    return true;
}

/* The reader of the log may have stopped: the server goes on without it, and logs later how much is missing. */
static void end(Line *line) {
    static Mutex mutex = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t lost; /* since the last line that was written */
    finish(line);
    mutex_lock(&mutex);
    if (lost) {
        char message[64];
        Line notice;
        snprintf(message, sizeof message, "%llu lines were not read in time and are lost", (unsigned long long)lost);
        begin(&notice, LOG_WARN, message);
        finish(&notice);
        if (put(&notice, 0)) lost = 0;
    }
    if (lost || !put(line, LOG_WAIT_MS)) lost++;
    mutex_unlock(&mutex);
}

void log_line(LogLevel level, const char *format, ...) {
    if (!wanted(level)) return;
    char message[LOG_LINE_MAX / 2];
    va_list arguments;
    va_start(arguments, format);
    const int wrote = vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (wrote < 0) return;
    Line line;
    begin(&line, level, message);
    end(&line);
}

static bool is_plain(const char *text) {
    for (const char *c = text; *c; c++)
        if (*c <= ' ' || *c > '~' || *c == '"' || *c == '=' || *c == '\\') return false;
    return *text;
}

void log_fields(LogLevel level, const char *message, const LogField *fields, int count) {
    if (!wanted(level)) return;
    Line line;
    begin(&line, level, message);
    for (int i = 0; i < count; i++) {
        const LogField *field = &fields[i];
        const size_t value = field->text ? strlen(field->text) : 0, name = field->name ? strlen(field->name) : 0;
        if (!name || line.size + name + 6 * value + 64 > sizeof line.text) continue; /* whole, or not at all */
        add_text(&line, as_json() ? ",\"" : " ");
        add_text(&line, field->name);
        add_text(&line, as_json() ? "\":" : "=");
        char number[32];
        snprintf(number, sizeof number, "%.15g", round(field->number * 1000) / 1000);
        if (!field->text)
            add_text(&line, number);
        else if (as_json() || !is_plain(field->text))
            add_quoted(&line, field->text);
        else
            add_text(&line, field->text);
    }
    end(&line);
}
