/* The shapes of JSON. */
#include "text/grammar/json_form.h"

#include "text/grammar/chars.h"
#include "text/grammar/number.h"

static Lex byte(const JsonForm *form, char c) { return lex_range(form->rules->lexicon, (uint8_t)c, (uint8_t)c); }
static Expr byte_expr(const JsonForm *form, char c) { return expr_lex(form->rules, byte(form, c)); }

static Lex space_lex(Lexicon *x, GrammarSpace space) {
    if (space == GRAMMAR_SPACE_NONE) return LEX_EMPTY;
    const Lex blank = lex_or2(x, lex_range(x, ' ', ' '), lex_range(x, '\t', '\t'));
    const Lex line_end = lex_cat(x, lex_repeat(x, lex_range(x, '\r', '\r'), 0, 1), lex_range(x, '\n', '\n'));
    const Lex line = lex_cat(x, line_end, lex_repeat(x, blank, 0, GRAMMAR_INDENT_MAX));
    return lex_repeat(x, lex_or2(x, lex_range(x, ' ', ' '), line), 0, 1);
}

Lex json_form_string(const JsonForm *form, uint32_t min, uint32_t max, bool one_spelling) {
    Lexicon *x = form->rules->lexicon;
    const Lex one = one_spelling ? chars_any(x, SPELLING_JSON) : chars_any_json(x);
    return lex_cat(x, byte(form, '"'), lex_cat(x, lex_repeat(x, one, min, max), byte(form, '"')));
}

Lex json_form_literal(const JsonForm *form, Slice text) {
    Buffer spelled = {0};
    json_write_string(&spelled, text);
    if (spelled.failed) budget_fail(form->rules->budget, ERROR_MEMORY, "no memory for a grammar");
    const Lex lex = lex_literal(form->rules->lexicon, buffer_view(&spelled));
    buffer_free(&spelled);
    return lex;
}

Expr json_form_around(const JsonForm *form, const char *brackets, bool empty, Expr some) {
    Rules *r = form->rules;
    const Expr open = byte_expr(form, brackets[0]), close = byte_expr(form, brackets[1]);
    const Expr inside = EXPR_SEQ(r, form->space_expr, some, form->space_expr, close);
    return EXPR_SEQ(r, open, empty ? EXPR_OR(r, EXPR_SEQ(r, form->space_expr, close), inside) : inside);
}

Expr json_form_list(const JsonForm *form, Expr element, uint32_t min, uint32_t max) {
    Rules *r = form->rules;
    if (max == 0) return EXPR_NONE;
    const Expr more = EXPR_SEQ(r, form->comma, element);
    return EXPR_SEQ(r, element, expr_repeat(r, more, min ? min - 1 : 0, max == LEX_FOREVER ? max : max - 1));
}

/* Recursion: as deep as JSON may be nested. */
Expr json_form_value(const JsonForm *form, const Json *value) {
    Rules *r = form->rules;
    if (value->type < JSON_ARRAY) {
        Buffer text = {0};
        json_write(&text, value);
        if (text.failed) budget_fail(r->budget, ERROR_MEMORY, "no memory for a grammar");
        const Expr e = expr_lex(r, lex_literal(r->lexicon, buffer_view(&text)));
        buffer_free(&text);
        return e;
    }
    const bool object = value->type == JSON_OBJECT;
    const uint32_t start = r->work_count;
    for (const Json *child = json_first(value); child != value->end; child = json_next(child)) {
        if (r->work_count > start) expr_push(r, form->comma);
        if (object) {
            expr_push(r, expr_lex(r, json_form_literal(form, json_slice(child))));
            expr_push(r, form->colon);
            child = json_next(child);
        }
        expr_push(r, json_form_value(form, child));
    }
    const Expr some = expr_take(r, start, EXPR_IS_SEQ);
    return json_form_around(form, object ? "{}" : "[]", value->size == 0, value->size ? some : EXPR_NONE);
}

static Lex literals(Lexicon *x) {
    Slice words[] = {SLICE("true"), SLICE("false"), SLICE("null")};
    return lex_literals(x, words, COUNT_OF(words));
}

bool json_form_open(JsonForm *form, Rules *rules, GrammarSpace space) {
    Lexicon *x = rules->lexicon;
    *form = (JsonForm){.rules = rules, .space = space_lex(x, space)};
    form->space_expr = expr_lex(rules, form->space);
    form->comma = expr_lex(rules, lex_cat(x, byte(form, ','), form->space));
    form->colon = expr_lex(rules, lex_cat(x, byte(form, ':'), form->space));
    form->string = json_form_string(form, 0, LEX_FOREVER, false);
    form->key = json_form_string(form, 0, LEX_FOREVER, true);
    form->any = rule_new(rules, SLICE("value"));
    form->any_object = rule_new(rules, SLICE("object"));
    const Expr any = expr_rule(rules, form->any), string = expr_lex(rules, form->string);
    const Expr pairs = json_form_list(form, EXPR_SEQ(rules, string, form->colon, any), 1, LEX_FOREVER);
    rule_define(rules, form->any_object, json_form_around(form, "{}", true, pairs));
    const Lex number = number_lex(x, &(NumberRange){0});
    rule_define(rules, form->any,
        EXPR_OR(rules, string, expr_lex(rules, lex_or2(x, number, literals(x))),
            json_form_around(form, "[]", true, json_form_list(form, any, 1, LEX_FOREVER)),
            expr_rule(rules, form->any_object)));
    return !rules->budget->failed;
}
