/* text/jinja/: the language of chat templates, as far as templates use it.
 *
 * Chat templates: Jinja2 as transformers runs it (jinja2 3.1, trim_blocks, lstrip_blocks, loopcontrols, generation
 * tag). A template is compiled once and rendered by any thread at the same time. Steps, depth, time, memory and output
 * are bounded: any template ends in an answer or an error within TEMPLATE_CPU_MS. */
#pragma once
#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "base/json.h"
#include "text/tokenizer/tokenizer.h"

enum {
    TEMPLATE_CPU_MS = 1000,
    TEMPLATE_MEMORY_MAX = 256 << 20,
    TEMPLATE_OUTPUT_MAX = 64 << 20,
    TEMPLATE_SOURCE_MAX = 4 << 20
};

typedef struct Template Template;
NODISCARD Template *template_compile(Slice source, Error *error); /* errors name the line */
void template_free(Template *template);
Slice template_source(const Template *template);

/* The rendered text and, for each stretch of it, whether the template's own literals or the variables gave it. */
typedef struct Rendered {
    Buffer text;
    Span *spans; /* slices of text; adjacent spans of one origin are joined */
    size_t span_count;
    Arena arena; /* owns the spans */
} Rendered;
void rendered_free(Rendered *rendered);

/* variables: an object with messages and the template's other inputs: tools, documents (absent = None), bos_token,
 * eos_token, add_generation_prompt, continue_final_message, enable_thinking, … "now" (local ISO time) sets
 * strftime_now. Strings in variables are data, except bos_token, eos_token and other *_token values, and roles with a
 * usual name: these count as template text, as templates build control tokens from them ('<|' + role + '|>'). */
NODISCARD bool template_render(const Template *template, const Json *variables, Rendered *out, Error *error);

/* The chat template of a model directory: chat_template.jinja, else tokenizer_config.json (a string, or a list with
 * "default"), else chat_template.json. NULL with ERROR_NOT_FOUND when there is none. tokens: receives bos_token,
 * eos_token … as an object allocated in arena, for the variables. */
NODISCARD Template *template_open(const char *directory, Error *error);
/* Appends ,"bos_token":"…" … pairs of tokenizer_config.json's special tokens to an object being written. */
NODISCARD bool template_token_variables(const char *directory, Buffer *out, Error *error);

/* The instrument behind "apus debug prompt". json: the variables as an object. Appends {"prompt": …}. */
NODISCARD bool template_debug_prompt(const Template *template, Slice json, Buffer *out, Error *error);
