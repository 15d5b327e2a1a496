/* JSON schemas of arrays and objects, as expressions. Internal to text/grammar. */
#pragma once
#include "text/grammar/schema_set.h"

Expr schema_array(Schemas *s, const SchemaSet *set);
Expr schema_object(Schemas *s, const SchemaSet *set);
