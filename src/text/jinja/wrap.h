/* Laying out text: Python's textwrap.wrap (for the wordwrap filter) and pprint.pformat. */
#pragma once
#include "text/jinja/value.h"

typedef struct WrapOptions {
    int64_t width;
    bool break_words, break_hyphens;
} WrapOptions;

Jv jinja_wrap_line(Vm *vm, JinjaStr *line, const WrapOptions *options); /* a list of strings */
Jv jinja_pprint(Vm *vm, Jv value);
