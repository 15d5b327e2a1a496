/* POST /tokenize and POST /detokenize, compatible with llama.cpp's and vLLM's servers. */
#pragma once
#include "server/exchange.h"

/* {"content" or "prompt": "…", "model", "add_special", "parse_special", "with_pieces"} → {"tokens", "count",
 * "max_model_len"} */
bool answer_tokenize(Exchange *x, Slice rest);
/* {"tokens": [id, …], "model"} → {"content", "prompt"}, both the text */
bool answer_detokenize(Exchange *x, Slice rest);
