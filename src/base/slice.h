/* A borrowed view of bytes. Not NUL-terminated. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct Slice {
    const char *data;
    size_t size;
} Slice;

#define SLICE(literal) ((Slice){(literal), sizeof(literal) - 1})
/* For printf: printf("%.*s", SLICE_ARGS(s)). For messages and names: of more than SLICE_ARGS_MAX bytes the first are
 * printed, as printf counts in int; what must be written whole goes through a Buffer or fwrite. */
enum { SLICE_ARGS_MAX = 1 << 20 };
#define SLICE_ARGS(s) ((int)((s).size < SLICE_ARGS_MAX ? (s).size : SLICE_ARGS_MAX)), ((s).data ? (s).data : "")
/* The same for messages that quote names from outside: what follows the name must still fit. */
#define SLICE_SHOWN(s) ((int)((s).size < 100 ? (s).size : 100)), ((s).data ? (s).data : "")
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static inline Slice slice_of(const char *text) { return (Slice){text, strlen(text)}; }
static inline bool slice_equal(Slice a, Slice b) {
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}
static inline bool slice_is(Slice a, const char *text) { return slice_equal(a, slice_of(text)); }
static inline bool slice_starts(Slice a, Slice prefix) {
    return a.size >= prefix.size && (prefix.size == 0 || memcmp(a.data, prefix.data, prefix.size) == 0);
}
