/* Whether two schemas have no value in common: then oneOf is anyOf. Internal to text/grammar. */
#pragma once
#include "text/grammar/schema_set.h"

/* True only when that is certain. */
bool schema_disjoint(Schemas *s, const MemberList *a, const MemberList *b);
