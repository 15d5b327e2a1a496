/* Reading the objects of tokenizer.json: their members, with errors that name them, and the components that they are.
 * Threads: any. */
#pragma once
#include "base/arena.h"
#include "base/error.h"
#include "base/json.h"

bool member_absent(const Json *node); /* or null */
/* fallback when the value is absent or null */
NODISCARD bool value_bool(const Json *value, const char *name, bool fallback, bool *flag, Error *error);
NODISCARD bool member_bool(const Json *node, const char *name, bool fallback, bool *flag, Error *error);
/* Strings are copied to arena. */
NODISCARD bool member_string(const Json *node, const char *name, Arena *arena, Slice *value, Error *error);
/* One character; fallback when the member is absent. */
NODISCARD bool member_character(
    const Json *node, const char *name, const char *fallback, Arena *arena, Slice *value, Error *error);
NODISCARD bool member_count(const Json *node, const char *name, uint32_t *value, Error *error);
/* One of names: its place is the value, which stays when the member is absent. */
NODISCARD bool member_name(
    const Json *node, const char *name, const char *const *names, size_t count, int *value, Error *error);

/* A component is an object with a "type". */
Slice component_type(const Json *node);                 /* "": there is none */
bool component_unknown(const Json *node, Error *error); /* sets the error for an unknown type; returns false */
/* Calls add for a component, or for each of a Sequence, in which the member `list` holds them, Sequences too. */
typedef bool (*ComponentAdd)(void *context, const Json *node, Error *error);
NODISCARD bool component_each(const Json *node, const char *list, ComponentAdd add, void *context, Error *error);
