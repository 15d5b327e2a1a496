/* State of the regular-expression parser and its parts: classes and escapes (regex_class.c), everything else
 * (regex_parse.c). Internal to both. */
#pragma once
#include <string.h>

#include "base/utf8.h"
#include "text/regex/regex_ast.h"

enum { REGEX_ASCII = 128 };

typedef struct Parser {
    Arena *arena;
    Slice pattern;
    size_t at;
    bool ecma; /* the dialect */
    int depth, depth_max;
    bool fold;                          /* (?i) */
    bool dot_all;                       /* (?m) of Oniguruma, s of ECMA-262: the dot takes line ends too */
    const CharSet *single[REGEX_ASCII]; /* sets of one character without fold, made once */
    Error *error;
} Parser;

/* Both: NULL, with an error that names the byte. */
static inline void *parser_fail(Parser *parser, const char *what) {
    fail(parser->error, ERROR_FORMAT, "regular expression, byte %zu: %s", parser->at, what);
    return NULL;
}
static inline void *parser_unsupported(Parser *parser, const char *what) {
    fail(parser->error, ERROR_UNSUPPORTED, "regular expression, byte %zu: %s is not supported", parser->at, what);
    return NULL;
}
static inline void *parser_no_memory(Parser *parser) {
    fail(parser->error, arena_failure(parser->arena),
        parser->arena->limited ? "a regular expression takes too much memory" : "no memory for a regular expression");
    return NULL;
}
static inline bool parser_deeper(Parser *parser) {
    if (++parser->depth <= parser->depth_max) return true;
    return fail(parser->error, ERROR_LIMIT,
        "regular expression, byte %zu: groups and classes are nested more than %d deep", parser->at, parser->depth_max);
}

static inline bool parser_at_end(const Parser *parser) { return parser->at >= parser->pattern.size; }
static inline char parser_peek(const Parser *parser) {
    return parser_at_end(parser) ? '\0' : parser->pattern.data[parser->at];
}
static inline bool parser_looking_at(const Parser *parser, const char *text) {
    Slice rest = {parser->pattern.data + parser->at, parser->pattern.size - parser->at};
    return slice_starts(rest, slice_of(text));
}
static inline bool parser_accept(Parser *parser, const char *text) {
    if (!parser_looking_at(parser, text)) return false;
    parser->at += strlen(text);
    return true;
}
static inline uint32_t parser_next_code(Parser *parser) {
    uint32_t code;
    int length = utf8_decode(parser->pattern.data + parser->at, parser->pattern.size - parser->at, &code);
    parser->at += (size_t)(length < 0 ? -length : length);
    return code;
}

/* ---- regex_class.c. NULL or false: an error ---- */

CharSet *charset_new(Parser *parser); /* empty; folded as the parser's flag says */
bool charset_add_range(Parser *parser, CharSet *set, uint32_t first, uint32_t last);
bool charset_add_ranges(Parser *parser, CharSet *set, const UnicodeRange *ranges, size_t count);
/* Behind a backslash. A class escape is added to set (*single = false); a character is returned in *code. */
bool parser_escape(Parser *parser, CharSet *set, bool *single, uint32_t *code);
/* At the opening bracket. [^a&&b] negates the whole of a&&b. */
CharSet *parser_class(Parser *parser);
CharSet *parser_ecma_class(Parser *parser); /* at the opening bracket */
