/* The JSON lines of `apus debug tokens` and `apus debug detokens`: one object in, one object out (no line end).
 * tokens: {"text", "special": bool, "bos": bool} → {"ids": […]}
 * detokens: {"ids", "skip_special": bool} → {"text"}; with "stream": true → {"pieces": [one per id, then the end's]} */
#pragma once
#include "base/buffer.h"
#include "base/error.h"
#include "base/slice.h"
#include "text/tokenizer/tokenizer.h"

NODISCARD bool text_debug_tokens(const Tokenizer *t, Slice json_line, Buffer *out, Error *error);
NODISCARD bool text_debug_detokens(const Tokenizer *t, Slice json_line, Buffer *out, Error *error);
