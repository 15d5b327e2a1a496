/* JSON syntax as expressions: white space, literals and arbitrary values. Internal to text/grammar. */
#pragma once
#include "base/json.h"
#include "text/grammar/grammar.h"
#include "text/grammar/rules.h"

typedef struct JsonForm {
    Rules *rules;
    Lex space;  /* between tokens of JSON */
    Lex string; /* any string, in any spelling, quotes included */
    Lex key;    /* any string in its one spelling */
    Expr comma, colon, space_expr;
    Rule any, any_object;
    bool closed; /* objects have the properties that their schemas name: GRAMMAR_JSON_ANSWER */
} JsonForm;

NODISCARD bool json_form_open(JsonForm *form, Rules *rules, GrammarSpace space);
/* Strings of min to max characters. one_spelling: each character in its one spelling. */
Lex json_form_string(const JsonForm *form, uint32_t min, uint32_t max, bool one_spelling);
Lex json_form_literal(const JsonForm *form, Slice text);       /* the string `text` in its one spelling */
Expr json_form_value(const JsonForm *form, const Json *value); /* exactly this value */
/* brackets ("[]" or "{}") around `some`; empty: also around nothing. */
Expr json_form_around(const JsonForm *form, const char *brackets, bool empty, Expr some);
/* min to max elements, at least one, separated by commas. */
Expr json_form_list(const JsonForm *form, Expr element, uint32_t min, uint32_t max);
