/* Log lines on standard error, each one write, so that lines of several threads do not mix. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOG_LINE_MAX = 4096 };

static atomic_int log_level = LOG_INFO;

void log_set_level(LogLevel level) { atomic_store_explicit(&log_level, (int)level, memory_order_relaxed); }

void log_line(LogLevel level, const char *format, ...) {
    static const char *const names[] = {"debug", "info ", "warn ", "error"};
    if ((int)level < atomic_load_explicit(&log_level, memory_order_relaxed)) return;
    struct timespec now;
    struct tm local;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);

    char line[LOG_LINE_MAX];
    int head = snprintf(line, sizeof line, "%02d:%02d:%02d.%03d %s ", local.tm_hour, local.tm_min, local.tm_sec,
        (int)(now.tv_nsec / 1000000), names[level]);
    va_list arguments;
    va_start(arguments, format);
    int wrote = vsnprintf(line + head, sizeof line - (size_t)head, format, arguments);
    va_end(arguments);
    if (wrote < 0) return;
    size_t size = strlen(line);
    for (size_t i = (size_t)head; i < size; i++) { /* one line, and no control codes for the terminal */
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7F) line[i] = ' ';
    }
    line[size++] = '\n'; /* over the NUL */
    for (size_t done = 0; done < size;) {
        ssize_t n = write(STDERR_FILENO, line + done, size - done);
        if (n <= 0) return;
        done += (size_t)n;
    }
}
