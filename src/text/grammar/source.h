/* Written rules: what the spellings of EBNF have in common. Internal to text/grammar. */
#pragma once
#include "base/buffer.h"
#include "base/map.h"
#include "text/grammar/chars.h"
#include "text/grammar/rules.h"

typedef struct Source {
    Rules *rules;
    Slice text;
    size_t at;
    int depth; /* nesting of groups */
    Map names; /* to rules */
} Source;

bool source_fail(Source *s, ErrorCode code, const char *what); /* says where; always false */
static inline char source_peek(const Source *s) { return s->at < s->text.size ? s->text.data[s->at] : '\0'; }
static inline bool source_ends(const Source *s) { return s->at >= s->text.size; }
bool source_accept(Source *s, const char *text);
/* A name: letters, digits and what is in more; empty: there is none. */
Slice source_name(Source *s, const char *more);
Rule source_rule(Source *s, Slice name); /* by its name, made when it is new */
/* Behind the opening quote: its text up to the closing one, escapes resolved, appended. */
bool source_string(Source *s, char quote, Buffer *out);
bool source_number(Source *s, uint32_t *number); /* false: there is none */
/* *, +, ?, {n}, {n,}, {,m}, {n,m} behind e; *any: there was one. */
Expr source_repeat(Source *s, Expr e, bool *any);
