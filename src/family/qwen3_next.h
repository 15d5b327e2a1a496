/* What GGUF files hold of qwen3_next.c's families: qwen3_next_gguf.c. */
#pragma once
#include "family/family.h"

extern const GgufModel qwen3_5_gguf, qwen3_5_moe_gguf, qwen3_next_gguf;
