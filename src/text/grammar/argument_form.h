/* How a format of tool calls spells the arguments of a call: an object whose members stand one by one. Internal to
 * text/grammar. */
#pragma once
#include "text/grammar/chars.h"
#include "text/grammar/json_form.h"
#include "text/grammar/schema_type.h"

typedef enum ArgumentSyntax {
    ARGUMENTS_JSON,   /* a JSON object */
    ARGUMENTS_TAGGED, /* each between markers; strings as they are */
    ARGUMENTS_PYTHON, /* key=value, with True and False */
    ARGUMENTS_BRACES, /* key:value, strings between quote markers */
} ArgumentSyntax;

typedef struct ArgumentForm {
    ArgumentSyntax syntax;
    bool typed;   /* TAGGED: behind a key stands string="true" or string="false" */
    bool lenient; /* keywords that cannot be kept are left out */
    /* Markers of TAGGED, with the white space around them; value_end is the quote marker of BRACES. */
    Slice key_begin, key_end, value_begin, value_end;
} ArgumentForm;

/* The syntax of a name in a grammar's source; false: there is no such one. */
bool argument_syntax_named(Slice name, ArgumentSyntax *syntax);
/* Keys that the syntax can spell. */
Lex argument_keys(const ArgumentForm *form, Lexicon *x);
/* Texts that the syntax can spell as strings where `types` (SchemaType) are permitted: without the marker that ends
 * them and, in TAGGED, without those that are read as a value of another type. exact: no text either whose line ends at
 * its edges are not read. */
Lex argument_texts(const ArgumentForm *form, Lexicon *x, uint32_t types, bool exact);
