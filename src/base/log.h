/* Log lines on standard error: "12:00:01.234 info  message key=value". Only engine, server and cli log; lower layers
 * return errors. Prompts and answers are never logged at the default level. Threads: any. */
#pragma once
#include "base/error.h"

typedef enum LogLevel { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR } LogLevel;
void log_set_level(LogLevel level);
void log_line(LogLevel level, const char *format, ...) PRINTF_LIKE(2, 3);
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
