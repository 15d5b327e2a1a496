/* JSON schemas to rules. Internal to text/grammar. */
#pragma once
#include "text/grammar/argument_form.h"
#include "text/grammar/json_form.h"

/* Defines the rules of a schema (the text of one); *root is what a value must fit. arguments: the value is the
 * arguments of a call in that form; NULL: it is JSON. False: the budget has why. */
bool schema_compile(const JsonForm *form, const ArgumentForm *arguments, Slice text, Rule *root);
