/* Strict JSON (RFC 8259): reader into an arena, writer into a buffer.
 *
 * Reader: UTF-8 is checked, escapes are resolved, duplicate keys, lone surrogates, trailing bytes, a byte-order mark
 * and nesting deeper than JSON_DEPTH_MAX are refused; the error names line, column and the path ("model.vocab"). The
 * result is a flat array of nodes in document order: a container is followed by its children (an object by key, value,
 * key, value …), so walking is a pointer increment. Strings without escapes and integers beyond 64 bits point into the
 * text: it must outlive the nodes. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "base/slice.h"

enum { JSON_DEPTH_MAX = 128 };

typedef enum JsonType {
    JSON_NULL,
    JSON_BOOL,
    JSON_INTEGER, /* a number without fraction and exponent that fits int64 */
    JSON_LONG,    /* one that does not: its digits stay as they are written */
    JSON_REAL,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
} JsonType;

typedef struct Json {
    uint32_t type; /* JsonType */
    uint32_t size; /* STRING, LONG: bytes. ARRAY: elements. OBJECT: pairs */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char *string;     /* STRING, LONG: not NUL-terminated; a string may contain NUL bytes */
        const struct Json *end; /* ARRAY, OBJECT: the node after the last child */
    };
} Json;

/* The root, or NULL. limit_bytes of memory: the arena's limit. */
NODISCARD const Json *json_parse(Arena *arena, Slice text, Error *error);

static inline const Json *json_first(const Json *container) { return container + 1; }
static inline const Json *json_next(const Json *node) { return node->type >= JSON_ARRAY ? node->end : node + 1; }
/* for (JSON_EACH(child, array)) …  and  for (JSON_EACH_PAIR(key, value, object)) … */
#define JSON_EACH(child, container)                                                                                    \
    const Json *child = json_first(container);                                                                         \
    child != (container)->end;                                                                                         \
    child = json_next(child)
#define JSON_EACH_PAIR(key, value, object)                                                                             \
    const Json *key = json_first(object), *value = key + 1;                                                            \
    key != (object)->end;                                                                                              \
    key = json_next(value), value = key + 1

/* The value of a key, or NULL when absent. object may be NULL or of another type: NULL. Linear. */
const Json *json_get(const Json *object, const char *key);
static inline Slice json_slice(const Json *string) { return (Slice){string->string, string->size}; }
static inline bool json_is_number(const Json *j) { return j && j->type >= JSON_INTEGER && j->type <= JSON_REAL; }
double json_number(const Json *number);       /* the nearest double */
const char *json_type_name(const Json *node); /* "a string", "null", "nothing" for NULL: for messages */

/* Writer: appends one value. Strings are escaped minimally; bytes that are not UTF-8 become U+FFFD. */
void json_write_string(Buffer *out, Slice text);
void json_write_number(Buffer *out, double value); /* shortest text that reads back equal; NaN and infinities: null */
void json_write_integer(Buffer *out, int64_t value);
void json_write(Buffer *out, const Json *node); /* a whole tree, compact */
