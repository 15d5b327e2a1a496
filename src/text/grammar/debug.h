/* The JSON lines of `apus debug grammar`: one object in, one object out (no line end).
 * {"schema" | "regex" | "gbnf" | "lark": …, "text", "compact": bool} → {"accepted": bool, "at": bytes that fit,
 * "compile_us", "mask_us": [one per token, and for the end]}; with "sample": N (and "seed") in place of "text" →
 * {"text", "ended": bool}, what a random choice among the allowed tokens says, at most N of them; a source that does
 * not compile → {"unsupported": why}. */
#pragma once
#include "base/buffer.h"
#include "base/error.h"
#include "base/slice.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/tokenizer.h"

NODISCARD bool text_debug_grammar(
    const Tokenizer *t, const Vocabulary *vocabulary, Slice json_line, Buffer *out, Error *error);
