/* Errors as text with a code, and the end of the program for broken invariants. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* Texts quote bytes from outside; what reaches a terminal or a log stays one line of UTF-8 without control codes. */
static void text_make_printable(char *text) {
    size_t size = strlen(text);
    for (size_t i = 0; i < size;) {
        uint32_t code;
        int length = utf8_decode(text + i, size - i, &code);
        if (length < 0) {
            bool cut_here = i + (size_t)-length == size;
            if (cut_here && utf8_incomplete_tail((Slice){text, size}) > 0) {
                text[i] = '\0';
                return;
            }
            memset(text + i, '?', (size_t)-length);
            i += (size_t)-length;
            continue;
        }
        if (code == '\n' || code == '\t' || code == '\r') {
            text[i] = ' ';
        } else if (code < 0x20 || code == 0x7F) {
            text[i] = '?';
        } else if (code >= 0x80 && code < 0xA0) {
            memset(text + i, '?', (size_t)length);
        }
        i += (size_t)length;
    }
}

bool fail(Error *error, ErrorCode code, const char *format, ...) {
    if (!error) return false;
    char text[ERROR_TEXT_MAX]; /* the arguments may point into error->text */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    text_make_printable(text);
    error->code = code;
    memcpy(error->text, text, strlen(text) + 1);
    return false;
}

bool fail_while(Error *error, const char *format, ...) {
    if (!error) return false;
    char text[ERROR_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    int wrote = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    size_t used = wrote < 0 ? 0 : (size_t)wrote < sizeof text ? (size_t)wrote : sizeof text - 1;
    snprintf(text + used, sizeof text - used, ": %s", error->text);
    text_make_printable(text);
    memcpy(error->text, text, strlen(text) + 1);
    return false;
}

void check_failed(const char *condition, const char *file, int line) {
    fprintf(stderr, "apus: broken invariant at %s:%d: %s\n", file, line, condition);
    abort();
}
