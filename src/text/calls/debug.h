/* The JSON lines of `apus debug calls`: one object in, one object out (no line end).
 * {"format": name, "tools": [{"function": {"name", "parameters"}}], "seed", "count", "single": bool} →
 * {"answers": [{"text", "ended": bool, "content", "calls": [[name, arguments], …], "cut": the same of a part of the
 * text, "split": bool}]}: what the grammar of the tools says at random, and how it is read; split: in parts it is read
 * otherwise. Tools that cannot be kept → {"unsupported": why}. */
#pragma once
#include "base/buffer.h"
#include "base/error.h"
#include "base/slice.h"

NODISCARD bool text_debug_calls(Slice json_line, Buffer *out, Error *error);
