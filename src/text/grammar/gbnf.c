/* GBNF. */
#include "text/grammar/gbnf.h"

#include <stdlib.h>

#include "base/utf8.h"
#include "text/grammar/grammar.h"
#include "text/grammar/pattern.h"
#include "text/grammar/source.h"

static Expr parse_alternatives(Source *s, bool inside);

/* White space and comments; also line ends where a rule cannot end: inside groups and after "|" and "::=". */
static void skip(Source *s, bool lines) {
    for (; !source_ends(s); s->at++) {
        const char c = source_peek(s);
        if (c == '#') {
            while (!source_ends(s) && source_peek(s) != '\n') s->at++;
            if (!lines || source_ends(s)) return;
        } else if (c != ' ' && c != '\t' && c != '\r' && !(lines && c == '\n')) {
            return;
        }
    }
}

/* Behind the opening bracket. */
static Expr parse_class(Source *s) {
    Rules *r = s->rules;
    Chars set = {0};
    const bool negated = source_accept(s, "^");
    while (!source_ends(s) && source_peek(s) != ']' && !r->budget->failed) {
        int64_t bound[2] = {-1, -1};
        for (int i = 0; i < 2; i++) {
            uint32_t code;
            if (i && !(source_peek(s) == '-' && s->at + 1 < s->text.size && s->text.data[s->at + 1] != ']')) break;
            if (i) s->at++;
            if (source_accept(s, "\\")) {
                if (!pattern_escape(r->lexicon, s->text, &s->at, &set, &bound[i])) break;
            } else {
                s->at += (size_t)abs(utf8_decode(s->text.data + s->at, s->text.size - s->at, &code));
                bound[i] = code;
            }
            if (bound[0] < 0) break;
        }
        if (bound[1] < 0) bound[1] = bound[0];
        if (bound[1] < bound[0]) source_fail(s, ERROR_FORMAT, "a range ends before it begins");
        if (bound[0] >= 0) chars_add(r->budget, &set, (uint32_t)bound[0], (uint32_t)bound[1]);
    }
    if (!source_accept(s, "]")) source_fail(s, ERROR_FORMAT, "a class is not closed");
    if (negated) chars_negate(r->budget, &set);
    chars_normalize(&set);
    const Expr e = expr_lex(r, chars_lex(r->lexicon, &set, SPELLING_UTF8));
    chars_free(r->budget, &set);
    return e;
}

static Expr parse_text(Source *s) {
    Buffer text = {0};
    Expr e = EXPR_NONE;
    if (source_string(s, '"', &text)) e = expr_lex(s->rules, lex_literal(s->rules->lexicon, buffer_view(&text)));
    if (text.failed) budget_fail(s->rules->budget, ERROR_MEMORY, "no memory for a grammar");
    buffer_free(&text);
    return e;
}

static Expr parse_group(Source *s) {
    if (++s->depth > GRAMMAR_DEPTH_MAX) {
        source_fail(s, ERROR_LIMIT, "groups are nested too deeply");
        return EXPR_NONE;
    }
    skip(s, true);
    const Expr e = parse_alternatives(s, true);
    s->depth--;
    if (!source_accept(s, ")")) source_fail(s, ERROR_FORMAT, "a parenthesis is not closed");
    return e;
}

static Expr parse_atom(Source *s) {
    if (source_accept(s, "\"")) return parse_text(s);
    if (source_accept(s, "[")) return parse_class(s);
    if (source_accept(s, "(")) return parse_group(s);
    if (source_accept(s, ".")) return expr_lex(s->rules, chars_any(s->rules->lexicon, SPELLING_UTF8));
    if (source_accept(s, "<")) {
        source_fail(s, ERROR_UNSUPPORTED, "tokens by name are not supported");
        return EXPR_NONE;
    }
    const Slice name = source_name(s, "-_");
    if (!name.size) source_fail(s, ERROR_FORMAT, "expected a text, a class, a group or a rule");
    return name.size ? expr_rule(s->rules, source_rule(s, name)) : EXPR_NONE;
}

static Expr parse_sequence(Source *s, bool inside) {
    Rules *r = s->rules;
    const uint32_t start = r->work_count;
    while (!source_ends(s) && !strchr("|)\n", source_peek(s)) && !r->budget->failed) {
        Expr e = parse_atom(s);
        for (bool any = true; any && !r->budget->failed;) {
            skip(s, inside);
            e = source_repeat(s, e, &any);
        }
        expr_push(r, e);
        skip(s, inside);
    }
    return expr_take(r, start, EXPR_IS_SEQ);
}

static Expr parse_alternatives(Source *s, bool inside) {
    Rules *r = s->rules;
    const uint32_t start = r->work_count;
    do {
        expr_push(r, parse_sequence(s, inside));
        skip(s, inside);
        if (!source_accept(s, "|")) break;
        skip(s, true);
    } while (!r->budget->failed);
    return expr_take(r, start, EXPR_IS_OR);
}

static bool parse_rule(Source *s) {
    const Slice name = source_name(s, "-_");
    if (!name.size) return source_fail(s, ERROR_FORMAT, "expected the name of a rule");
    const Rule rule = source_rule(s, name);
    skip(s, false);
    if (!source_accept(s, "::=")) return source_fail(s, ERROR_FORMAT, "expected ::=");
    skip(s, true);
    if (s->rules->budget->failed) return false;
    if (s->rules->rules[rule].defined) return source_fail(s, ERROR_FORMAT, "a rule is defined twice");
    rule_define(s->rules, rule, parse_alternatives(s, false));
    if (!source_ends(s) && source_peek(s) != '\n') return source_fail(s, ERROR_FORMAT, "expected the end of the rule");
    return !s->rules->budget->failed;
}

bool gbnf_compile(Rules *rules, Slice text, Rule *root) {
    Source s = {.rules = rules, .text = text};
    *root = source_rule(&s, SLICE("root"));
    for (skip(&s, true); !source_ends(&s) && parse_rule(&s);) skip(&s, true);
    map_free(&s.names);
    return !rules->budget->failed;
}
