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
/* The types that the member `key` of an object may have, at most, by the schema `root` of the object. key.data NULL: a
 * key that no part of the schema names. TYPE_ALL where the schema does not tell. */
uint32_t schema_member_types(const Json *root, Slice key);
/* Calls `found` with each name in "properties" of the schema and of the parts that apply to the same object, some of
 * them more than once. False: `found` returned false. */
typedef bool SchemaNameFunction(void *context, Slice name);
NODISCARD bool schema_member_names(const Json *root, SchemaNameFunction *found, void *context);
