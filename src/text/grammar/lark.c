/* Lark's rules. The source is read twice: first the heads, so that every name is known, then the bodies. Terminals
 * (names in capitals) are lexemes and contain terminals only; the terminals of %ignore may appear between the terminals
 * of rules. Terminals are not longest matches, as a lexer's are: any split of the text is accepted. */
#include "text/grammar/lark.h"

#include <stdlib.h>

#include "text/grammar/json_form.h"
#include "text/grammar/pattern.h"
#include "text/grammar/schema.h"
#include "text/grammar/source.h"

enum { TERMINAL_DEPTH_MAX = 50 };

typedef struct Terminal {
    Slice name;
    size_t body; /* where it begins */
    Expr expr;
    bool done, busy;
} Terminal;

typedef struct Body {
    Rule rule;
    bool ignored; /* of %ignore, not of a rule */
    size_t at;
} Body;

typedef struct Lark {
    Source source;
    GrammarSpace space;
    Terminal *terminals;
    uint32_t count, capacity;
    Map terminal_names;
    Body *bodies;
    uint32_t body_count, body_capacity;
    Expr ignored;  /* allowed before and after terminals, or EXPR_EMPTY */
    bool terminal; /* a terminal's body is being read */
    int depth;     /* nesting of terminals in terminals */
} Lark;

static Expr parse_alternatives(Lark *l);

static Expr broken(Lark *l, const char *what) {
    source_fail(&l->source, ERROR_FORMAT, what);
    return EXPR_NONE;
}

static bool is_terminal(Slice name) {
    for (size_t i = 0; i < name.size; i++)
        if (name.data[i] != '_') return name.data[i] >= 'A' && name.data[i] <= 'Z';
    return false;
}

static void skip_line(Source *s) {
    while (!source_ends(s) && source_peek(s) != '\n') s->at++;
}

/* White space and comments; also line ends in groups and before a line that begins with "|". */
static void skip(Lark *l, bool lines) {
    Source *s = &l->source;
    size_t line_end = SIZE_MAX;
    for (; !source_ends(s); s->at++) {
        const char c = source_peek(s);
        const bool comment = c == '#' || (c == '/' && s->at + 1 < s->text.size && s->text.data[s->at + 1] == '/');
        if (comment) skip_line(s);
        if (source_ends(s)) break;
        if (source_peek(s) == '\n' && line_end == SIZE_MAX) line_end = s->at;
        if (!comment && !memchr(" \t\r\n", c, 4)) break;
    }
    if (line_end != SIZE_MAX && !lines && source_peek(s) != '|') s->at = line_end;
}

/* --- Atoms -------------------------------------------------------------------------------------------------------- */

static Expr literal(Lark *l, Slice text, bool fold) {
    Lexicon *x = l->source.rules->lexicon;
    if (!fold) return expr_lex(l->source.rules, lex_literal(x, text));
    Lex all = LEX_EMPTY;
    for (size_t i = text.size; i-- > 0;) {
        const char c = text.data[i], other = (char)(c ^ 0x20);
        const bool letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
        Lex one = lex_range(x, (uint8_t)c, (uint8_t)c);
        if (letter) one = lex_or2(x, one, lex_range(x, (uint8_t)other, (uint8_t)other));
        all = lex_cat(x, one, all);
    }
    return expr_lex(l->source.rules, all);
}

/* "text", "text"i, "a".."z": after the opening quote. */
static Expr parse_text(Lark *l) {
    Source *s = &l->source;
    Buffer text = {0}, last = {0};
    Expr e = EXPR_NONE;
    if (source_string(s, '"', &text)) {
        if (!source_accept(s, "..")) {
            e = literal(l, buffer_view(&text), source_accept(s, "i"));
        } else if (!source_accept(s, "\"") || !source_string(s, '"', &last)) {
            broken(l, "expected the end of a range");
        } else if (text.size != 1 || last.size != 1 || (uint8_t)text.data[0] > (uint8_t)last.data[0] ||
            (uint8_t)last.data[0] > 0x7F) {
            broken(l, "a range must be of two ASCII characters in order");
        } else {
            e = expr_lex(s->rules, lex_range(s->rules->lexicon, (uint8_t)text.data[0], (uint8_t)last.data[0]));
        }
    }
    if (text.failed || last.failed) budget_fail(s->rules->budget, ERROR_MEMORY, "no memory for a grammar");
    buffer_free(&text);
    buffer_free(&last);
    return e;
}

/* Behind the opening slash. */
static Expr parse_regex(Lark *l) {
    Source *s = &l->source;
    const size_t start = s->at;
    bool class = false;
    while (!source_ends(s) && source_peek(s) != '\n' && (class || source_peek(s) != '/')) {
        if (source_peek(s) == '[') class = true;
        if (source_peek(s) == ']') class = false;
        s->at += source_peek(s) == '\\' && s->at + 1 < s->text.size ? 2 : 1;
    }
    const Slice pattern = {s->text.data + start, s->at - start};
    if (!source_accept(s, "/")) return broken(l, "a regular expression is not closed");
    PatternFlags flags = {0};
    for (;; s->at++) {
        const char c = source_peek(s);
        if (c == 'i') flags.fold = true;
        if (c == 's') flags.dot_all = true;
        if (c != 'i' && c != 's' && c != 'u' && c != 'm') break;
    }
    return expr_lex(s->rules, pattern_whole(s->rules->lexicon, pattern, flags));
}

/* A schema as text; arguments: see schema_compile; closed: see JsonForm. */
static Expr parse_schema(Lark *l, const ArgumentForm *arguments, bool closed) {
    Source *s = &l->source;
    JsonForm form;
    Rule root;
    skip(l, true);
    const size_t start = s->at;
    int depth = 0;
    for (bool text = false; !source_ends(s); s->at++) {
        const char c = source_peek(s);
        if (text && c == '\\') {
            s->at++;
        } else if (c == '"') {
            text = !text;
        } else if (!text && (c == '{' || c == '}')) {
            depth += c == '{' ? 1 : -1;
            if (depth <= 0) break;
        }
    }
    if (!source_accept(s, "}")) return broken(l, "a schema is not closed");
    if (l->terminal) return broken(l, "a terminal cannot hold a schema");
    const Slice text = {s->text.data + start, s->at - start};
    if (!json_form_open(&form, s->rules, l->space)) return EXPR_NONE;
    form.closed = closed;
    if (!schema_compile(&form, arguments, text, &root)) return EXPR_NONE;
    return expr_rule(s->rules, root);
}

/* Behind the word of GRAMMAR_ARGUMENTS. */
static Expr parse_arguments(Lark *l) {
    enum { SYNTAX, TYPED, LENIENT, KEY_BEGIN, KEY_END, VALUE_BEGIN, VALUE_END, TEXTS };
    Source *s = &l->source;
    Buffer texts[TEXTS] = {0};
    bool ok = true;
    for (int i = 0; i < TEXTS && ok; i++) {
        skip(l, false);
        ok = source_accept(s, "\"") ? source_string(s, '"', &texts[i]) : broken(l, "expected a text") != EXPR_NONE;
        if (texts[i].failed) ok = budget_fail(s->rules->budget, ERROR_MEMORY, "no memory for a grammar");
    }
    ArgumentForm form = {.typed = texts[TYPED].size > 0,
        .lenient = texts[LENIENT].size > 0,
        .key_begin = buffer_view(&texts[KEY_BEGIN]),
        .key_end = buffer_view(&texts[KEY_END]),
        .value_begin = buffer_view(&texts[VALUE_BEGIN]),
        .value_end = buffer_view(&texts[VALUE_END])};
    Expr e = EXPR_NONE;
    if (ok && argument_syntax_named(buffer_view(&texts[SYNTAX]), &form.syntax))
        e = parse_schema(l, &form, true);
    else if (ok)
        broken(l, "there is no such syntax of arguments");
    for (int i = 0; i < TEXTS; i++) buffer_free(&texts[i]);
    return e;
}

static Expr terminal_expr(Lark *l, Terminal *t) {
    Source *s = &l->source;
    if (t->done) return t->expr;
    if (t->busy || l->depth >= TERMINAL_DEPTH_MAX)
        return broken(l, "terminals hold each other in a circle, or too deeply");
    const size_t at = s->at;
    const bool terminal = l->terminal;
    const int depth = s->depth;
    l->depth++;
    t->busy = l->terminal = true;
    s->at = t->body;
    const Expr e = parse_alternatives(l);
    if (e && !expr_as_lex(s->rules, e) && !s->rules->budget->failed) broken(l, "a terminal is too large");
    s->at = at;
    s->depth = depth;
    l->terminal = terminal;
    l->depth--;
    t->expr = e;
    t->done = true;
    return e;
}

static Expr parse_name(Lark *l) {
    Source *s = &l->source;
    uint64_t place;
    const Slice name = source_name(s, "_");
    if (!name.size) return broken(l, "expected a text, a regular expression, a group or a name");
    if (!is_terminal(name)) {
        if (l->terminal) return broken(l, "a terminal can hold terminals only");
        return expr_rule(s->rules, source_rule(s, name));
    }
    if (!map_get(&l->terminal_names, name, &place)) return broken(l, "there is no such terminal");
    return terminal_expr(l, &l->terminals[place]);
}

static Expr parse_group(Lark *l, const char *close) {
    if (++l->source.depth > GRAMMAR_DEPTH_MAX) {
        source_fail(&l->source, ERROR_LIMIT, "groups are nested too deeply");
        return EXPR_NONE;
    }
    skip(l, true);
    const Expr e = parse_alternatives(l);
    skip(l, true);
    l->source.depth--;
    return source_accept(&l->source, close) ? e : broken(l, "a group is not closed");
}

/* Terminals in rules may have ignored text before them. */
static Expr spaced(Lark *l, Expr e) {
    return l->terminal || l->ignored == EXPR_EMPTY ? e : EXPR_SEQ(l->source.rules, l->ignored, e);
}

static Expr parse_atom(Lark *l) {
    Source *s = &l->source;
    if (source_accept(s, "(")) return parse_group(l, ")");
    if (source_accept(s, "[")) return expr_optional(s->rules, parse_group(l, "]"));
    if (source_accept(s, "\"")) return spaced(l, parse_text(l));
    if (source_accept(s, "/")) return spaced(l, parse_regex(l));
    if (source_accept(s, "%json")) return spaced(l, parse_schema(l, NULL, false));
    if (source_accept(s, GRAMMAR_ANSWER)) return spaced(l, parse_schema(l, NULL, true));
    if (source_accept(s, GRAMMAR_ARGUMENTS)) return spaced(l, parse_arguments(l));
    if (source_peek(s) == '%' || source_peek(s) == '<' || source_peek(s) == '@') {
        source_fail(s, ERROR_UNSUPPORTED, "this is not supported");
        return EXPR_NONE;
    }
    const size_t start = s->at;
    const Expr e = parse_name(l);
    return is_terminal((Slice){s->text.data + start, s->at - start}) ? spaced(l, e) : e;
}

/* ~ n and ~ n..m, and the operators that all grammar sources share. */
static Expr parse_repeat(Lark *l, Expr e, bool *any) {
    Source *s = &l->source;
    uint32_t min, max;
    if (!source_accept(s, "~")) return source_repeat(s, e, any);
    skip(l, false);
    *any = true;
    if (!source_number(s, &min)) return broken(l, "expected a number of repeats");
    max = min;
    if (source_accept(s, "..") && !source_number(s, &max)) return broken(l, "expected a number of repeats");
    return expr_repeat(s->rules, e, min, max);
}

static Expr parse_sequence(Lark *l) {
    Source *s = &l->source;
    Rules *r = s->rules;
    const uint32_t start = r->work_count;
    for (skip(l, s->depth > 0); !source_ends(s) && !strchr("|)]\n", source_peek(s)) && !r->budget->failed;
         skip(l, s->depth > 0)) {
        if (source_accept(s, "->")) { /* the name of an alternative */
            skip(l, false);
            source_name(s, "_");
            continue;
        }
        Expr e = parse_atom(l);
        for (bool any = true; any && !r->budget->failed;) e = parse_repeat(l, e, &any);
        expr_push(r, e);
    }
    return expr_take(r, start, EXPR_IS_SEQ);
}

static Expr parse_alternatives(Lark *l) {
    Source *s = &l->source;
    const uint32_t start = s->rules->work_count;
    do expr_push(s->rules, parse_sequence(l));
    while (source_accept(s, "|") && !s->rules->budget->failed);
    return expr_take(s->rules, start, EXPR_IS_OR);
}

/* --- Statements --------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *pattern;
} common[] = {{"DIGIT", "[0-9]"}, {"HEXDIGIT", "[0-9a-fA-F]"}, {"INT", "[0-9]+"}, {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "([0-9]+|[0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?([0-9]+|[0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\.)*\""}, {"LCASE_LETTER", "[a-z]"}, {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"}, {"WORD", "[a-zA-Z]+"}, {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"}, {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"}, {"CR", "\\r"}, {"LF", "\\n"}, {"NEWLINE", "(\\r?\\n)+"}, {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"}, {"SQL_COMMENT", "--[^\\n]*"}};

static bool terminal_add(Lark *l, Terminal terminal) {
    Budget *budget = l->source.rules->budget;
    if (map_get(&l->terminal_names, terminal.name, NULL))
        return source_fail(&l->source, ERROR_FORMAT, "a terminal is defined twice");
    l->terminals = budget_grow(budget, l->terminals, &l->capacity, (uint64_t)l->count + 1, sizeof *l->terminals);
    if (budget->failed) return false;
    if (!map_put(&l->terminal_names, terminal.name, l->count))
        return budget_fail(budget, ERROR_MEMORY, "no memory for a grammar");
    l->terminals[l->count++] = terminal;
    return true;
}

/* %import common.NAME, %import common.NAME -> OTHER, %import common (NAME, …): after the word %import. */
static bool parse_import(Lark *l) {
    Source *s = &l->source;
    skip(l, false);
    if (!source_accept(s, "common")) return source_fail(s, ERROR_UNSUPPORTED, "only common can be imported from");
    const bool list = !source_accept(s, ".");
    skip(l, false);
    if (list && !source_accept(s, "(")) return source_fail(s, ERROR_FORMAT, "expected the names to import");
    do {
        skip(l, list);
        const Slice name = source_name(s, "_");
        Slice as = name;
        skip(l, list);
        if (!list && source_accept(s, "->")) {
            skip(l, false);
            as = source_name(s, "_");
        }
        Terminal t = {.name = as, .done = true};
        for (size_t i = 0; i < COUNT_OF(common); i++)
            if (slice_is(name, common[i].name))
                t.expr = expr_lex(
                    s->rules, pattern_whole(s->rules->lexicon, slice_of(common[i].pattern), (PatternFlags){0}));
        if (!t.expr) return source_fail(s, ERROR_UNSUPPORTED, "there is no such common terminal here");
        if (!terminal_add(l, t)) return false;
    } while (list && source_accept(s, ","));
    return !list || source_accept(s, ")") || source_fail(s, ERROR_FORMAT, "expected )");
}

/* To the end of a statement: over groups, texts, regular expressions and comments. */
static void skip_body(Lark *l) {
    Source *s = &l->source;
    int depth = 0;
    for (; !source_ends(s); s->at++) {
        const char c = source_peek(s), next = s->at + 1 < s->text.size ? s->text.data[s->at + 1] : '\0';
        if (c == '#' || (c == '/' && next == '/')) {
            while (s->at + 1 < s->text.size && s->text.data[s->at + 1] != '\n') s->at++;
        } else if (c == '"' || c == '/') {
            for (s->at++; !source_ends(s) && source_peek(s) != c && source_peek(s) != '\n'; s->at++)
                s->at += source_peek(s) == '\\';
        } else if (c == '(' || c == '[' || c == '{') {
            depth++;
        } else if (c == ')' || c == ']' || c == '}') {
            depth--;
        } else if (c == '\n' && depth <= 0) {
            const size_t end = s->at;
            skip(l, true);
            if (source_peek(s) == '|') continue;
            s->at = end;
            return;
        }
    }
}

static bool body_add(Lark *l, Body body) {
    Budget *budget = l->source.rules->budget;
    l->bodies = budget_grow(budget, l->bodies, &l->body_capacity, (uint64_t)l->body_count + 1, sizeof *l->bodies);
    if (budget->failed) return false;
    l->bodies[l->body_count++] = body;
    return true;
}

/* name: …, ?name: …, !name: …, NAME.1: … */
static bool read_definition(Lark *l) {
    Source *s = &l->source;
    uint32_t priority;
    while (source_accept(s, "?") || source_accept(s, "!")) {}
    const Slice name = source_name(s, "_");
    if (!name.size) return source_fail(s, ERROR_FORMAT, "expected a rule or a terminal");
    if (source_accept(s, ".")) { /* a priority chooses between two parses of a text; here both are allowed */
        source_accept(s, "-");
        source_number(s, &priority);
    }
    skip(l, false);
    if (source_peek(s) == '[' || source_peek(s) == '{')
        return source_fail(s, ERROR_UNSUPPORTED, "attributes and templates are not supported");
    if (!source_accept(s, ":")) return source_fail(s, ERROR_FORMAT, "expected a colon");
    if (is_terminal(name)) return terminal_add(l, (Terminal){.name = name, .body = s->at});
    if (map_get(&s->names, name, NULL)) return source_fail(s, ERROR_FORMAT, "a rule is defined twice");
    return body_add(l, (Body){.rule = source_rule(s, name), .at = s->at});
}

/* The first reading. */
static bool read_heads(Lark *l) {
    Source *s = &l->source;
    for (skip(l, true); !source_ends(s); skip(l, true)) {
        bool ok = true;
        if (source_accept(s, "%import")) {
            ok = parse_import(l);
        } else if (source_accept(s, "%ignore")) {
            ok = body_add(l, (Body){.ignored = true, .at = s->at});
        } else if (source_peek(s) == '%') {
            ok = source_fail(s, ERROR_UNSUPPORTED, "this directive is not supported");
        } else {
            ok = read_definition(l);
        }
        if (!ok || !budget_step(s->rules->budget, 1)) return false;
        skip_body(l);
    }
    return true;
}

static Expr read_body(Lark *l, const Body *body) {
    Source *s = &l->source;
    s->at = body->at;
    l->terminal = body->ignored;
    const Expr e = parse_alternatives(l);
    l->terminal = false;
    if (!source_ends(s) && source_peek(s) != '\n') return broken(l, "expected the end of the rule");
    return e;
}

bool lark_compile(Rules *rules, Slice text, GrammarSpace space, Rule *root) {
    Lark l = {.source = {.rules = rules, .text = text}, .space = space, .ignored = EXPR_EMPTY};
    *root = rule_new(rules, SLICE("start"));
    bool ok = read_heads(&l);
    const uint32_t start = rules->work_count;
    for (uint32_t i = 0; ok && i < l.body_count; i++)
        if (l.bodies[i].ignored) expr_push(rules, read_body(&l, &l.bodies[i]));
    if (rules->work_count > start) l.ignored = expr_repeat(rules, expr_take(rules, start, EXPR_IS_OR), 0, LEX_FOREVER);
    for (uint32_t i = 0; ok && i < l.body_count && !rules->budget->failed; i++)
        if (!l.bodies[i].ignored) rule_define(rules, l.bodies[i].rule, read_body(&l, &l.bodies[i]));
    if (!rules->budget->failed) {
        const Rule first = source_rule(&l.source, SLICE("start"));
        rule_define(rules, *root, EXPR_SEQ(rules, expr_rule(rules, first), l.ignored));
    }
    map_free(&l.source.names);
    map_free(&l.terminal_names);
    budget_free(rules->budget, l.terminals, l.capacity * sizeof *l.terminals);
    budget_free(rules->budget, l.bodies, l.body_capacity * sizeof *l.bodies);
    return !rules->budget->failed;
}
