/* Keywords that others can say: not, if, dependentRequired, dependentSchemas and dependencies as anyOf, allOf and what
 * they hold, by De Morgan's laws. Internal to text/grammar. */
#pragma once
#include "text/grammar/schema_set.h"

/* Keywords of rewritten schemas only: a string that does not match, that is none of. */
#define SCHEMA_NOT_PATTERN "\1pattern"
#define SCHEMA_NOT_ENUM "\1enum"

/* Whether a schema has such keywords. */
bool schema_has_rewritten(const Json *schema);
/* What they say, the same node every time. NULL: the budget has why. What cannot be turned round is refused. */
const Json *schema_rewrite(Schemas *s, const Json *schema);
