/* The instrument behind "apus debug prompt": one JSON object in, the prompt out. */
#pragma once
#include "base/buffer.h"
#include "base/error.h"
#include "text/jinja/template.h"

/* json: messages, tools, documents, add_generation_prompt, continue_final_message, bos_token, eos_token, now (local ISO
 * time); every other key is a template variable. Appends {"prompt": …}. */
NODISCARD bool template_debug_prompt(const Template *template, Slice json, Buffer *out, Error *error);
