/* A growing byte buffer with a limit. Failure (limit or memory) is sticky: write on, ask once at the end.
 * Threads: one at a time. */
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/slice.h"

typedef struct Buffer {
    char *data; /* size bytes, always followed by a NUL once something was written */
    size_t size, capacity;
    size_t limit; /* largest size; 0 = none */
    bool failed;  /* something did not fit: what is in data is a whole number of earlier writes */
    bool limited; /* the limit was in the way, not the memory */
} Buffer;

void buffer_append(Buffer *buffer, const void *bytes, size_t size);
void buffer_slice(Buffer *buffer, Slice text);
void buffer_text(Buffer *buffer, const char *text);
void buffer_byte(Buffer *buffer, char byte);
void buffer_printf(Buffer *buffer, const char *format, ...) PRINTF_LIKE(2, 3);
NODISCARD bool buffer_reserve(Buffer *buffer, size_t more); /* room for `more` bytes beyond size */
void buffer_clear(Buffer *buffer);                          /* keeps the memory, clears failed */
void buffer_free(Buffer *buffer);                           /* zeroes the struct but for its limit */
/* The reason why a buffer failed: ERROR_LIMIT or ERROR_MEMORY. */
static inline ErrorCode buffer_failure(const Buffer *buffer) { return buffer->limited ? ERROR_LIMIT : ERROR_MEMORY; }
static inline Slice buffer_view(const Buffer *buffer) { return (Slice){buffer->data, buffer->size}; }
