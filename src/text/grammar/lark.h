/* Rules in Lark's spelling, as far as llguidance reads it (docs/syntax.md). Internal to text/grammar. */
#pragma once
#include "text/grammar/grammar.h"
#include "text/grammar/rules.h"

bool lark_compile(Rules *rules, Slice source, GrammarSpace space, Rule *root);
