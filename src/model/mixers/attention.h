/* The attention mixer: project to q, k, v; attend over the pages of the cache; project back. */
#pragma once
#include "model/block.h"

int64_t attention_width(const AttentionMixer *mixer); /* floats of work per row */
void attention_forward(const AttentionMixer *mixer, const Block *block);
