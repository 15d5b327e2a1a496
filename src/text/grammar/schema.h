/* JSON schemas to rules. Internal to text/grammar. */
#pragma once
#include "text/grammar/argument_form.h"
#include "text/grammar/json_form.h"

/* Defines the rules of a schema; *root: the rule for a value. text: the schema as JSON. arguments: syntax of the value,
 * the arguments of a call; NULL: JSON. False: the budget has the error. */
bool schema_compile(const JsonForm *form, const ArgumentForm *arguments, Slice text, Rule *root);
