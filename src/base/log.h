/* Log lines on standard error, each one write: "12:00:01.234 info  message name=value", or a JSON object each. A
 * pipe that is full is waited for once, for 0.1 s; until it is read again lines are lost, and counted. Only
 * engine, server and cli log; lower layers return errors. Prompts and answers are never logged. Threads: any. */
#pragma once
#include "base/error.h"

typedef enum LogLevel { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR } LogLevel;
typedef enum LogFormat { LOG_TEXT, LOG_JSON } LogFormat;
void log_set_level(LogLevel level);
void log_set_format(LogFormat format);
void log_line(LogLevel level, const char *format, ...) PRINTF_LIKE(2, 3);
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)

/* A value with its name, for those who read logs by machine. */
typedef struct LogField {
    const char *name;
    const char *text; /* NULL: the number */
    double number;    /* up to a thousandth */
} LogField;
/* The message and the fields; those without a name are left out. */
void log_fields(LogLevel level, const char *message, const LogField *fields, int count);
