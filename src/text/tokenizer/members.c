/* Members of the objects in tokenizer.json. */
#include "text/tokenizer/members.h"

#include "base/utf8.h"

enum { SEQUENCE_DEPTH_MAX = 8, COUNT_MAX = 1000000 };

bool member_absent(const Json *node) { return !node || node->type == JSON_NULL; }

bool value_bool(const Json *value, const char *name, bool fallback, bool *flag, Error *error) {
    *flag = fallback;
    if (member_absent(value)) return true;
    if (value->type != JSON_BOOL)
        return fail(error, ERROR_FORMAT, "%s must be true or false, not %s", name, json_type_name(value));
    *flag = value->boolean;
    return true;
}

bool member_bool(const Json *node, const char *name, bool fallback, bool *flag, Error *error) {
    return value_bool(json_get(node, name), name, fallback, flag, error);
}

bool member_string(const Json *node, const char *name, Arena *arena, Slice *value, Error *error) {
    const Json *member = json_get(node, name);
    if (!member || member->type != JSON_STRING) {
        return fail(error, ERROR_FORMAT, "%s must be a string, not %s", name, json_type_name(member));
    }
    char *copy = arena_copy(arena, json_slice(member));
    if (!copy) return fail(error, ERROR_MEMORY, "no memory for the tokenizer's steps");
    *value = (Slice){copy, member->size};
    return true;
}

bool member_character(
    const Json *node, const char *name, const char *fallback, Arena *arena, Slice *value, Error *error) {
    *value = slice_of(fallback);
    if (member_absent(json_get(node, name))) return true;
    if (!member_string(node, name, arena, value, error)) return false;
    uint32_t code;
    bool one = value->size && (size_t)utf8_decode(value->data, value->size, &code) == value->size;
    return one || fail(error, ERROR_FORMAT, "%s must be one character", name);
}

bool member_count(const Json *node, const char *name, uint32_t *value, Error *error) {
    const Json *member = json_get(node, name);
    if (!member || member->type != JSON_INTEGER || member->integer < 0 || member->integer > COUNT_MAX) {
        return fail(error, ERROR_FORMAT, "%s must be a number from 0 to %d", name, COUNT_MAX);
    }
    *value = (uint32_t)member->integer;
    return true;
}

bool member_name(const Json *node, const char *name, const char *const *names, size_t count, int *value, Error *error) {
    const Json *member = json_get(node, name);
    if (member_absent(member)) return true;
    for (size_t i = 0; member->type == JSON_STRING && i < count; i++) {
        if (!slice_is(json_slice(member), names[i])) continue;
        *value = (int)i;
        return true;
    }
    if (member->type != JSON_STRING)
        return fail(error, ERROR_FORMAT, "%s must be a string, not %s", name, json_type_name(member));
    return fail(error, ERROR_UNSUPPORTED, "the %s \"%.*s\" is not known", name, SLICE_SHOWN(json_slice(member)));
}

Slice component_type(const Json *node) {
    const Json *type = json_get(node, "type");
    return type && type->type == JSON_STRING ? json_slice(type) : (Slice){"", 0};
}

bool component_unknown(const Json *node, Error *error) {
    if (node->type != JSON_OBJECT) return fail(error, ERROR_FORMAT, "expected an object, not %s", json_type_name(node));
    Slice type = component_type(node);
    if (!type.size) return fail(error, ERROR_FORMAT, "type is missing");
    return fail(error, ERROR_UNSUPPORTED, "the type \"%.*s\" is not supported", SLICE_SHOWN(type));
}

static bool each_at(const Json *node, const char *list, ComponentAdd add, void *context, int depth, Error *error) {
    if (!slice_is(component_type(node), "Sequence")) return add(context, node, error);
    const Json *components = json_get(node, list);
    if (!components || components->type != JSON_ARRAY)
        return fail(error, ERROR_FORMAT, "%s must be an array, not %s", list, json_type_name(components));
    if (depth == SEQUENCE_DEPTH_MAX) return fail(error, ERROR_LIMIT, "Sequences are nested too deeply");
    int place = 0;
    for (JSON_EACH(component, components)) {
        if (!each_at(component, list, add, context, depth + 1, error)) return fail_while(error, "%s[%d]", list, place);
        place++;
    }
    return true;
}

bool component_each(const Json *node, const char *list, ComponentAdd add, void *context, Error *error) {
    return each_at(node, list, add, context, 0, error);
}
