/* GET /props and /slots, as llama.cpp's clients read them; ?model=NAME chooses among several models. */
#pragma once
#include "server/exchange.h"

bool answer_props(Exchange *x, Slice rest);
bool answer_slots(Exchange *x, Slice rest);
