/* Regular expressions: from a pattern to a tree, in both dialects. */
#include "text/regex/regex.h"
#include "text/regex/regex_parser.h"

enum { REPEATS_OF_ONE_MAX = 8 /* quantifiers behind one another */ };

static Node *parse_alternatives(Parser *parser);

/* --- Nodes ---------------------------------------------------------------------------------------------------- */

static Node *node_new(Parser *parser, NodeKind kind, Node *first) {
    Node *node = arena_alloc(parser->arena, 1, sizeof *node);
    if (!node) return parser_no_memory(parser);
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
    const bool shared = code < REGEX_ASCII && !parser->fold;
    if (shared && parser->single[code]) return node_of_set(parser, parser->single[code]);
    CharSet *set = charset_new(parser);
    if (!set || !charset_add_range(parser, set, code, code)) return NULL;
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
    CharSet *set = charset_new(parser);
    if (!set) return NULL;
    set->negated = true;
    set->fold = false;
    static const UnicodeRange ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
    if (!parser->dot_all && !charset_add_ranges(parser, set, ends, parser->ecma ? COUNT_OF(ends) : 1)) return NULL;
    return node_of_set(parser, charset_finish(set));
}

static Node *parse_atom_escape(Parser *parser) {
    static const struct {
        const char *text;
        AssertKind kind;
    } asserts[] = {{"b", ASSERT_WORD}, {"B", ASSERT_NOT_WORD}, {"A", ASSERT_START}, {"z", ASSERT_END},
        {"Z", ASSERT_LAST_LINE_END}};
    if (parser->ecma && (parser_peek(parser) == 'b' || parser_peek(parser) == 'B'))
        return parser_unsupported(parser, "a word boundary");
    for (size_t i = 0; !parser->ecma && i < COUNT_OF(asserts); i++) {
        if (parser_accept(parser, asserts[i].text)) return node_of_assert(parser, asserts[i].kind);
    }
    CharSet *set = charset_new(parser);
    bool single;
    uint32_t code;
    if (!set) return NULL;
    /* (?i) of Oniguruma concerns characters and classes in brackets: a lone \p{Lu} stays what it is. */
    if (!parser->ecma) set->fold = false;
    if (!parser_escape(parser, set, &single, &code)) return NULL;
    return single ? node_of_code(parser, code) : node_of_set(parser, charset_finish(set));
}

/* After "(?": the letters of (?i), (?m-i:…) and so on. True: a group follows; false: the options apply to the rest of
 * the enclosing group; *failed: anything else. */
static bool parse_options(Parser *parser, bool *failed) {
    bool on = true;
    *failed = false;
    for (; !parser_at_end(parser); parser->at++) {
        char c = parser_peek(parser);
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
    parser_unsupported(parser, "this kind of group");
    return false;
}

/* Behind "?<". */
static bool parse_group_name(Parser *parser) {
    while (!parser_at_end(parser) && parser_peek(parser) != '>') parser->at++;
    return parser_accept(parser, ">") || parser_fail(parser, "the name of a group does not end");
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
    if (parser_accept(parser, "?:") || parser_peek(parser) != '?') return true;
    if (parser_accept(parser, "?<") || parser_accept(parser, "?P<")) return parse_group_name(parser);
    parser_unsupported(parser, "this kind of group");
    return false;
}

/* Behind the opening parenthesis. */
static Node *parse_group_inside(Parser *parser) {
    const bool fold = parser->fold, dot_all = parser->dot_all;
    Node *node;
    if (!parser->ecma && parser_accept(parser, "?#")) return parser_unsupported(parser, "a comment");
    if (parser_accept(parser, "?<=") || parser_accept(parser, "?<!")) return parser_unsupported(parser, "look-behind");
    if (parser_accept(parser, "?=")) {
        node = node_around(parser, NODE_LOOK, false);
    } else if (parser_accept(parser, "?!")) {
        node = node_around(parser, NODE_LOOK, true);
    } else if (parser->ecma) {
        node = begin_ecma_group(parser) ? parse_alternatives(parser) : NULL;
    } else if (parser_accept(parser, "?>")) {
        node = node_around(parser, NODE_ATOMIC, false);
    } else if (parser_accept(parser, "?<")) {
        node = parse_group_name(parser) ? parse_alternatives(parser) : NULL;
    } else if (parser_accept(parser, "?")) {
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
    if (!parser_accept(parser, ")")) return parser_fail(parser, "a parenthesis is not closed");
    parser->fold = fold;
    parser->dot_all = dot_all;
    return node;
}

static Node *parse_atom(Parser *parser) {
    switch (parser_peek(parser)) {
    case '(':
        if (!parser_deeper(parser)) return NULL;
        parser->at++;
        Node *node = parse_group_inside(parser);
        parser->depth--;
        return node;
    case '[': return node_of_set(parser, parser->ecma ? parser_ecma_class(parser) : parser_class(parser));
    case '.': parser->at++; return parse_dot(parser);
    case '^': parser->at++; return node_of_assert(parser, parser->ecma ? ASSERT_START : ASSERT_LINE_START);
    case '$': parser->at++; return node_of_assert(parser, parser->ecma ? ASSERT_END : ASSERT_LINE_END);
    case '\\': parser->at++; return parse_atom_escape(parser);
    case '*':
    case '+':
    case '?': return parser_fail(parser, "nothing to repeat");
    default: return node_of_code(parser, parser_next_code(parser));
    }
}

static bool parse_count(Parser *parser, uint32_t *count) {
    const size_t start = parser->at;
    uint64_t value = 0;
    for (; parser_peek(parser) >= '0' && parser_peek(parser) <= '9'; parser->at++)
        value = value < REPEAT_FOREVER ? value * 10 + (uint64_t)(parser_peek(parser) - '0') : value;
    *count = value < REPEAT_FOREVER ? (uint32_t)value : REPEAT_FOREVER - 1;
    return parser->at > start;
}

/* {n}, {n,}, {n,m}; Oniguruma also {,m}. False, nothing consumed: the brace is a character. */
static bool parse_interval(Parser *parser, uint32_t *min, uint32_t *max, bool *exact) {
    const size_t start = parser->at++;
    const bool has_min = parse_count(parser, min), comma = (has_min || !parser->ecma) && parser_accept(parser, ",");
    *exact = !comma;
    *max = *min;
    const bool has_max = comma && parse_count(parser, max);
    if (comma && !has_max) *max = REPEAT_FOREVER;
    if ((has_min || has_max) && parser_accept(parser, "}")) return true;
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
    if (min > max) return parser_fail(parser, "a repeat ends before it begins");
    if (unrolled && (min > REGEX_PROGRAM_MAX || (max != REPEAT_FOREVER && max > REGEX_PROGRAM_MAX)))
        return parser_fail(parser, "a repeat count is too large");
    if (parser->ecma ? node->edges : bare) return parser_unsupported(parser, "repeating an assertion");
    return true;
}

/* Mode of the current quantifier. Oniguruma: {n}? is an optional {n}, and {n,m}+ repeats {n,m}. */
static RepeatMode parse_mode(Parser *parser, bool interval, bool exact) {
    if ((parser->ecma || !exact) && parser_accept(parser, "?")) return REPEAT_LAZY;
    if (!parser->ecma && !interval && parser_accept(parser, "+")) return REPEAT_POSSESSIVE;
    return REPEAT_GREEDY;
}

static Node *parse_repeats(Parser *parser, Node *node) {
    for (int count = 0; node; count++) {
        const char c = parser_peek(parser);
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
        if (count >= REPEATS_OF_ONE_MAX) return parser_fail(parser, "too many repeats of one thing");
        if (!check_repeated(parser, node, min, max)) return NULL;
        node = repeat_new(parser, node, min, max, parse_mode(parser, interval, exact));
    }
    return NULL;
}

static Node *parse_sequence(Parser *parser) {
    Node *first = NULL, **tail = &first;
    while (!parser_at_end(parser) && parser_peek(parser) != '|' && parser_peek(parser) != ')') {
        /* A brace without an operand is a character; ECMA-262 does not repeat it. */
        const bool brace = parser->ecma && parser_peek(parser) == '{';
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
    if (!first || parser_peek(parser) != '|' || parser_at_end(parser)) return first;
    while (parser_accept(parser, "|")) {
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
    if (syntax->size_max && pattern.size > syntax->size_max) return parser_fail(&parser, "the pattern is too long");
    if (!utf8_valid(pattern)) return parser_fail(&parser, "the pattern is not UTF-8");
    Node *node = parse_alternatives(&parser);
    if (!node) return NULL;
    if (!parser_at_end(&parser)) return parser_fail(&parser, "a parenthesis too many");
    return node;
}

bool regex_parse_escape(
    Arena *arena, Slice text, RegexDialect dialect, size_t *at, const CharSet **set, uint32_t *code, Error *error) {
    Parser parser = {.arena = arena, .pattern = text, .at = *at, .ecma = dialect == REGEX_ECMA, .error = error};
    CharSet *own = charset_new(&parser);
    bool single;
    if (!own || !parser_escape(&parser, own, &single, code)) return false;
    *at = parser.at;
    *set = single ? NULL : charset_finish(own);
    return true;
}
