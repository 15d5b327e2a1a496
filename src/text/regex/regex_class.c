/* Regular expressions: classes of characters and escapes, in both dialects. */
#include <stdlib.h>

#include "text/regex/regex_parser.h"

enum { RANGES_PER_SET_MAX = 1 << 16 };

/* --- Sets ----------------------------------------------------------------------------------------------------- */

CharSet *charset_new(Parser *parser) {
    CharSet *set = arena_alloc(parser->arena, 1, sizeof *set);
    if (!set) return parser_no_memory(parser);
    set->fold = parser->fold;
    return set;
}

bool charset_add_range(Parser *parser, CharSet *set, uint32_t first, uint32_t last) {
    if (set->range_count >= RANGES_PER_SET_MAX) return parser_fail(parser, "too many ranges in one class");
    if ((set->range_count & (set->range_count - 1)) == 0) { /* full at each power of two */
        size_t capacity = set->range_count ? set->range_count * 2 : 1;
        UnicodeRange *ranges = arena_alloc(parser->arena, capacity, sizeof *ranges);
        if (!ranges) return parser_no_memory(parser);
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
    CharSet *item = charset_new(parser);
    if (item) item->categories = categories;
    return set_add_negated(set, item);
}

bool charset_add_ranges(Parser *parser, CharSet *set, const UnicodeRange *ranges, size_t count) {
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) ok = charset_add_range(parser, set, ranges[i].first, ranges[i].last);
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
    CharSet *item = charset_new(parser);
    if (!item) return false;
    item->script = script;
    item->negated = negated;
    item->fold = false;
    set_add_child(set, item);
    return true;
}

/* \p{Name}, of ECMA-262 also \p{gc=Name}: at the opening brace. */
static bool parse_property(Parser *parser, CharSet *set, bool negated) {
    if (!parser_accept(parser, "{")) return parser_fail(parser, "expected { behind \\p");
    if (!parser->ecma && parser_accept(parser, "^")) negated = !negated;
    if (parser->ecma && !parser_accept(parser, "gc=")) (void)parser_accept(parser, "General_Category=");
    const size_t start = parser->at;
    while (!parser_at_end(parser) && parser_peek(parser) != '}') parser->at++;
    if (parser_at_end(parser)) return parser_fail(parser, "\\p{ without }");
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
    return charset_add_range(parser, set, '0', '9') && charset_add_range(parser, set, 'a', 'f') &&
        charset_add_range(parser, set, 'A', 'F');
}

/* Up to `most` digits; returns how many. */
static int parse_digits(Parser *parser, int most, uint32_t *code) {
    int count = 0;
    *code = 0;
    for (; count < most && !parser_at_end(parser); count++, parser->at++) {
        const char c = parser_peek(parser);
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
    if (*code < 0xD800 || *code > 0xDBFF || !parser_accept(parser, "\\u")) return;
    if (parse_digits(parser, 4, &low) == 4 && low >= 0xDC00 && low <= 0xDFFF)
        *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
    else
        parser->at = before;
}

/* Behind \x or \u. Oniguruma: \xH, \xHH, \x{1…8}, \uHHHH. ECMA-262: \xHH, \uHHHH, also as a pair, \u{1…6}. */
static bool parse_hex(Parser *parser, bool u, uint32_t *code) {
    const bool braces = u == parser->ecma && parser_accept(parser, "{");
    const int least = braces || (!u && !parser->ecma) ? 1 : u ? 4 : 2;
    const int most = braces ? (parser->ecma ? 6 : 8) : u ? 4 : 2;
    if (parse_digits(parser, most, code) < least) return parser_fail(parser, "expected hexadecimal digits");
    if (braces && !parser_accept(parser, "}")) return parser_fail(parser, "expected }");
    if (*code > UNICODE_MAX) return parser_fail(parser, "not a code point");
    if (parser->ecma && u && !braces) parse_pair(parser, code);
    return true;
}

/* \d, \w, \s of ECMA-262 and, in capitals, their complements; *found false: another letter. */
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
        if (letter == sets[i].letter) return charset_add_ranges(parser, set, sets[i].ranges, sets[i].count);
        CharSet *item = charset_new(parser);
        return item && charset_add_ranges(parser, item, sets[i].ranges, sets[i].count) && set_add_negated(set, item);
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
    const bool control =
        parser->ecma && letter == 'c' && (parser_peek(parser) | 0x20) >= 'a' && (parser_peek(parser) | 0x20) <= 'z';
    if (control) *code = parser->pattern.data[parser->at++] & 31;
    return control;
}

/* Behind a backslash. A class escape is added to set (*single = false); a character is returned in *code. */
bool parser_escape(Parser *parser, CharSet *set, bool *single, uint32_t *code) {
    bool found;
    if (parser_at_end(parser)) return parser_fail(parser, "a lone backslash at the end");
    *single = false;
    const size_t start = parser->at;
    const uint32_t c = parser_next_code(parser);
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
        if (!parser_accept(parser, names[i].name)) continue;
        set->categories |= names[i].categories;
        set->alphabetic |= names[i].alphabetic;
        set->lower |= names[i].lower;
        set->upper |= names[i].upper;
        return true;
    }
    return parser_unsupported(parser, "this POSIX bracket");
}

/* One item of a class, or a range. */
static bool parse_class_item(Parser *parser, CharSet *set) {
    bool single = true;
    uint32_t first, last;
    if (parser_accept(parser, "\\")) {
        if (!parser_escape(parser, set, &single, &first)) return false;
    } else {
        first = parser_next_code(parser);
    }
    if (!single) return true;
    bool range = parser_looking_at(parser, "-") && !parser_looking_at(parser, "-]") &&
        !parser_looking_at(parser, "-[") && !parser_looking_at(parser, "-&&");
    if (!range) return charset_add_range(parser, set, first, first);
    parser->at++;
    if (parser_at_end(parser)) return parser_fail(parser, "the class does not end");
    if (parser_accept(parser, "\\")) {
        if (!parser_escape(parser, set, &single, &last)) return false;
        if (!single) return charset_add_range(parser, set, first, first) && charset_add_range(parser, set, '-', '-');
    } else {
        last = parser_next_code(parser);
    }
    if (last < first) return parser_fail(parser, "the range ends before it begins");
    return charset_add_range(parser, set, first, last);
}

/* The items up to ] or &&. */
static CharSet *parse_class_union(Parser *parser, bool may_start_with_bracket) {
    CharSet *set = charset_new(parser);
    if (!set) return NULL;
    bool first = may_start_with_bracket;
    for (;; first = false) {
        if (parser_at_end(parser)) return parser_fail(parser, "the class does not end");
        if ((parser_peek(parser) == ']' && !first) || parser_looking_at(parser, "&&")) return set;
        if (parser_looking_at(parser, "[:")) {
            if (!parse_posix(parser, set)) return NULL;
        } else if (parser_peek(parser) == '[') {
            CharSet *child = parser_class(parser);
            if (!child) return NULL;
            child->sibling = set->child;
            set->child = child;
        } else if (!parse_class_item(parser, set)) {
            return NULL;
        }
    }
}

/* At the opening bracket. [^a&&b] negates the whole of a&&b. */
CharSet *parser_class(Parser *parser) {
    if (!parser_deeper(parser)) return NULL;
    parser->at++;
    bool negated = parser_accept(parser, "^");
    CharSet *whole = parse_class_union(parser, true), *last = whole;
    if (!whole) return NULL;
    while (parser_accept(parser, "&&")) {
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
    /* From the last to the first: each needs the results of its successors. */
    for (CharSet *done = NULL; done != whole;) {
        CharSet *set = whole;
        while (set->both != done) set = (CharSet *)set->both;
        charset_finish(set);
        done = set;
    }
    if (!negated) return whole;
    CharSet *outer = charset_new(parser);
    if (!outer) return NULL;
    outer->child = whole;
    outer->negated = true;
    outer->fold = false;
    return charset_finish(outer);
}

/* One item of a class of ECMA-262. *single false: a set, which was added. */
static bool parse_ecma_item(Parser *parser, CharSet *set, bool *single, uint32_t *code) {
    *single = true;
    if (parser_accept(parser, "\\b")) {
        *code = '\b';
        return true;
    }
    if (parser_accept(parser, "\\")) return parser_escape(parser, set, single, code);
    *code = parser_next_code(parser);
    return true;
}

/* At the opening bracket. */
CharSet *parser_ecma_class(Parser *parser) {
    CharSet *set = charset_new(parser);
    if (!set) return NULL;
    parser->at++;
    set->negated = parser_accept(parser, "^");
    while (!parser_at_end(parser) && parser_peek(parser) != ']') {
        bool single;
        uint32_t first, last;
        if (!parse_ecma_item(parser, set, &single, &first)) return NULL;
        if (!single) continue;
        last = first;
        if (parser_peek(parser) == '-' && parser->at + 1 < parser->pattern.size && !parser_looking_at(parser, "-]")) {
            parser->at++;
            if (!parse_ecma_item(parser, set, &single, &last)) return NULL;
            if (!single || last < first) return parser_fail(parser, "the range ends before it begins");
        }
        if (!charset_add_range(parser, set, first, last)) return NULL;
    }
    if (!parser_accept(parser, "]")) return parser_fail(parser, "the class does not end");
    return charset_finish(set);
}
