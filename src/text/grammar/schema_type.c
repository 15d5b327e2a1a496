/* Types of members: the types that any part of a schema gives a key, references followed. */
#include "text/grammar/schema_type.h"

enum { SEARCH_DEPTH_MAX = 32, SEARCH_STEPS_MAX = 10000 };

typedef struct Search {
    const Json *root;
    Slice key;
    uint32_t found; /* types found so far */
    bool any;       /* the key was found */
    int steps;
} Search;

uint32_t schema_type_named(Slice name) {
    static const struct {
        const char *name;
        uint32_t types;
    } names[] = {{"null", TYPE_NULL}, {"boolean", TYPE_BOOL}, {"integer", TYPE_INTEGER}, {"number", TYPE_NUMBER},
        {"string", TYPE_STRING}, {"array", TYPE_ARRAY}, {"object", TYPE_OBJECT}};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (slice_is(name, names[i].name)) return names[i].types;
    return 0;
}

static uint32_t type_of(const Json *value) {
    static const uint32_t of[] = {[JSON_NULL] = TYPE_NULL,
        [JSON_BOOL] = TYPE_BOOL,
        [JSON_INTEGER] = TYPE_INTEGER,
        [JSON_LONG] = TYPE_INTEGER,
        [JSON_REAL] = TYPE_NUMBER,
        [JSON_STRING] = TYPE_STRING,
        [JSON_ARRAY] = TYPE_ARRAY,
        [JSON_OBJECT] = TYPE_OBJECT};
    return of[value->type];
}

/* "#" or "#/a/b" without escapes; NULL: another reference, which is not followed. */
static const Json *resolve(const Search *s, const Json *reference) {
    if (!reference || reference->type != JSON_STRING || reference->size == 0) return NULL;
    Slice rest = json_slice(reference);
    if (rest.data[0] != '#' || memchr(rest.data, '~', rest.size) || memchr(rest.data, '%', rest.size)) return NULL;
    const Json *node = s->root;
    rest = (Slice){rest.data + 1, rest.size - 1};
    while (node && rest.size > 0) {
        if (rest.data[0] != '/') return NULL;
        const char *slash = memchr(rest.data + 1, '/', rest.size - 1);
        const size_t size = slash ? (size_t)(slash - rest.data) : rest.size;
        const Slice name = {rest.data + 1, size - 1};
        const Json *child = NULL;
        if (node->type == JSON_OBJECT)
            for (JSON_EACH_PAIR(key, value, node))
                if (slice_equal(json_slice(key), name)) child = value;
        node = child;
        rest = (Slice){rest.data + size, rest.size - size};
    }
    return node;
}

static uint32_t types_of(Search *s, const Json *schema, int depth);

static uint32_t types_of_any(Search *s, const Json *list, int depth) {
    uint32_t types = 0;
    if (list->type != JSON_ARRAY) return TYPE_ALL;
    for (JSON_EACH(branch, list)) types |= types_of(s, branch, depth);
    return types;
}

static uint32_t types_of_keyword(Search *s, Slice name, const Json *value, int depth) {
    uint32_t types = 0;
    if (slice_is(name, "type") && value->type == JSON_STRING) return schema_type_named(json_slice(value));
    if (slice_is(name, "type") && value->type == JSON_ARRAY) {
        for (JSON_EACH(one, value)) types |= one->type == JSON_STRING ? schema_type_named(json_slice(one)) : 0;
        return types;
    }
    if (slice_is(name, "enum") && value->type == JSON_ARRAY) {
        for (JSON_EACH(one, value)) types |= type_of(one);
        return types;
    }
    if (slice_is(name, "const")) return type_of(value);
    if (slice_is(name, "anyOf") || slice_is(name, "oneOf")) return types_of_any(s, value, depth);
    if (slice_is(name, "allOf") && value->type == JSON_ARRAY) {
        types = TYPE_ALL;
        for (JSON_EACH(part, value)) types &= types_of(s, part, depth);
        return types;
    }
    const Json *target = slice_is(name, "$ref") ? resolve(s, value) : NULL;
    return target ? types_of(s, target, depth) : TYPE_ALL;
}

/* The types that a schema permits, at most. */
static uint32_t types_of(Search *s, const Json *schema, int depth) {
    uint32_t types = TYPE_ALL;
    if (schema->type == JSON_BOOL) return schema->boolean ? TYPE_ALL : 0;
    if (schema->type != JSON_OBJECT || depth > SEARCH_DEPTH_MAX || ++s->steps > SEARCH_STEPS_MAX) return TYPE_ALL;
    for (JSON_EACH_PAIR(key, value, schema)) types &= types_of_keyword(s, json_slice(key), value, depth + 1);
    return types;
}

/* Looks for the key in a schema of the object, and in all that it applies in place. */
static void search(Search *s, const Json *schema, int depth) {
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    static const char *const single[] = {"if", "then", "else", "not"};
    static const char *const maps[] = {"dependentSchemas", "dependencies"};
    if (schema->type != JSON_OBJECT || depth > SEARCH_DEPTH_MAX || ++s->steps > SEARCH_STEPS_MAX) return;
    const Json *properties = json_get(schema, "properties"), *target = resolve(s, json_get(schema, "$ref"));
    if (json_get(schema, "patternProperties")) s->any = true, s->found = TYPE_ALL;
    if (properties && properties->type == JSON_OBJECT) {
        for (JSON_EACH_PAIR(name, value, properties)) {
            if (!slice_equal(json_slice(name), s->key)) continue;
            s->any = true;
            s->found |= types_of(s, value, depth + 1);
        }
    }
    if (target) search(s, target, depth + 1);
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        const Json *list = json_get(schema, lists[i]);
        if (!list || list->type != JSON_ARRAY) continue;
        for (JSON_EACH(part, list)) search(s, part, depth + 1);
    }
    for (size_t i = 0; i < COUNT_OF(single); i++)
        if (json_get(schema, single[i])) search(s, json_get(schema, single[i]), depth + 1);
    for (size_t i = 0; i < COUNT_OF(maps); i++) {
        const Json *map = json_get(schema, maps[i]);
        if (!map || map->type != JSON_OBJECT) continue;
        for (JSON_EACH_PAIR(name, part, map)) search(s, part, depth + 1);
    }
}

uint32_t schema_member_types(const Json *root, Slice key) {
    Search s = {.root = root, .key = key};
    if (!root) return TYPE_ALL;
    search(&s, root, 0);
    if (s.steps > SEARCH_STEPS_MAX) return TYPE_ALL;
    if (s.any) return s.found;
    const Json *others = json_get(root, "additionalProperties");
    return others ? types_of(&s, others, 0) : TYPE_ALL;
}
