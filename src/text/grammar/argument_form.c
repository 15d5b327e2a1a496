/* Arguments of tool calls as text. */
#include "text/grammar/argument_form.h"

#include "text/grammar/pattern.h"

bool argument_syntax_named(Slice name, ArgumentSyntax *syntax) {
    static const char *const names[] = {"json", "tagged", "python", "braces"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (!slice_is(name, names[i])) continue;
        *syntax = (ArgumentSyntax)i;
        return true;
    }
    return false;
}

static Slice trimmed(Slice text) {
    while (text.size > 0 && strchr(" \n", text.data[0])) text.data++, text.size--;
    while (text.size > 0 && strchr(" \n", text.data[text.size - 1])) text.size--;
    return text;
}

static Lex regex(Lexicon *x, const char *pattern) { return pattern_whole(x, slice_of(pattern), (PatternFlags){0}); }

static Lex without(Lexicon *x, Slice marker) {
    return lex_not(x, lex_cat(x, LEX_ALL, lex_cat(x, lex_literal(x, trimmed(marker)), LEX_ALL)));
}

Lex argument_keys(const ArgumentForm *form, Lexicon *x) {
    if (form->syntax != ARGUMENTS_TAGGED) return regex(x, "[A-Za-z_][A-Za-z0-9_.-]{0,63}");
    /* A one-byte marker cannot be part of the key; a longer one ends it. */
    return lex_and2(x, regex(x, "[^\\x00-\\x20\\x7f](?:[^\\x00-\\x1f\\x7f]{0,126}[^\\x00-\\x20\\x7f])?"),
        without(x, form->key_end));
}

/* Texts that a parser may read as JSON values of these types; a superset. */
static Lex looks_like(Lexicon *x, uint32_t types) {
    static const struct {
        uint32_t types;
        const char *pattern;
    } all[] = {{TYPE_NULL, "\\s*(?:null|None)\\s*"}, {TYPE_BOOL, "\\s*(?:true|false|True|False)\\s*"},
        {TYPE_NUMBER, "\\s*-?[0-9][0-9eE.+-]*\\s*"}, {TYPE_ARRAY, "\\s*\\[[\\s\\S]*\\]\\s*"},
        {TYPE_OBJECT, "\\s*\\{[\\s\\S]*\\}\\s*"}, {TYPE_STRING, "\\s*\"[\\s\\S]*\"\\s*"}};
    const uint32_t start = x->work.count;
    for (size_t i = 0; i < COUNT_OF(all); i++)
        if (types & all[i].types) lex_push(x, regex(x, all[i].pattern));
    return lex_combine(x, start, LEX_IS_OR);
}

Lex argument_texts(const ArgumentForm *form, Lexicon *x, uint32_t types, bool exact) {
    const uint32_t start = x->work.count;
    lex_push(x, lex_repeat(x, chars_any(x, SPELLING_UTF8), 0, LEX_FOREVER));
    lex_push(x, without(x, form->value_end));
    if (form->syntax == ARGUMENTS_TAGGED && !form->typed && types != TYPE_STRING)
        lex_push(x, lex_not(x, looks_like(x, types)));
    if (form->syntax == ARGUMENTS_TAGGED && exact) {
        const Slice before = form->value_begin.size ? form->value_begin : form->key_end, after = form->value_end;
        if (!before.size || before.data[before.size - 1] != '\n') lex_push(x, lex_not(x, regex(x, "\\n[\\s\\S]*")));
        if (!after.size || after.data[0] != '\n') lex_push(x, lex_not(x, regex(x, "[\\s\\S]*\\n")));
    }
    return lex_combine(x, start, LEX_IS_AND);
}
