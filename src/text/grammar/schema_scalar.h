/* JSON schemas of strings and numbers, as lexemes. Internal to text/grammar. */
#pragma once
#include "text/grammar/schema_set.h"

/* Spelled as JSON, strings have their quotes. */

/* The strings in which a pattern, the value of a keyword, finds a match. LEX_ALL: it cannot be kept, and is left out.
 */
Lex schema_pattern(Schemas *s, const Json *schema, const char *keyword, Slice pattern, Spelling spelling);
/* The strings of a set. LEX_NONE: none, or a failure. */
Lex schema_string(Schemas *s, const SchemaSet *set, Spelling spelling);
/* Whether a set says something of its strings. */
bool schema_limits_strings(const SchemaSet *set);
/* Its numbers: whole ones only, or all. */
Lex schema_number(Schemas *s, const SchemaSet *set, bool integer);
/* Its strings as keys of objects: each in its one spelling, and those of enum and const, if there are such. */
Lex schema_key(Schemas *s, const SchemaSet *set, Spelling spelling);
/* The values that enum and const of a set leave: false when it has neither. Calls `each` for every one. */
typedef void (*ValueFunction)(Schemas *s, const Json *value, void *context);
bool schema_values(Schemas *s, const SchemaSet *set, ValueFunction each, void *context);
/* The strings or numbers among those values, as a lexeme; LEX_ALL when there is neither enum nor const. */
Lex schema_scalar_values(Schemas *s, const SchemaSet *set, bool strings, Spelling spelling);
