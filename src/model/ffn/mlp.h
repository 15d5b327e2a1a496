/* The plain feed-forward: down · act(up · x). */
#pragma once
#include "model/block.h"

int64_t mlp_width(const MlpFfn *ffn); /* floats of work per row */
void mlp_forward(const MlpFfn *ffn, const Block *block);
