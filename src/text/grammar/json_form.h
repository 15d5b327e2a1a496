/* The shapes of JSON as expressions: white space, literals, and any value. Internal to text/grammar. */
#pragma once
#include "base/json.h"
#include "text/grammar/grammar.h"
#include "text/grammar/rules.h"

typedef struct JsonForm {
    Rules *rules;
    Lex space;  /* between the parts */
    Lex string; /* any string, in any spelling, quotes included */
    Lex key;    /* any string in its one spelling */
    Expr comma, colon, space_expr;
    Rule any, any_object;
} JsonForm;

NODISCARD bool json_form_open(JsonForm *form, Rules *rules, GrammarSpace space);
/* Strings of min to max characters; spelling: one for each, or any. */
Lex json_form_string(const JsonForm *form, uint32_t min, uint32_t max, bool one_spelling);
Lex json_form_literal(const JsonForm *form, Slice text);       /* a string that is text, in its one spelling */
Expr json_form_value(const JsonForm *form, const Json *value); /* that value */
/* "[" and "]", or "{" and "}", around elements that may be none (empty) or some (each then with what is between them).
 */
Expr json_form_around(const JsonForm *form, const char *brackets, bool empty, Expr some);
/* first, then more of the others, each behind a comma: min to max altogether, at least 1. */
Expr json_form_list(const JsonForm *form, Expr element, uint32_t min, uint32_t max);
