/* Types of JSON values in schemas. Threads: any. */
#pragma once
#include "base/json.h"

typedef enum SchemaType {
    TYPE_NULL = 1,
    TYPE_BOOL = 2,
    TYPE_INTEGER = 4,
    TYPE_FRACTION = 8, /* a number that is not whole */
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_NUMBER = TYPE_INTEGER | TYPE_FRACTION,
    TYPE_ALL = 127
} SchemaType;

/* The types of a name as in "type"; 0: there is no such type. */
uint32_t schema_type_named(Slice name);
/* The types that the member `key` of an object may have, at most, by the schema `root` of the object. TYPE_ALL where
 * the schema does not tell. */
uint32_t schema_member_types(const Json *root, Slice key);
