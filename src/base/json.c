/* The JSON reader (RFC 8259, strict). One pass over the text: nodes are appended to one block whose largest size
 * follows from the size of the text; address space for it is reserved and what stays unused is given back. */
#include "base/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_lex.h"
#include "base/json_python.h"
#include "base/map.h"
#include "base/utf8.h"

enum {
    LINEAR_KEYS_MAX = 12,    /* objects up to this size are searched for duplicate keys pair by pair */
    KEYS_AHEAD = 8,          /* keys hashed before the first is looked up; less than LINEAR_KEYS_MAX */
    PATH_MAX_BYTES = 256,    /* longest path in a message; the middle of a longer one is left out */
    EXACT_POWER_MAX = 22,    /* 10^22 is the largest power of ten that a double holds exactly */
    MANTISSA_DIGITS_MAX = 19 /* digits that always fit 64 bits */
};

typedef struct KeySlot {
    uint32_t hash, node; /* node: index from the object on; 0: free, for no key is the object itself */
} KeySlot;

typedef struct Frame {
    Json *container;
    const Json *key; /* OBJECT: the key read last */
} Frame;

typedef struct Reader {
    const char *begin, *end;
    Json *node, *node_end; /* the next node, and where the room ends */
    char *unescaped;       /* where the next string with escapes goes; there is room for all of the text */
    Frame frame[JSON_DEPTH_MAX];
    int depth;
    bool constants; /* Infinity, -Infinity and NaN are values */
    KeySlot *keys;  /* scratch for large objects */
    size_t keys_capacity;
    Error *error;
} Reader;

void json_position(const char *begin, const char *at, size_t *line, size_t *column) {
    *line = *column = 1;
    for (const char *p = begin; p < at; p++) {
        if (*p == '\n') {
            ++*line;
            *column = 1;
        } else if (((uint8_t)*p & 0xC0) != 0x80) {
            ++*column;
        }
    }
}

/* --- Errors --------------------------------------------------------------------------------------------------- */

/* The path is cut on the left: its end says where one is. */
static void path_write(const Reader *reader, Buffer *out) {
    for (int i = 0; i < reader->depth; i++) {
        const Frame *frame = &reader->frame[i];
        if (frame->container->type == JSON_ARRAY) {
            buffer_printf(out, "[%u]", frame->container->size);
        } else if (frame->key) {
            buffer_printf(out, "%s%.*s", out->size ? "." : "", SLICE_ARGS(json_slice(frame->key)));
        }
    }
}

/* Returns NULL, for the scanners to return in turn. */
static const char *fail_at(const Reader *reader, const char *at, ErrorCode code, const char *format, ...)
    PRINTF_LIKE(4, 5);
static const char *fail_at(const Reader *reader, const char *at, ErrorCode code, const char *format, ...) {
    size_t line, column;
    json_position(reader->begin, at, &line, &column);
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);

    Buffer path = {0};
    path_write(reader, &path);
    size_t cut = path.size > PATH_MAX_BYTES ? path.size - PATH_MAX_BYTES : 0;
    while (cut && ((uint8_t)path.data[cut] & 0xC0) == 0x80) cut++;
    fail(reader->error, code, "line %zu, column %zu%s%s%s%s: %s", line, column, path.size ? " (" : "", cut ? "…" : "",
        path.size ? path.data + cut : "", path.size ? ")" : "", what);
    buffer_free(&path);
    return NULL;
}

static const char *fail_expected(const Reader *reader, const char *at, const char *expected) {
    if (at >= reader->end) return fail_at(reader, at, ERROR_FORMAT, "expected %s, but the text ends", expected);
    uint8_t byte = (uint8_t)*at;
    if (byte < 0x20 || byte >= 0x7F) {
        return fail_at(reader, at, ERROR_FORMAT, "expected %s, not the byte 0x%02X", expected, byte);
    }
    return fail_at(reader, at, ERROR_FORMAT, "expected %s, not '%c'", expected, byte);
}

/* --- Scanning ------------------------------------------------------------------------------------------------- */

/* The first quote or backslash; what stands before it is valid. NULL: an error. */
static inline const char *text_end(const Reader *reader, const char *at) {
    for (;;) {
        at = json_string_stop(at, reader->end, true);
        if (at == reader->end) return fail_at(reader, at, ERROR_FORMAT, "the text ends within a string");
        if (*at == '"' || *at == '\\') return at;
        if ((uint8_t)*at < 0x20) {
            return fail_at(
                reader, at, ERROR_FORMAT, "the control code 0x%02X must be escaped in a string", (uint8_t)*at);
        }
        do {
            uint32_t code;
            int length = utf8_decode(at, (size_t)(reader->end - at), &code);
            if (length < 0) {
                return fail_at(reader, at, ERROR_FORMAT, "the byte 0x%02X is not UTF-8", (uint8_t)*at);
            }
            at += length;
        } while (at < reader->end && (uint8_t)*at >= 0x80);
    }
}

/* at: behind "\u". Appends the character and returns what follows it. */
static const char *read_unicode_escape(Reader *reader, const char *at) {
    const char *digits = at;
    int32_t code = json_unicode_escape(&at, reader->end);
    if (code == JSON_NO_DIGITS) {
        return fail_at(reader, at, ERROR_FORMAT, "expected four hexadecimal digits behind \\u");
    }
    if (code == JSON_LONE_SURROGATE) {
        return fail_at(reader, digits - 2, ERROR_FORMAT, "the surrogate \\u%.4s stands alone", digits);
    }
    reader->unescaped += utf8_encode((uint32_t)code, reader->unescaped);
    return at;
}

/* start: the first byte of the string; at: its first backslash. An escape is never longer resolved than written. */
static const char *read_escaped(Reader *reader, const char *start, const char *at, Json *node) {
    char *string = reader->unescaped;
    for (;;) {
        memcpy(reader->unescaped, start, (size_t)(at - start));
        reader->unescaped += at - start;
        if (*at == '"') break;
        at++;
        if (at == reader->end) return fail_at(reader, at, ERROR_FORMAT, "the text ends within a string");
        char c = *at++;
        int value = json_escaped(c);
        if (value >= 0) {
            *reader->unescaped++ = (char)value;
        } else if (c == 'u') {
            at = read_unicode_escape(reader, at);
        } else {
            at = fail_expected(reader, at - 1, "one of \"\\/bfnrtu behind a backslash");
        }
        if (!at) return NULL;
        start = at;
        at = text_end(reader, at);
        if (!at) return NULL;
    }
    node->string = string;
    node->size = (uint32_t)(reader->unescaped - string);
    return at + 1;
}

/* at: behind the opening quote. */
static inline const char *read_string(Reader *reader, const char *at, Json *node) {
    const char *start = at;
    at = text_end(reader, at);
    if (!at) return NULL;
    node->type = JSON_STRING;
    if (*at == '\\') return read_escaped(reader, start, at, node);
    node->string = start;
    node->size = (uint32_t)(at - start);
    return at + 1;
}

/* --- Numbers -------------------------------------------------------------------------------------------------- */

/* A number is not followed by a NUL, as strtod needs it, so it is copied. */
static const char *read_real_slowly(Reader *reader, const char *start, const char *at, double *out) {
    char small[64];
    size_t size = (size_t)(at - start);
    char *copy = size < sizeof small ? small : malloc(size + 1);
    if (!copy) return fail_at(reader, start, ERROR_MEMORY, "no memory for a number of %zu digits", size);
    memcpy(copy, start, size);
    copy[size] = '\0';
    *out = strtod(copy, NULL);
    if (copy != small) free(copy);
    if (!isfinite(*out)) return fail_at(reader, start, ERROR_FORMAT, "the number is too large for a double");
    return at;
}

static const char *read_long(Reader *reader, const char *start, const char *at, Json *node) {
    double value; /* must be one, for those who ask for a double */
    node->type = JSON_LONG;
    node->string = start;
    node->size = (uint32_t)(at - start);
    return read_real_slowly(reader, start, at, &value);
}

static inline bool is_digit(const char *at, const char *end) { return at < end && *at >= '0' && *at <= '9'; }

/* at: a digit or a minus sign. */
static const char *read_number(Reader *reader, const char *at, Json *node) {
    static const double powers[EXACT_POWER_MAX + 1] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
        1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const char *start = at, *end = reader->end;
    bool negative = *at == '-';
    at += negative;
    if (!is_digit(at, end)) return fail_expected(reader, at, "a digit");
    const char *digits = at;
    uint64_t mantissa = 0; /* wraps when there are too many digits, and is then not used */
    while (is_digit(at, end)) mantissa = mantissa * 10 + (uint64_t)(*at++ - '0');
    if (*digits == '0' && at - digits > 1) {
        return fail_at(reader, digits, ERROR_FORMAT, "a number does not begin with a superfluous zero");
    }
    ptrdiff_t count = at - digits;
    bool whole = at == end || (*at != '.' && *at != 'e' && *at != 'E');
    if (whole && count <= MANTISSA_DIGITS_MAX && mantissa <= (uint64_t)INT64_MAX + negative) {
        node->type = JSON_INTEGER;
        node->integer = negative ? (int64_t)(0 - mantissa) : (int64_t)mantissa;
        return at;
    }
    if (whole) return read_long(reader, start, at, node);
    node->type = JSON_REAL;
    ptrdiff_t exponent = 0;
    if (at < end && *at == '.') {
        const char *point = at++;
        if (!is_digit(at, end)) return fail_expected(reader, at, "a digit behind the point");
        while (is_digit(at, end)) mantissa = mantissa * 10 + (uint64_t)(*at++ - '0');
        exponent = point + 1 - at;
        count -= exponent;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        bool minus = at < end && *at == '-';
        if (at < end && (*at == '-' || *at == '+')) at++;
        if (!is_digit(at, end)) return fail_expected(reader, at, "a digit of the exponent");
        int written = 0;
        while (is_digit(at, end)) {
            if (written < 100000) written = written * 10 + (*at - '0');
            at++;
        }
        exponent += minus ? -written : written;
    }
    /* Both operands exact means one rounding: the result is the nearest double (Clinger 1990). */
    bool exact = count <= MANTISSA_DIGITS_MAX && mantissa <= 1ull << 53 && exponent >= -EXACT_POWER_MAX &&
        exponent <= EXACT_POWER_MAX;
    if (!exact) return read_real_slowly(reader, start, at, &node->real);
    double value = exponent < 0 ? (double)mantissa / powers[-exponent] : (double)mantissa * powers[exponent];
    node->real = negative ? -value : value;
    return at;
}

/* --- Duplicate keys ------------------------------------------------------------------------------------------- */

static const char *fail_duplicate(Reader *reader, const Json *key, const char *at) {
    bool in_text = key->string > reader->begin && key->string <= reader->end;
    return fail_at(reader, in_text ? key->string - 1 : at, ERROR_FORMAT, "the key \"%.*s\" appears twice in one object",
        SLICE_ARGS(json_slice(key)));
}

static const char *check_keys_linear(Reader *reader, const Json *object, const char *at) {
    Slice seen[LINEAR_KEYS_MAX];
    int count = 0;
    for (JSON_EACH_PAIR(key, value, object)) {
        Slice name = json_slice(key);
        for (int i = 0; i < count; i++) {
            if (seen[i].size == name.size && slice_equal(seen[i], name)) return fail_duplicate(reader, key, at);
        }
        seen[count++] = name;
    }
    return at;
}

/* False: the object has this key already. */
static bool key_enter(KeySlot *slots, size_t mask, const Json *object, KeySlot entry) {
    size_t i = entry.hash & mask;
    for (; slots[i].node; i = (i + 1) & mask) {
        if (slots[i].hash != entry.hash) continue;
        if (slice_equal(json_slice(object + slots[i].node), json_slice(object + entry.node))) return false;
    }
    slots[i] = entry;
    return true;
}

static const char *check_keys_hashed(Reader *reader, const Json *object, const char *at) {
    size_t capacity = 2;
    while (capacity < (size_t)object->size * 2) capacity *= 2;
    if (capacity > reader->keys_capacity) {
        free(reader->keys);
        reader->keys = malloc(capacity * sizeof *reader->keys);
        reader->keys_capacity = reader->keys ? capacity : 0;
        if (!reader->keys) return fail_at(reader, at, ERROR_MEMORY, "no memory to compare %u keys", object->size);
    }
    memset(reader->keys, 0, capacity * sizeof *reader->keys);
    KeySlot ahead[KEYS_AHEAD] = {{0}}; /* a ring: a slot of a large table is in the cache by the time it is looked at */
    unsigned turn = 0;
    for (JSON_EACH_PAIR(key, value, object)) {
        KeySlot *next = &ahead[turn++ % KEYS_AHEAD];
        if (next->node && !key_enter(reader->keys, capacity - 1, object, *next)) {
            return fail_duplicate(reader, object + next->node, at);
        }
        *next = (KeySlot){.hash = (uint32_t)hash_bytes(key->string, key->size), .node = (uint32_t)(key - object)};
        __builtin_prefetch(&reader->keys[next->hash & (capacity - 1)]);
    }
    for (int i = 0; i < KEYS_AHEAD; i++) {
        KeySlot last = ahead[turn++ % KEYS_AHEAD];
        if (!key_enter(reader->keys, capacity - 1, object, last)) return fail_duplicate(reader, object + last.node, at);
    }
    return at;
}

/* --- Structure ------------------------------------------------------------------------------------------------ */

static inline Json *push(Reader *reader) { return reader->node < reader->node_end ? reader->node++ : NULL; }

static const char *fail_room(const Reader *reader, const char *at) {
    return fail_at(reader, at, ERROR_LIMIT, "the document needs more memory than it may have");
}

static const char *read_word(const Reader *reader, const char *at, Slice word) {
    Slice rest = {at, (size_t)(reader->end - at)};
    if (!slice_starts(rest, word)) return fail_expected(reader, at, "a value");
    return at + word.size;
}

/* What Python's json module writes for numbers that JSON lacks. */
static const char *read_constant(const Reader *reader, const char *at, Json *node) {
    static const char *const words[] = {"Infinity", "-Infinity", "NaN"};
    const Slice rest = {at, (size_t)(reader->end - at)};
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        const size_t size = strlen(words[i]);
        if (!slice_starts(rest, slice_of(words[i]))) continue;
        *node = (Json){.type = JSON_LONG, .size = (uint32_t)size, .string = at};
        return at + size;
    }
    return NULL;
}

/* A key and its colon; at: where the key should begin. */
static inline const char *read_key(Reader *reader, const char *at) {
    at = json_skip_space(at, reader->end);
    Frame *frame = &reader->frame[reader->depth - 1];
    if (at == reader->end || *at != '"') return fail_expected(reader, at, "a key");
    Json *key = push(reader);
    if (!key) return fail_room(reader, at);
    frame->key = NULL;
    at = read_string(reader, at + 1, key);
    if (!at) return NULL;
    frame->key = key;
    at = json_skip_space(at, reader->end);
    if (at == reader->end || *at != ':') return fail_expected(reader, at, "':'");
    return at + 1;
}

/* at: the bracket. Returns what follows it. */
static const char *close_container(Reader *reader, const char *at) {
    Frame *frame = &reader->frame[reader->depth - 1];
    Json *container = frame->container;
    container->end = reader->node;
    if (container->type == JSON_OBJECT && container->size > 1) {
        frame->key = NULL;
        bool small = container->size <= LINEAR_KEYS_MAX;
        if (!(small ? check_keys_linear : check_keys_hashed)(reader, container, at)) return NULL;
    }
    reader->depth--;
    return at + 1;
}

/* Opens the container at the bracket; an empty one is closed at once. */
static const char *open_container(Reader *reader, const char *at, Json *node) {
    if (reader->depth == JSON_DEPTH_MAX) {
        return fail_at(reader, at, ERROR_LIMIT, "nested deeper than %d levels", JSON_DEPTH_MAX);
    }
    bool object = *at == '{';
    *node = (Json){.type = object ? JSON_OBJECT : JSON_ARRAY};
    reader->frame[reader->depth++] = (Frame){.container = node};
    at = json_skip_space(at + 1, reader->end);
    if (at < reader->end && *at == (object ? '}' : ']')) return close_container(reader, at);
    return object ? read_key(reader, at) : at;
}

/* One value, or only the beginning of a container: then reader->depth has grown. */
static inline const char *read_value(Reader *reader, const char *at) {
    at = json_skip_space(at, reader->end);
    if (at == reader->end) return fail_expected(reader, at, "a value");
    Json *node = push(reader);
    if (!node) return fail_room(reader, at);
    const char *end;
    switch (*at) {
    case '"': return read_string(reader, at + 1, node);
    case '{':
    case '[': return open_container(reader, at, node);
    case 't': *node = (Json){.type = JSON_BOOL, .boolean = true}; return read_word(reader, at, SLICE("true"));
    case 'f': *node = (Json){.type = JSON_BOOL}; return read_word(reader, at, SLICE("false"));
    case 'n': *node = (Json){.type = JSON_NULL}; return read_word(reader, at, SLICE("null"));
    default:
        if (reader->constants && (end = read_constant(reader, at, node))) return end;
        if (*at != '-' && !is_digit(at, reader->end)) return fail_expected(reader, at, "a value");
        node->size = 0;
        return read_number(reader, at, node);
    }
}

/* Behind a value: closes what ends here. Returns where the next value begins, or the end of the document at depth 0. */
static inline const char *read_separator(Reader *reader, const char *at) {
    while (reader->depth > 0) {
        Frame *frame = &reader->frame[reader->depth - 1];
        bool object = frame->container->type == JSON_OBJECT;
        at = json_skip_space(at, reader->end);
        char c = at < reader->end ? *at : '\0';
        if (c != ',' && c != (object ? '}' : ']')) {
            return fail_expected(reader, at, object ? "',' or '}'" : "',' or ']'");
        }
        frame->container->size++;
        if (c == ',') return object ? read_key(reader, at + 1) : at + 1;
        at = close_container(reader, at);
        if (!at) return NULL;
    }
    return at;
}

static bool read_document(Reader *reader) {
    const char *at = reader->begin;
    if (slice_starts((Slice){at, (size_t)(reader->end - at)}, SLICE("\xEF\xBB\xBF"))) {
        fail_at(reader, at, ERROR_FORMAT, "the text begins with a byte-order mark");
        return false;
    }
    do {
        int depth = reader->depth;
        at = read_value(reader, at);
        if (!at) return false;
        if (reader->depth > depth) continue;
        at = read_separator(reader, at);
        if (!at) return false;
    } while (reader->depth > 0);
    at = json_skip_space(at, reader->end);
    if (at == reader->end) return true;
    fail_expected(reader, at, "the end of the text");
    return false;
}

/* A value and the comma, colon or closing bracket that belongs to it take two bytes; only the containers still open,
 * and the last value, can have one. */
static size_t nodes_max(const Arena *arena, size_t text_size, size_t unescaped) {
    size_t nodes = text_size / 2 + JSON_DEPTH_MAX + 2;
    if (!arena->limit) return nodes;
    size_t left = arena->limit > arena->used ? arena->limit - arena->used : 0;
    left = (left > unescaped ? left - unescaped : 0) / sizeof(Json);
    return nodes < left ? nodes : left;
}

static const Json *parse(Arena *arena, Slice text, bool constants, Error *error) {
    if (text.size >= UINT32_MAX) {
        fail(error, ERROR_LIMIT, "the JSON text has %zu bytes; at most 4 GiB can be read", text.size);
        return NULL;
    }
    if (!text.data) text = SLICE("");
    bool escapes = memchr(text.data, '\\', text.size) != NULL;
    size_t unescaped = escapes ? (text.size + 15) / 16 * 16 : 0;
    size_t nodes = nodes_max(arena, text.size, unescaped);
    char *block = arena_reserve(arena, unescaped + nodes * sizeof(Json));
    if (!block) {
        fail(error, ERROR_MEMORY, "no memory for a JSON text of %zu bytes", text.size);
        return NULL;
    }
    Json *root = (Json *)(block + unescaped);
    Reader reader = {.begin = text.data,
        .end = text.data + text.size,
        .node = root,
        .node_end = root + nodes,
        .unescaped = block,
        .constants = constants,
        .error = error};
    bool ok = read_document(&reader);
    free(reader.keys);
    bool kept = arena_keep(arena, block, ok ? (size_t)((char *)reader.node - block) : 0);
    if (ok && !kept) fail(error, ERROR_LIMIT, "the document needs more memory than it may have");
    return ok && kept ? root : NULL;
}

const Json *json_parse(Arena *arena, Slice text, Error *error) { return parse(arena, text, false, error); }
const Json *json_parse_python(Arena *arena, Slice text, Error *error) { return parse(arena, text, true, error); }

/* --- Access --------------------------------------------------------------------------------------------------- */

const Json *json_get(const Json *object, const char *key) {
    if (!object || object->type != JSON_OBJECT) return NULL;
    Slice name = slice_of(key);
    for (JSON_EACH_PAIR(other, value, object)) {
        if (slice_equal(json_slice(other), name)) return value;
    }
    return NULL;
}

double json_number(const Json *number) {
    if (number->type == JSON_INTEGER) return (double)number->integer;
    if (number->type == JSON_REAL) return number->real;
    char digits[512] = ""; /* zeros may not lead, so a double has no more than 309 */
    memcpy(digits, number->string, number->size < sizeof digits ? number->size : sizeof digits - 1);
    return strtod(digits, NULL);
}

const char *json_type_name(const Json *node) {
    static const char *const names[] = {"null", "a boolean", "an integer", "an integer beyond 64 bits", "a number",
        "a string", "an array", "an object"};
    return node ? names[node->type] : "nothing";
}
