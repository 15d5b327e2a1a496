/* Reader of grammar sources, shared by GBNF and Lark. Internal to text/grammar. */
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

bool source_fail(Source *s, ErrorCode code, const char *what); /* names line and column; always false */
static inline char source_peek(const Source *s) { return s->at < s->text.size ? s->text.data[s->at] : '\0'; }
static inline bool source_ends(const Source *s) { return s->at >= s->text.size; }
bool source_accept(Source *s, const char *text);
/* A name of letters, digits and the characters of more; empty: none. */
Slice source_name(Source *s, const char *more);
Rule source_rule(Source *s, Slice name); /* created if the name is new */
/* After an opening quote: appends the text up to the closing quote, escapes resolved. */
bool source_string(Source *s, char quote, Buffer *out);
bool source_number(Source *s, uint32_t *number); /* false: no number follows */
/* e with the repetition operators that follow: *, +, ?, {n}, {n,}, {,m}, {n,m}. *any: there was one. */
Expr source_repeat(Source *s, Expr e, bool *any);
