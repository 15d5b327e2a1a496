/* Regular expressions: from a pattern to a tree, in both dialects. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/regex/regex.h"
#include "text/regex/regex_ast.h"

enum {
    RANGES_PER_SET_MAX = 1 << 16,
    REPEATS_OF_ONE_MAX = 8, /* quantifiers behind one another */
    ASCII = 128
};

typedef struct Parser {
    Arena *arena;
    Slice pattern;
    size_t at;
    bool ecma; /* the dialect */
    int depth, depth_max;
    bool fold;                    /* (?i) */
    bool dot_all;                 /* (?m) of Oniguruma, s of ECMA-262: the dot takes line ends too */
    const CharSet *single[ASCII]; /* sets of one character without fold, made once */
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
    fail(parser->error, arena_failure(parser->arena),
        parser->arena->limited ? "a regular expression takes too much memory" : "no memory for a regular expression");
    return NULL;
}
static bool parse_deeper(Parser *parser) {
    if (++parser->depth <= parser->depth_max) return true;
    return fail(parser->error, ERROR_LIMIT,
        "regular expression, byte %zu: groups and classes are nested more than %d deep", parser->at, parser->depth_max);
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

/* Adds all but the item, without fold. */
static bool set_add_negated(CharSet *set, CharSet *item) {
    if (!item) return false;
    item->negated = true;
    item->fold = false;
    set_add_child(set, item);
    return true;
}

static bool set_add_categories(Parser *parser, CharSet *set, uint32_t categories, bool negated) {
    if (!negated) {
        set->categories |= categories;
        return true;
    }
    CharSet *item = set_new(parser);
    if (item) item->categories = categories;
    return set_add_negated(set, item);
}

static bool set_add_ranges(Parser *parser, CharSet *set, const UnicodeRange *ranges, size_t count) {
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) ok = set_add_range(parser, set, ranges[i].first, ranges[i].last);
    return ok;
}

/* --- Escapes -------------------------------------------------------------------------------------------------- */

static bool is_named(const Parser *parser, Slice name, const char *want) {
    return parser->ecma ? slice_is(name, want) : unicode_same_name(name.data, name.size, want);
}

/* Categories by their two letters, or by the first, which stands for all that begin with it, or by a word. 0: none.
 * Oniguruma compares names without case and separators. */
static uint32_t categories_named(const Parser *parser, Slice name) {
    static const char letters[CATEGORY_COUNT][2][3] = {{"Cn", "cn"}, {"Lu", "lu"}, {"Ll", "ll"}, {"Lt", "lt"},
        {"Lm", "lm"}, {"Lo", "lo"}, {"Mn", "mn"}, {"Mc", "mc"}, {"Me", "me"}, {"Nd", "nd"}, {"Nl", "nl"}, {"No", "no"},
        {"Pc", "pc"}, {"Pd", "pd"}, {"Ps", "ps"}, {"Pe", "pe"}, {"Pi", "pi"}, {"Pf", "pf"}, {"Po", "po"}, {"Sm", "sm"},
        {"Sc", "sc"}, {"Sk", "sk"}, {"So", "so"}, {"Zs", "zs"}, {"Zl", "zl"}, {"Zp", "zp"}, {"Cc", "cc"}, {"Cf", "cf"},
        {"Co", "co"}, {"Cs", "cs"}, {"Cc", "cc"}};
    static const struct {
        const char *ecma, *oniguruma; /* NULL: not a name there */
        uint32_t categories;
    } words[] = {{"Letter", "letter", UNICODE_L}, {"Mark", "mark", UNICODE_M}, {"Number", "number", UNICODE_N},
        {"digit", "digit", UNICODE_SET(CATEGORY_ND)}, {"Punctuation", "punctuation", UNICODE_P},
        {NULL, "punct", UNICODE_P}, {"Symbol", "symbol", UNICODE_S}, {"Separator", "separator", UNICODE_Z},
        {"Uppercase_Letter", NULL, UNICODE_SET(CATEGORY_LU)}, {"Lowercase_Letter", NULL, UNICODE_SET(CATEGORY_LL)},
        {NULL, "space", UNICODE_WHITE}, {NULL, "whitespace", UNICODE_WHITE},
        {NULL, "any", UNICODE_SETS(CATEGORY_CN, CATEGORY_CC_SPACE)}};
    uint32_t found = 0;
    for (unsigned i = 0; i < CATEGORY_COUNT; i++) {
        const char *both = letters[i][!parser->ecma];
        const char first[] = {both[0], '\0'};
        if (is_named(parser, name, both) || is_named(parser, name, first)) found |= UNICODE_SET(i);
    }
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        const char *word = parser->ecma ? words[i].ecma : words[i].oniguruma;
        if (word && is_named(parser, name, word)) found |= words[i].categories;
    }
    return found;
}

static bool set_add_script(Parser *parser, CharSet *set, unsigned script, bool negated) {
    CharSet *item = set_new(parser);
    if (!item) return false;
    item->script = script;
    item->negated = negated;
    item->fold = false;
    set_add_child(set, item);
    return true;
}

/* \p{Name}, of ECMA-262 also \p{gc=Name}: at the opening brace. */
static bool parse_property(Parser *parser, CharSet *set, bool negated) {
    if (!accept(parser, "{")) return parse_fail(parser, "expected { behind \\p");
    if (!parser->ecma && accept(parser, "^")) negated = !negated;
    if (parser->ecma && !accept(parser, "gc=")) (void)accept(parser, "General_Category=");
    const size_t start = parser->at;
    while (!at_end(parser) && peek(parser) != '}') parser->at++;
    if (at_end(parser)) return parse_fail(parser, "\\p{ without }");
    const Slice name = {parser->pattern.data + start, parser->at - start};
    parser->at++;
    const uint32_t categories = categories_named(parser, name);
    if (categories) return set_add_categories(parser, set, categories, negated);
    const unsigned script = parser->ecma ? 0 : unicode_script_named(name.data, name.size);
    if (script) return set_add_script(parser, set, script, negated);
    return fail(parser->error, ERROR_UNSUPPORTED, "regular expression, byte %zu: the property \\p{%.*s} is not known",
        start, SLICE_SHOWN(name));
}

static bool set_add_hex(Parser *parser, CharSet *set) {
    return set_add_range(parser, set, '0', '9') && set_add_range(parser, set, 'a', 'f') &&
        set_add_range(parser, set, 'A', 'F');
}

/* Up to `most` digits; returns how many. */
static int parse_digits(Parser *parser, int most, uint32_t *code) {
    int count = 0;
    *code = 0;
    for (; count < most && !at_end(parser); count++, parser->at++) {
        const char c = peek(parser);
        const int digit = c >= '0' && c <= '9'       ? c - '0'
            : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                     : -1;
        if (digit < 0) break;
        *code = *code << 4 | (uint32_t)digit;
    }
    return count;
}

/* Where the code is a high surrogate, \uHHHH of a low one completes it. */
static void parse_pair(Parser *parser, uint32_t *code) {
    const size_t before = parser->at;
    uint32_t low;
    if (*code < 0xD800 || *code > 0xDBFF || !accept(parser, "\\u")) return;
    if (parse_digits(parser, 4, &low) == 4 && low >= 0xDC00 && low <= 0xDFFF)
        *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
    else
        parser->at = before;
}

/* Behind \x or \u. Oniguruma: \xH, \xHH, \x{1…8}, \uHHHH. ECMA-262: \xHH, \uHHHH, also as a pair, \u{1…6}. */
static bool parse_hex(Parser *parser, bool u, uint32_t *code) {
    const bool braces = u == parser->ecma && accept(parser, "{");
    const int least = braces || (!u && !parser->ecma) ? 1 : u ? 4 : 2;
    const int most = braces ? (parser->ecma ? 6 : 8) : u ? 4 : 2;
    if (parse_digits(parser, most, code) < least) return parse_fail(parser, "expected hexadecimal digits");
    if (braces && !accept(parser, "}")) return parse_fail(parser, "expected }");
    if (*code > UNICODE_MAX) return parse_fail(parser, "not a code point");
    if (parser->ecma && u && !braces) parse_pair(parser, code);
    return true;
}

/* \d, \w, \s of ECMA-262 and their capitals, which are the rest; *found false: another letter. */
static bool parse_ecma_set(Parser *parser, CharSet *set, uint32_t letter, bool *found) {
    static const UnicodeRange digits[] = {{'0', '9'}}, word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                              space[] = {{9, 13}, {0x20, 0x20}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x200A},
                                  {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
                                  {0xFEFF, 0xFEFF}};
    static const struct {
        uint32_t letter;
        const UnicodeRange *ranges;
        size_t count;
    } sets[] = {{'d', digits, COUNT_OF(digits)}, {'w', word, COUNT_OF(word)}, {'s', space, COUNT_OF(space)}};
    *found = false;
    for (size_t i = 0; i < COUNT_OF(sets); i++) {
        if ((letter | 0x20) != sets[i].letter) continue;
        *found = true;
        if (letter == sets[i].letter) return set_add_ranges(parser, set, sets[i].ranges, sets[i].count);
        CharSet *item = set_new(parser);
        return item && set_add_ranges(parser, item, sets[i].ranges, sets[i].count) && set_add_negated(set, item);
    }
    return true;
}

/* The sets of Oniguruma. */
static bool parse_oniguruma_set(Parser *parser, CharSet *set, uint32_t letter, bool *found) {
    *found = true;
    switch (letter) {
    case 's':
    case 'S': return set_add_categories(parser, set, UNICODE_WHITE, letter == 'S');
    case 'd':
    case 'D': return set_add_categories(parser, set, UNICODE_SET(CATEGORY_ND), letter == 'D');
    case 'w': set->word = true; return true;
    case 'W': set->not_word = true; return true;
    case 'h': return set_add_hex(parser, set);
    default: *found = false; return true;
    }
}

/* Escapes of one character. */
static bool parse_control(Parser *parser, uint32_t letter, uint32_t *code) {
    static const char both[] = "n\nr\rt\tf\fv\v0\0", oniguruma[] = "a\ae\x1B";
    const char *const lists[] = {both, oniguruma};
    const size_t sizes[] = {sizeof both - 1, parser->ecma ? 0 : sizeof oniguruma - 1};
    for (size_t list = 0; list < COUNT_OF(lists); list++)
        for (size_t i = 0; i < sizes[list]; i += 2)
            if ((uint32_t)lists[list][i] == letter) {
                *code = (uint32_t)lists[list][i + 1];
                return true;
            }
    const bool control = parser->ecma && letter == 'c' && (peek(parser) | 0x20) >= 'a' && (peek(parser) | 0x20) <= 'z';
    if (control) *code = parser->pattern.data[parser->at++] & 31;
    return control;
}

/* Behind a backslash. A class escape is added to set (*single = false); a character is returned in *code. */
static bool parse_escape(Parser *parser, CharSet *set, bool *single, uint32_t *code) {
    bool found;
    if (at_end(parser)) return parse_fail(parser, "a lone backslash at the end");
    *single = false;
    const size_t start = parser->at;
    const uint32_t c = next_code(parser);
    if (c == 'p' || c == 'P') return parse_property(parser, set, c == 'P');
    const bool ok = parser->ecma ? parse_ecma_set(parser, set, c, &found) : parse_oniguruma_set(parser, set, c, &found);
    if (!ok || found) return ok;
    *single = true;
    *code = c;
    if (c == 'x' || c == 'u') return parse_hex(parser, c == 'u', code);
    if (parse_control(parser, c, code)) return true;
    const bool alphanumeric = (c >= '1' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!alphanumeric) return true;
    return fail(parser->error, ERROR_UNSUPPORTED, "regular expression, byte %zu: the escape \\%c is not supported",
        start, (int)c);
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
    if (!parse_deeper(parser)) return NULL;
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

/* One item of a class of ECMA-262. *single false: a set, which was added. */
static bool parse_ecma_item(Parser *parser, CharSet *set, bool *single, uint32_t *code) {
    *single = true;
    if (accept(parser, "\\b")) {
        *code = '\b';
        return true;
    }
    if (accept(parser, "\\")) return parse_escape(parser, set, single, code);
    *code = next_code(parser);
    return true;
}

/* At the opening bracket. */
static CharSet *parse_ecma_class(Parser *parser) {
    CharSet *set = set_new(parser);
    if (!set) return NULL;
    parser->at++;
    set->negated = accept(parser, "^");
    while (!at_end(parser) && peek(parser) != ']') {
        bool single;
        uint32_t first, last;
        if (!parse_ecma_item(parser, set, &single, &first)) return NULL;
        if (!single) continue;
        last = first;
        if (peek(parser) == '-' && parser->at + 1 < parser->pattern.size && !looking_at(parser, "-]")) {
            parser->at++;
            if (!parse_ecma_item(parser, set, &single, &last)) return NULL;
            if (!single || last < first) return parse_fail(parser, "the range ends before it begins");
        }
        if (!set_add_range(parser, set, first, last)) return NULL;
    }
    if (!accept(parser, "]")) return parse_fail(parser, "the class does not end");
    return charset_finish(set);
}

/* --- Nodes ---------------------------------------------------------------------------------------------------- */

static Node *node_new(Parser *parser, NodeKind kind, Node *first) {
    Node *node = arena_alloc(parser->arena, 1, sizeof *node);
    if (!node) return parse_no_memory(parser);
    node->kind = kind;
    node->first = first;
    node->edges = kind == NODE_ASSERT || kind == NODE_LOOK;
    for (const Node *child = first; child; child = child->next) node->edges = node->edges || child->edges;
    return node;
}

static Node *node_of_set(Parser *parser, const CharSet *set) {
    if (!set) return NULL;
    Node *node = node_new(parser, NODE_SET, NULL);
    if (node) node->set = set;
    return node;
}

static Node *node_of_code(Parser *parser, uint32_t code) {
    const bool shared = code < ASCII && !parser->fold;
    if (shared && parser->single[code]) return node_of_set(parser, parser->single[code]);
    CharSet *set = set_new(parser);
    if (!set || !set_add_range(parser, set, code, code)) return NULL;
    charset_finish(set);
    if (shared) parser->single[code] = set;
    return node_of_set(parser, set);
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
    set->fold = false;
    static const UnicodeRange ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
    if (!parser->dot_all && !set_add_ranges(parser, set, ends, parser->ecma ? COUNT_OF(ends) : 1)) return NULL;
    return node_of_set(parser, charset_finish(set));
}

static Node *parse_atom_escape(Parser *parser) {
    static const struct {
        const char *text;
        AssertKind kind;
    } asserts[] = {{"b", ASSERT_WORD}, {"B", ASSERT_NOT_WORD}, {"A", ASSERT_START}, {"z", ASSERT_END},
        {"Z", ASSERT_LAST_LINE_END}};
    if (parser->ecma && (peek(parser) == 'b' || peek(parser) == 'B'))
        return parse_unsupported(parser, "a word boundary");
    for (size_t i = 0; !parser->ecma && i < COUNT_OF(asserts); i++) {
        if (accept(parser, asserts[i].text)) return node_of_assert(parser, asserts[i].kind);
    }
    CharSet *set = set_new(parser);
    bool single;
    uint32_t code;
    if (!set) return NULL;
    /* (?i) of Oniguruma concerns characters and classes in brackets: a lone \p{Lu} stays what it is. */
    if (!parser->ecma) set->fold = false;
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

/* Behind "?<". */
static bool parse_group_name(Parser *parser) {
    while (!at_end(parser) && peek(parser) != '>') parser->at++;
    return accept(parser, ">") || parse_fail(parser, "the name of a group does not end");
}

/* A group of its own kind, up to its closing parenthesis. */
static Node *node_around(Parser *parser, NodeKind kind, bool negative) {
    Node *inside = parse_alternatives(parser);
    Node *node = inside ? node_new(parser, kind, inside) : NULL;
    if (node) node->negative = negative;
    return node;
}

/* Behind the opening parenthesis, without look-ahead: the kinds of groups of ECMA-262. */
static bool begin_ecma_group(Parser *parser) {
    if (accept(parser, "?:") || peek(parser) != '?') return true;
    if (accept(parser, "?<") || accept(parser, "?P<")) return parse_group_name(parser);
    parse_unsupported(parser, "this kind of group");
    return false;
}

/* Behind the opening parenthesis. */
static Node *parse_group_inside(Parser *parser) {
    const bool fold = parser->fold, dot_all = parser->dot_all;
    Node *node;
    if (!parser->ecma && accept(parser, "?#")) return parse_unsupported(parser, "a comment");
    if (accept(parser, "?<=") || accept(parser, "?<!")) return parse_unsupported(parser, "look-behind");
    if (accept(parser, "?=")) {
        node = node_around(parser, NODE_LOOK, false);
    } else if (accept(parser, "?!")) {
        node = node_around(parser, NODE_LOOK, true);
    } else if (parser->ecma) {
        node = begin_ecma_group(parser) ? parse_alternatives(parser) : NULL;
    } else if (accept(parser, "?>")) {
        node = node_around(parser, NODE_ATOMIC, false);
    } else if (accept(parser, "?<")) {
        node = parse_group_name(parser) ? parse_alternatives(parser) : NULL;
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
        if (!parse_deeper(parser)) return NULL;
        parser->at++;
        Node *node = parse_group_inside(parser);
        parser->depth--;
        return node;
    case '[': return node_of_set(parser, parser->ecma ? parse_ecma_class(parser) : parse_class(parser));
    case '.': parser->at++; return parse_dot(parser);
    case '^': parser->at++; return node_of_assert(parser, parser->ecma ? ASSERT_START : ASSERT_LINE_START);
    case '$': parser->at++; return node_of_assert(parser, parser->ecma ? ASSERT_END : ASSERT_LINE_END);
    case '\\': parser->at++; return parse_atom_escape(parser);
    case '*':
    case '+':
    case '?': return parse_fail(parser, "nothing to repeat");
    default: return node_of_code(parser, next_code(parser));
    }
}

static bool parse_count(Parser *parser, uint32_t *count) {
    const size_t start = parser->at;
    uint64_t value = 0;
    for (; peek(parser) >= '0' && peek(parser) <= '9'; parser->at++)
        value = value < REPEAT_FOREVER ? value * 10 + (uint64_t)(peek(parser) - '0') : value;
    *count = value < REPEAT_FOREVER ? (uint32_t)value : REPEAT_FOREVER - 1;
    return parser->at > start;
}

/* {n}, {n,}, {n,m}, of Oniguruma also {,m}. False and nothing consumed when it is not one: the brace is then a
 * character. */
static bool parse_interval(Parser *parser, uint32_t *min, uint32_t *max, bool *exact) {
    const size_t start = parser->at++;
    const bool has_min = parse_count(parser, min), comma = (has_min || !parser->ecma) && accept(parser, ",");
    *exact = !comma;
    *max = *min;
    const bool has_max = comma && parse_count(parser, max);
    if (comma && !has_max) *max = REPEAT_FOREVER;
    if ((has_min || has_max) && accept(parser, "}")) return true;
    parser->at = start;
    return false;
}

static Node *repeat_new(Parser *parser, Node *what, uint32_t min, uint32_t max, RepeatMode mode) {
    Node *node = node_new(parser, NODE_REPEAT, what);
    if (!node) return NULL;
    node->min = min;
    node->max = max;
    node->mode = mode;
    return node;
}

/* Whether the node can be repeated. Oniguruma repeats groups that hold assertions. */
static bool check_repeated(Parser *parser, const Node *node, uint32_t min, uint32_t max) {
    const bool unrolled = !parser->ecma /* by the matcher */,
               bare = node->kind == NODE_LOOK || node->kind == NODE_ASSERT;
    if (min > max) return parse_fail(parser, "a repeat ends before it begins");
    if (unrolled && (min > REGEX_PROGRAM_MAX || (max != REPEAT_FOREVER && max > REGEX_PROGRAM_MAX)))
        return parse_fail(parser, "a repeat count is too large");
    if (parser->ecma ? node->edges : bare) return parse_unsupported(parser, "repeating an assertion");
    return true;
}

/* How the quantifier at hand repeats. In Oniguruma {n}? is an optional {n}, and {n,m}+ repeats what {n,m} takes. */
static RepeatMode parse_mode(Parser *parser, bool interval, bool exact) {
    if ((parser->ecma || !exact) && accept(parser, "?")) return REPEAT_LAZY;
    if (!parser->ecma && !interval && accept(parser, "+")) return REPEAT_POSSESSIVE;
    return REPEAT_GREEDY;
}

static Node *parse_repeats(Parser *parser, Node *node) {
    for (int count = 0; node; count++) {
        const char c = peek(parser);
        uint32_t min = c == '+', max = c == '?' ? 1 : REPEAT_FOREVER;
        bool interval = false, exact = false;
        if (c == '{') {
            interval = parse_interval(parser, &min, &max, &exact);
            if (!interval) return node;
        } else if (c == '*' || c == '+' || c == '?') {
            parser->at++;
        } else {
            return node;
        }
        if (count >= REPEATS_OF_ONE_MAX) return parse_fail(parser, "too many repeats of one thing");
        if (!check_repeated(parser, node, min, max)) return NULL;
        node = repeat_new(parser, node, min, max, parse_mode(parser, interval, exact));
    }
    return NULL;
}

static Node *parse_sequence(Parser *parser) {
    Node *first = NULL, **tail = &first;
    while (!at_end(parser) && peek(parser) != '|' && peek(parser) != ')') {
        /* A brace behind nothing is a character; ECMA-262 does not repeat it. */
        const bool brace = parser->ecma && peek(parser) == '{';
        Node *node = parse_atom(parser);
        if (!brace) node = parse_repeats(parser, node);
        if (!node) return NULL;
        *tail = node;
        tail = &node->next;
    }
    return node_new(parser, NODE_CAT, first);
}

static Node *parse_alternatives(Parser *parser) {
    Node *first = parse_sequence(parser), *last = first;
    if (!first || peek(parser) != '|' || at_end(parser)) return first;
    while (accept(parser, "|")) {
        last->next = parse_sequence(parser);
        last = last->next;
        if (!last) return NULL;
    }
    return node_new(parser, NODE_ALT, first);
}

Node *regex_parse(Arena *arena, Slice pattern, const RegexSyntax *syntax, Error *error) {
    Parser parser = {.arena = arena,
        .pattern = pattern,
        .ecma = syntax->dialect == REGEX_ECMA,
        .depth_max = syntax->depth_max,
        .fold = syntax->fold,
        .dot_all = syntax->dot_all,
        .error = error};
    if (syntax->size_max && pattern.size > syntax->size_max) return parse_fail(&parser, "the pattern is too long");
    if (!utf8_valid(pattern)) return parse_fail(&parser, "the pattern is not UTF-8");
    Node *node = parse_alternatives(&parser);
    if (!node) return NULL;
    if (!at_end(&parser)) return parse_fail(&parser, "a parenthesis too many");
    return node;
}

bool regex_parse_escape(
    Arena *arena, Slice text, RegexDialect dialect, size_t *at, const CharSet **set, uint32_t *code, Error *error) {
    Parser parser = {.arena = arena, .pattern = text, .at = *at, .ecma = dialect == REGEX_ECMA, .error = error};
    CharSet *own = set_new(&parser);
    bool single;
    if (!own || !parse_escape(&parser, own, &single, code)) return false;
    *at = parser.at;
    *set = single ? NULL : charset_finish(own);
    return true;
}
