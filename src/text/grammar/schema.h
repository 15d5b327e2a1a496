/* JSON schemas to rules. Internal to text/grammar. */
#pragma once
#include "text/grammar/json_form.h"

/* Defines the rules of a schema (the text of one); *root is what a value must fit. False: the budget has why. */
bool schema_compile(const JsonForm *form, Slice text, Rule *root);
