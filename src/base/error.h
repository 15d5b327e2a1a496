/* base/: what every program needs and no model: errors, arenas, buffers, maps, files, JSON, clocks, threads. Nothing
 * here knows tensors or text.
 *
 * Errors are values owned by the caller. A function that can fail for reasons outside the program (files, requests,
 * capacity) returns false or NULL and fills the Error it was given; callers add context on the way up. Bugs hit CHECK.
 * Threads: an Error belongs to one thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum { ERROR_TEXT_MAX = 1024 };

typedef enum ErrorCode {
    ERROR_NONE,
    ERROR_USAGE,       /* the command line, an option */
    ERROR_NOT_FOUND,   /* a file, a model, a tensor */
    ERROR_IO,          /* the operating system said no; the text carries its reason */
    ERROR_FORMAT,      /* bytes from outside that break their format */
    ERROR_UNSUPPORTED, /* well-formed, but nothing here can do it */
    ERROR_LIMIT,       /* a named limit: context, queue, size, depth */
    ERROR_BUSY,        /* a queue is full: the same call may succeed later */
    ERROR_MEMORY,      /* an allocation failed */
    ERROR_CANCELLED,
    ERROR_DEVICE, /* a backend fault */
} ErrorCode;

typedef struct Error {
    ErrorCode code;
    char text[ERROR_TEXT_MAX]; /* UTF-8, one line, no final full stop; longer text is cut */
} Error;

#define NODISCARD __attribute__((warn_unused_result))
#define PRINTF_LIKE(text, first) __attribute__((format(printf, text, first)))

/* Sets the error and returns false: `return fail(error, ERROR_FORMAT, "…")`. error may be NULL. */
bool fail(Error *error, ErrorCode code, const char *format, ...) PRINTF_LIKE(3, 4);
/* Puts "context: " in front of an error already set and returns false. */
bool fail_while(Error *error, const char *format, ...) PRINTF_LIKE(2, 3);

/* A broken invariant of ours: prints and aborts, in release builds too. Never applied to bytes from outside. */
#define CHECK(condition) ((condition) ? (void)0 : check_failed(#condition, __FILE__, __LINE__))
_Noreturn void check_failed(const char *condition, const char *file, int line);
