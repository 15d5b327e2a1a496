/* The gated feed-forward: down · (act(gate · x) ∘ (up · x)). */
#pragma once
#include "model/block.h"

int64_t glu_width(const GluFfn *ffn); /* floats of work per row */
void glu_forward(const GluFfn *ffn, const Block *block);
