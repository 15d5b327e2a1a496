/* Syntax of the arguments of a tool call: an object whose members are written one after another. Internal to
 * text/grammar. */
#pragma once
#include "text/grammar/chars.h"
#include "text/grammar/json_form.h"
#include "text/grammar/schema_type.h"

typedef enum ArgumentSyntax {
    ARGUMENTS_JSON,   /* a JSON object */
    ARGUMENTS_TAGGED, /* each between markers; strings without quotes or escapes */
    ARGUMENTS_PYTHON, /* key=value, with True and False */
    ARGUMENTS_BRACES, /* key:value, strings between quote markers */
} ArgumentSyntax;

typedef struct ArgumentForm {
    ArgumentSyntax syntax;
    bool typed;   /* TAGGED: a key is followed by string="true" or string="false" */
    bool lenient; /* unsupported keywords are ignored */
    /* Markers of TAGGED, with the white space around them; value_end is the quote marker of BRACES. */
    Slice key_begin, key_end, value_begin, value_end;
} ArgumentForm;

/* The syntax with this name in a grammar's source. False: no such syntax. */
bool argument_syntax_named(Slice name, ArgumentSyntax *syntax);
/* Keys that the syntax can spell. */
Lex argument_keys(const ArgumentForm *form, Lexicon *x);
/* Strings that the syntax can spell where `types` (SchemaType) are permitted: none with the end marker inside and, for
 * TAGGED, none that a parser reads as a value of another type. exact: also none whose leading or trailing line feed the
 * parser drops. */
Lex argument_texts(const ArgumentForm *form, Lexicon *x, uint32_t types, bool exact);
