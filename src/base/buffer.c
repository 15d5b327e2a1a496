/* A growing byte buffer: capacity doubles, the NUL behind the data is always within it. */
#include "base/buffer.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

enum { BUFFER_FIRST = 64 };

bool buffer_reserve(Buffer *buffer, size_t more) {
    size_t size, needed;
    if (buffer->failed) return false;
    bool fits = size_add(buffer->size, more, &size) && size_add(size, 1, &needed);
    buffer->limited = buffer->limit && (!fits || size > buffer->limit);
    if (!fits || needed > PTRDIFF_MAX || buffer->limited) {
        buffer->failed = true;
        return false;
    }
    if (needed <= buffer->capacity) return true;
    size_t capacity = buffer->capacity ? buffer->capacity : BUFFER_FIRST;
    while (capacity < needed) {
        if (!size_mul(capacity, 2, &capacity)) capacity = needed;
    }
    if (buffer->limit && capacity > buffer->limit) capacity = buffer->limit + 1; /* needed ≤ limit + 1 */
    char *data = realloc(buffer->data, capacity);
    if (!data) {
        buffer->failed = true;
        return false;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

void buffer_append(Buffer *buffer, const void *bytes, size_t size) {
    if (!buffer_reserve(buffer, size)) return;
    if (size) memcpy(buffer->data + buffer->size, bytes, size);
    buffer->size += size;
    buffer->data[buffer->size] = '\0';
}

void buffer_slice(Buffer *buffer, Slice text) { buffer_append(buffer, text.data, text.size); }

void buffer_text(Buffer *buffer, const char *text) { buffer_append(buffer, text, strlen(text)); }

void buffer_byte(Buffer *buffer, char byte) {
    if (buffer->failed || buffer->capacity - buffer->size < 2 || (buffer->limit && buffer->size >= buffer->limit)) {
        buffer_append(buffer, &byte, 1);
        return;
    }
    buffer->data[buffer->size++] = byte;
    buffer->data[buffer->size] = '\0';
}

void buffer_printf(Buffer *buffer, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0) {
        buffer->failed = true;
    } else if (buffer_reserve(buffer, (size_t)length)) {
        vsnprintf(buffer->data + buffer->size, (size_t)length + 1, format, again);
        buffer->size += (size_t)length;
    }
    va_end(again);
}

void buffer_clear(Buffer *buffer) {
    buffer->size = 0;
    buffer->failed = buffer->limited = false;
    if (buffer->data) buffer->data[0] = '\0';
}

void buffer_free(Buffer *buffer) {
    free(buffer->data);
    *buffer = (Buffer){.limit = buffer->limit};
}
