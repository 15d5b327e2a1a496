/* Regular expressions: from a pattern to a tree. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/regex/regex_program.h"
#include "text/unicode/unicode.h"

enum { RANGES_PER_SET_MAX = 4096 };

typedef struct Parser {
    Arena *arena;
    Slice pattern;
    size_t at;
    int depth;
    bool fold;    /* (?i) */
    bool dot_all; /* (?m): the dot takes line feeds too */
    Error *error;
} Parser;

static Node *parse_alternatives(Parser *parser);
static CharSet *parse_class(Parser *parser);

static void *parse_fail(Parser *parser, const char *what) {
    fail(parser->error, ERROR_FORMAT, "regular expression, byte %zu: %s", parser->at, what);
    return NULL;
}
static void *parse_unsupported(Parser *parser, const char *what) {
    fail(parser->error, ERROR_UNSUPPORTED, "regular expression, byte %zu: %s is not supported", parser->at, what);
    return NULL;
}
static void *parse_no_memory(Parser *parser) {
    fail(parser->error, ERROR_MEMORY, "no memory for a regular expression");
    return NULL;
}

static bool at_end(const Parser *parser) { return parser->at >= parser->pattern.size; }
static char peek(const Parser *parser) { return at_end(parser) ? '\0' : parser->pattern.data[parser->at]; }
static bool looking_at(const Parser *parser, const char *text) {
    Slice rest = {parser->pattern.data + parser->at, parser->pattern.size - parser->at};
    return slice_starts(rest, slice_of(text));
}
static bool accept(Parser *parser, const char *text) {
    if (!looking_at(parser, text)) return false;
    parser->at += strlen(text);
    return true;
}
static uint32_t next_code(Parser *parser) {
    uint32_t code;
    int length = utf8_decode(parser->pattern.data + parser->at, parser->pattern.size - parser->at, &code);
    parser->at += (size_t)(length < 0 ? -length : length);
    return code;
}

/* --- Sets ----------------------------------------------------------------------------------------------------- */

static CharSet *set_new(Parser *parser) {
    CharSet *set = arena_alloc(parser->arena, 1, sizeof *set);
    if (!set) return parse_no_memory(parser);
    set->fold = parser->fold;
    return set;
}

static bool set_add_range(Parser *parser, CharSet *set, uint32_t first, uint32_t last) {
    if (set->range_count >= RANGES_PER_SET_MAX) return parse_fail(parser, "too many ranges in one class");
    if ((set->range_count & (set->range_count - 1)) == 0) { /* full at each power of two */
        size_t capacity = set->range_count ? set->range_count * 2 : 1;
        UnicodeRange *ranges = arena_alloc(parser->arena, capacity, sizeof *ranges);
        if (!ranges) return parse_no_memory(parser);
        if (set->range_count) memcpy(ranges, set->ranges, set->range_count * sizeof *ranges);
        set->ranges = ranges;
    }
    set->ranges[set->range_count++] = (UnicodeRange){first, last};
    return true;
}

static void set_add_child(CharSet *set, CharSet *child) {
    child->sibling = set->child;
    set->child = charset_finish(child);
}

/* What is not of the categories. Case plays no part in it. */
static bool set_add_negated(Parser *parser, CharSet *set, uint32_t categories) {
    CharSet *item = set_new(parser);
    if (!item) return false;
    item->categories = categories;
    item->negated = true;
    item->fold = false;
    set_add_child(set, item);
    return true;
}

/* --- Escapes -------------------------------------------------------------------------------------------------- */

/* Categories by their two letters, or by the first, which stands for all that begin with it, or by a word. 0: none. */
static uint32_t categories_named(const char *name, size_t size) {
    static const char letters[CATEGORY_COUNT][3] = {"cn", "lu", "ll", "lt", "lm", "lo", "mn", "mc", "me", "nd", "nl",
        "no", "pc", "pd", "ps", "pe", "pi", "pf", "po", "sm", "sc", "sk", "so", "zs", "zl", "zp", "cc", "cf", "co",
        "cs", "cc"};
    static const struct {
        const char *name;
        uint32_t categories;
    } words[] = {{"letter", UNICODE_L}, {"mark", UNICODE_M}, {"number", UNICODE_N}, {"digit", UNICODE_SET(CATEGORY_ND)},
        {"punctuation", UNICODE_P}, {"punct", UNICODE_P}, {"symbol", UNICODE_S}, {"separator", UNICODE_Z},
        {"space", UNICODE_WHITE}, {"whitespace", UNICODE_WHITE}, {"any", UNICODE_SETS(CATEGORY_CN, CATEGORY_CC_SPACE)}};
    uint32_t found = 0;
    for (unsigned i = 0; i < CATEGORY_COUNT; i++) {
        const char first[] = {letters[i][0], '\0'};
        bool named = unicode_same_name(name, size, letters[i]) || unicode_same_name(name, size, first);
        if (named) found |= UNICODE_SET(i);
    }
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (unicode_same_name(name, size, words[i].name)) found = words[i].categories;
    }
    return found;
}

/* \p{Name}: at the opening brace. */
static bool parse_property(Parser *parser, CharSet *set, bool negated) {
    if (!accept(parser, "{")) return parse_fail(parser, "expected { behind \\p");
    if (accept(parser, "^")) negated = !negated;
    size_t start = parser->at;
    while (!at_end(parser) && peek(parser) != '}') parser->at++;
    if (at_end(parser)) return parse_fail(parser, "\\p{ without }");
    Slice name = {parser->pattern.data + start, parser->at - start};
    parser->at++;
    uint32_t categories = categories_named(name.data, name.size);
    if (categories && negated) return set_add_negated(parser, set, categories);
    set->categories |= categories;
    if (categories) return true;
    unsigned script = unicode_script_named(name.data, name.size);
    if (!script) {
        return fail(parser->error, ERROR_UNSUPPORTED,
            "regular expression, byte %zu: the property \\p{%.*s} is not known", start, SLICE_SHOWN(name));
    }
    CharSet *item = set_new(parser);
    if (!item) return false;
    item->script = script;
    item->negated = negated;
    item->fold = false;
    set_add_child(set, item);
    return true;
}

static bool set_add_hex(Parser *parser, CharSet *set) {
    return set_add_range(parser, set, '0', '9') && set_add_range(parser, set, 'a', 'f') &&
        set_add_range(parser, set, 'A', 'F');
}

/* \xHH, \x{…}, \uHHHH: behind the letter. */
static bool parse_hex(Parser *parser, int digits, uint32_t *code) {
    bool braces = digits == 2 && accept(parser, "{");
    int limit = braces ? 8 : digits, count = 0;
    *code = 0;
    for (; count < limit; count++) {
        char c = peek(parser);
        int digit = c >= '0' && c <= '9' ? c - '0'
            : c >= 'a' && c <= 'f'       ? c - 'a' + 10
            : c >= 'A' && c <= 'F'       ? c - 'A' + 10
                                         : -1;
        if (digit < 0 || at_end(parser)) break;
        *code = *code << 4 | (uint32_t)digit;
        parser->at++;
    }
    if (!count || (digits == 4 && count != 4)) return parse_fail(parser, "expected hexadecimal digits");
    if (braces && !accept(parser, "}")) return parse_fail(parser, "expected }");
    if (*code > UNICODE_MAX) return parse_fail(parser, "not a code point");
    return true;
}

/* Behind a backslash. A class escape is added to set (*single = false); a character is returned in *code. */
static bool parse_escape(Parser *parser, CharSet *set, bool *single, uint32_t *code) {
    if (at_end(parser)) return parse_fail(parser, "a lone backslash at the end");
    *single = false;
    uint32_t c = next_code(parser);
    switch (c) {
    case 's': set->categories |= UNICODE_WHITE; return true;
    case 'S': return set_add_negated(parser, set, UNICODE_WHITE);
    case 'd': set->categories |= UNICODE_SET(CATEGORY_ND); return true;
    case 'D': return set_add_negated(parser, set, UNICODE_SET(CATEGORY_ND));
    case 'w': set->word = true; return true;
    case 'W': set->not_word = true; return true;
    case 'h': return set_add_hex(parser, set);
    case 'p': return parse_property(parser, set, false);
    case 'P': return parse_property(parser, set, true);
    default: break;
    }
    *single = true;
    *code = c;
    switch (c) {
    case 'n': *code = '\n'; return true;
    case 'r': *code = '\r'; return true;
    case 't': *code = '\t'; return true;
    case 'f': *code = '\f'; return true;
    case 'v': *code = '\v'; return true;
    case 'a': *code = '\a'; return true;
    case 'e': *code = 0x1B; return true;
    case '0': *code = 0; return true;
    case 'x': return parse_hex(parser, 2, code);
    case 'u': return parse_hex(parser, 4, code);
    default: break;
    }
    bool alphanumeric = (c >= '1' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (alphanumeric) {
        return fail(parser->error, ERROR_UNSUPPORTED, "regular expression, byte %zu: the escape \\%c is not supported",
            parser->at - 1, (int)c);
    }
    return true;
}

/* --- Classes -------------------------------------------------------------------------------------------------- */

static bool parse_posix(Parser *parser, CharSet *set) {
    static const struct {
        const char *name;
        uint32_t categories;
        bool alphabetic, lower, upper;
    } names[] = {{"[:alpha:]", .alphabetic = true}, {"[:digit:]", .categories = UNICODE_SET(CATEGORY_ND)},
        {"[:alnum:]", .categories = UNICODE_SET(CATEGORY_ND), .alphabetic = true},
        {"[:space:]", .categories = UNICODE_WHITE}, {"[:upper:]", .upper = true}, {"[:lower:]", .lower = true},
        {"[:punct:]", .categories = UNICODE_P | UNICODE_S}};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (!accept(parser, names[i].name)) continue;
        set->categories |= names[i].categories;
        set->alphabetic |= names[i].alphabetic;
        set->lower |= names[i].lower;
        set->upper |= names[i].upper;
        return true;
    }
    return parse_unsupported(parser, "this POSIX bracket");
}

/* One item of a class, or a range. */
static bool parse_class_item(Parser *parser, CharSet *set) {
    bool single = true;
    uint32_t first, last;
    if (accept(parser, "\\")) {
        if (!parse_escape(parser, set, &single, &first)) return false;
    } else {
        first = next_code(parser);
    }
    if (!single) return true;
    bool range =
        looking_at(parser, "-") && !looking_at(parser, "-]") && !looking_at(parser, "-[") && !looking_at(parser, "-&&");
    if (!range) return set_add_range(parser, set, first, first);
    parser->at++;
    if (at_end(parser)) return parse_fail(parser, "the class does not end");
    if (accept(parser, "\\")) {
        if (!parse_escape(parser, set, &single, &last)) return false;
        if (!single) return set_add_range(parser, set, first, first) && set_add_range(parser, set, '-', '-');
    } else {
        last = next_code(parser);
    }
    if (last < first) return parse_fail(parser, "the range ends before it begins");
    return set_add_range(parser, set, first, last);
}

/* The items up to ] or &&. */
static CharSet *parse_class_union(Parser *parser, bool may_start_with_bracket) {
    CharSet *set = set_new(parser);
    if (!set) return NULL;
    bool first = may_start_with_bracket;
    for (;; first = false) {
        if (at_end(parser)) return parse_fail(parser, "the class does not end");
        if ((peek(parser) == ']' && !first) || looking_at(parser, "&&")) return set;
        if (looking_at(parser, "[:")) {
            if (!parse_posix(parser, set)) return NULL;
        } else if (peek(parser) == '[') {
            CharSet *child = parse_class(parser);
            if (!child) return NULL;
            child->sibling = set->child;
            set->child = child;
        } else if (!parse_class_item(parser, set)) {
            return NULL;
        }
    }
}

/* At the opening bracket. [^a&&b] negates the whole of a&&b. */
static CharSet *parse_class(Parser *parser) {
    if (++parser->depth > REGEX_DEPTH_MAX) return parse_fail(parser, "classes and groups are nested too deeply");
    parser->at++;
    bool negated = accept(parser, "^");
    CharSet *whole = parse_class_union(parser, true), *last = whole;
    if (!whole) return NULL;
    while (accept(parser, "&&")) {
        CharSet *more = parse_class_union(parser, false);
        if (!more) return NULL;
        last->both = more;
        last = more;
    }
    parser->at++; /* ] */
    parser->depth--;
    if (!whole->both) {
        whole->negated = negated;
        return charset_finish(whole);
    }
    /* From the last to the first, for each needs the verdicts of what follows it. */
    for (CharSet *done = NULL; done != whole;) {
        CharSet *set = whole;
        while (set->both != done) set = (CharSet *)set->both;
        charset_finish(set);
        done = set;
    }
    if (!negated) return whole;
    CharSet *outer = set_new(parser);
    if (!outer) return NULL;
    outer->child = whole;
    outer->negated = true;
    outer->fold = false;
    return charset_finish(outer);
}

/* --- Nodes ---------------------------------------------------------------------------------------------------- */

static Node *node_new(Parser *parser, NodeKind kind, Node *first) {
    Node *node = arena_alloc(parser->arena, 1, sizeof *node);
    if (!node) return parse_no_memory(parser);
    node->kind = kind;
    node->first = first;
    return node;
}

static Node *node_of_set(Parser *parser, const CharSet *set) {
    if (!set) return NULL;
    Node *node = node_new(parser, NODE_SET, NULL);
    if (node) node->set = set;
    return node;
}

static Node *node_of_code(Parser *parser, uint32_t code) {
    CharSet *set = set_new(parser);
    if (!set || !set_add_range(parser, set, code, code)) return NULL;
    return node_of_set(parser, charset_finish(set));
}

static Node *node_of_assert(Parser *parser, AssertKind kind) {
    Node *node = node_new(parser, NODE_ASSERT, NULL);
    if (node) node->assert = kind;
    return node;
}

static Node *parse_dot(Parser *parser) {
    CharSet *set = set_new(parser);
    if (!set) return NULL;
    set->negated = true;
    if (!parser->dot_all && !set_add_range(parser, set, '\n', '\n')) return NULL;
    return node_of_set(parser, charset_finish(set));
}

static Node *parse_atom_escape(Parser *parser) {
    static const struct {
        const char *text;
        AssertKind kind;
    } asserts[] = {{"b", ASSERT_WORD}, {"B", ASSERT_NOT_WORD}, {"A", ASSERT_START}, {"z", ASSERT_END},
        {"Z", ASSERT_LAST_LINE_END}};
    for (size_t i = 0; i < COUNT_OF(asserts); i++) {
        if (accept(parser, asserts[i].text)) return node_of_assert(parser, asserts[i].kind);
    }
    CharSet *set = set_new(parser);
    bool single;
    uint32_t code;
    if (!set) return NULL;
    set->fold = false; /* (?i) concerns characters and classes in brackets; a lone \\p{Lu} stays what it is */
    if (!parse_escape(parser, set, &single, &code)) return NULL;
    return single ? node_of_code(parser, code) : node_of_set(parser, charset_finish(set));
}

/* Behind "(?": the letters of (?i), (?m-i:…) and so on. True when a group follows, false when the rest of the enclosing
 * group is meant; *failed for anything else. */
static bool parse_options(Parser *parser, bool *failed) {
    bool on = true;
    *failed = false;
    for (; !at_end(parser); parser->at++) {
        char c = peek(parser);
        if (c == ':' || c == ')') {
            parser->at++;
            return c == ':';
        }
        if (c == '-') {
            on = false;
        } else if (c == 'i') {
            parser->fold = on;
        } else if (c == 'm') {
            parser->dot_all = on;
        } else {
            break;
        }
    }
    *failed = true;
    parse_unsupported(parser, "this kind of group");
    return false;
}

/* Behind the opening parenthesis. */
static Node *parse_group_inside(Parser *parser) {
    bool fold = parser->fold, dot_all = parser->dot_all;
    Node *node;
    if (accept(parser, "?#")) return parse_unsupported(parser, "a comment");
    if (accept(parser, "?<=") || accept(parser, "?<!")) return parse_unsupported(parser, "look-behind");
    bool positive = accept(parser, "?="), negative = !positive && accept(parser, "?!");
    if (positive || negative) {
        node = node_new(parser, NODE_LOOK, NULL);
        if (!node) return NULL;
        node->negative = negative;
        node->first = parse_alternatives(parser);
        if (!node->first) return NULL;
    } else if (accept(parser, "?>")) {
        node = node_new(parser, NODE_ATOMIC, NULL);
        if (!node) return NULL;
        node->first = parse_alternatives(parser);
        if (!node->first) return NULL;
    } else if (accept(parser, "?<")) {
        while (!at_end(parser) && peek(parser) != '>') parser->at++;
        if (!accept(parser, ">")) return parse_fail(parser, "the name of a group does not end");
        node = parse_alternatives(parser);
    } else if (accept(parser, "?")) {
        bool failed, group = parse_options(parser, &failed);
        if (failed) return NULL;
        node = parse_alternatives(parser);
        if (node && !group) { /* (?i) reaches to the end of the enclosing group, whose parenthesis is not ours */
            parser->fold = fold;
            parser->dot_all = dot_all;
            return node;
        }
    } else {
        node = parse_alternatives(parser);
    }
    if (!node) return NULL;
    if (!accept(parser, ")")) return parse_fail(parser, "a parenthesis is not closed");
    parser->fold = fold;
    parser->dot_all = dot_all;
    return node;
}

static Node *parse_atom(Parser *parser) {
    switch (peek(parser)) {
    case '(':
        if (++parser->depth > REGEX_DEPTH_MAX) return parse_fail(parser, "classes and groups are nested too deeply");
        parser->at++;
        Node *node = parse_group_inside(parser);
        parser->depth--;
        return node;
    case '[': return node_of_set(parser, parse_class(parser));
    case '.': parser->at++; return parse_dot(parser);
    case '^': parser->at++; return node_of_assert(parser, ASSERT_LINE_START);
    case '$': parser->at++; return node_of_assert(parser, ASSERT_LINE_END);
    case '\\': parser->at++; return parse_atom_escape(parser);
    case '*':
    case '+':
    case '?': return parse_fail(parser, "nothing to repeat");
    default: return node_of_code(parser, next_code(parser));
    }
}

/* {n}, {n,}, {,m}, {n,m}. False and nothing consumed when it is not one: the brace is then a character. */
static bool parse_interval(Parser *parser, uint32_t *min, uint32_t *max, bool *exact) {
    size_t start = parser->at++;
    uint64_t bound[2] = {0, REPEAT_FOREVER};
    bool given[2] = {false, false}, comma = false;
    for (; !at_end(parser); parser->at++) {
        char c = peek(parser);
        if (c >= '0' && c <= '9') {
            uint64_t old = given[comma] ? bound[comma] : 0;
            bound[comma] = old < 1000000 ? old * 10 + (uint64_t)(c - '0') : old;
            given[comma] = true;
        } else if (c == ',' && !comma) {
            comma = true;
        } else {
            break;
        }
    }
    if (!accept(parser, "}") || (!given[0] && !given[1])) {
        parser->at = start;
        return false;
    }
    *exact = !comma;
    *min = (uint32_t)bound[0];
    *max = comma ? (uint32_t)bound[1] : *min;
    return true;
}

static Node *repeat_new(Parser *parser, Node *what, uint32_t min, uint32_t max, RepeatMode mode) {
    Node *node = node_new(parser, NODE_REPEAT, what);
    if (!node) return NULL;
    node->min = min;
    node->max = max;
    node->mode = mode;
    return node;
}

static Node *parse_repeats(Parser *parser, Node *node) {
    for (int count = 0; node; count++) {
        char c = peek(parser);
        uint32_t min = c == '+', max = c == '?' ? 1 : REPEAT_FOREVER;
        bool interval = false, exact = false;
        if (c == '{') {
            interval = parse_interval(parser, &min, &max, &exact);
            if (!interval) return node;
            if (min > max) return parse_fail(parser, "a repeat ends before it begins");
            if (min > REGEX_PROGRAM_MAX || (max != REPEAT_FOREVER && max > REGEX_PROGRAM_MAX)) {
                return parse_fail(parser, "a repeat count is too large");
            }
        } else if (c == '*' || c == '+' || c == '?') {
            parser->at++;
        } else {
            return node;
        }
        if (count >= 8) return parse_fail(parser, "too many repeats of one thing");
        if (node->kind == NODE_LOOK || node->kind == NODE_ASSERT) {
            return parse_unsupported(parser, "repeating something without a width");
        }
        /* In this dialect {n}? is an optional {n}, and {n,m}+ repeats what {n,m} takes. */
        RepeatMode mode = REPEAT_GREEDY;
        if (!exact && accept(parser, "?")) {
            mode = REPEAT_LAZY;
        } else if (!interval && accept(parser, "+")) {
            mode = REPEAT_POSSESSIVE;
        }
        node = repeat_new(parser, node, min, max, mode);
    }
    return NULL;
}

static Node *parse_sequence(Parser *parser) {
    Node *sequence = node_new(parser, NODE_CAT, NULL);
    if (!sequence) return NULL;
    Node **tail = &sequence->first;
    while (!at_end(parser) && peek(parser) != '|' && peek(parser) != ')') {
        Node *node = parse_repeats(parser, parse_atom(parser));
        if (!node) return NULL;
        *tail = node;
        tail = &node->next;
    }
    return sequence;
}

static Node *parse_alternatives(Parser *parser) {
    Node *first = parse_sequence(parser);
    if (!first || peek(parser) != '|' || at_end(parser)) return first;
    Node *choice = node_new(parser, NODE_ALT, first), *last = first;
    while (choice && accept(parser, "|")) {
        Node *more = parse_sequence(parser);
        if (!more) return NULL;
        last->next = more;
        last = more;
    }
    return choice;
}

Node *regex_parse(Arena *arena, Slice pattern, Error *error) {
    Parser parser = {.arena = arena, .pattern = pattern, .error = error};
    if (pattern.size > REGEX_PATTERN_MAX) return parse_fail(&parser, "the pattern is too long");
    if (!utf8_valid(pattern)) return parse_fail(&parser, "the pattern is not UTF-8");
    Node *node = parse_alternatives(&parser);
    if (!node) return NULL;
    if (!at_end(&parser)) return parse_fail(&parser, "a parenthesis too many");
    return node;
}
