/* Rules in GBNF, as llama.cpp's grammars/README.md has it. Internal to text/grammar. */
#pragma once
#include "text/grammar/rules.h"

bool gbnf_compile(Rules *rules, Slice source, Rule *root);
