/* Types of members: what all parts of a schema that apply to an object say of a key, references followed. */
#include "text/grammar/schema_type.h"

enum { SEARCH_DEPTH_MAX = 32, SEARCH_STEPS_MAX = 10000 };

typedef struct Search {
    const Json *root;
    Slice key;   /* data NULL: a key that no part names */
    bool closed; /* keys that are not named are left out of calls, for the whole object names others */
    int steps;
} Search;

/* What a schema says of the key. */
typedef struct Said {
    uint32_t types; /* that it permits, at most */
    bool named;     /* it names the key, or lets further keys in */
} Said;

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

static Said said_of(Search *s, const Json *schema, bool named, int depth);

static void both(Said *said, Said more) {
    said->types &= more.types;
    said->named = said->named || more.named;
}

static bool requires(const Json *schema, Slice key) {
    const Json *required = json_get(schema, "required");
    if (!required || required->type != JSON_ARRAY || !key.data) return false;
    for (JSON_EACH(name, required))
        if (name->type == JSON_STRING && slice_equal(json_slice(name), key)) return true;
    return false;
}

/* properties, patternProperties and additionalProperties of one schema. */
static Said said_here(Search *s, const Json *schema, int depth) {
    Said said = {TYPE_ALL, requires(schema, s->key)};
    const Json *properties = json_get(schema, "properties"), *value = NULL;
    const Json *others = json_get(schema, "additionalProperties");
    const Json *unevaluated = json_get(schema, "unevaluatedProperties");
    if (s->key.data && properties && properties->type == JSON_OBJECT)
        for (JSON_EACH_PAIR(name, one, properties))
            if (slice_equal(json_slice(name), s->key)) value = one;
    if (value) return (Said){types_of(s, value, depth), true};
    if (json_get(schema, "patternProperties")) return (Said){TYPE_ALL, true}; /* one may match the key */
    if (others) said = (Said){types_of(s, others, depth), true};
    if (unevaluated && !(unevaluated->type == JSON_BOOL && !unevaluated->boolean)) said.named = true;
    return said;
}

/* What one branch or another says. A branch that names other keys only, and not this one, has no such key in calls. */
static Said said_of_branches(Search *s, const Json *list, bool named, int depth) {
    Said all = {0, false};
    if (list->type != JSON_ARRAY) return (Said){TYPE_ALL, false};
    for (JSON_EACH(branch, list)) {
        const Said one = said_of(s, branch, named, depth);
        const bool closed = s->closed || json_get(branch, "properties");
        if (named || one.named || !closed) all.types |= one.types;
        all.named = all.named || one.named;
    }
    return all;
}

/* named: a part beside the schema names the key. */
static Said said_of(Search *s, const Json *schema, bool named, int depth) {
    static const char *const unions[] = {"anyOf", "oneOf"};
    static const char *const single[] = {"if", "then", "else", "not"};
    static const char *const maps[] = {"dependentSchemas", "dependencies"};
    if (schema->type == JSON_BOOL) return (Said){schema->boolean ? TYPE_ALL : 0, false};
    if (schema->type != JSON_OBJECT) return (Said){TYPE_ALL, false};
    if (depth > SEARCH_DEPTH_MAX || ++s->steps > SEARCH_STEPS_MAX) return (Said){TYPE_ALL, true};
    Said said = said_here(s, schema, depth + 1);
    const Json *target = resolve(s, json_get(schema, "$ref")), *all = json_get(schema, "allOf");
    if (json_get(schema, "$ref")) both(&said, target ? said_of(s, target, named, depth + 1) : (Said){TYPE_ALL, true});
    if (all && all->type == JSON_ARRAY)
        for (JSON_EACH(part, all)) both(&said, said_of(s, part, named, depth + 1));
    /* These apply only sometimes: they do not narrow the types. */
    for (size_t i = 0; i < COUNT_OF(single); i++)
        if (json_get(schema, single[i])) said.named |= said_of(s, json_get(schema, single[i]), named, depth + 1).named;
    for (size_t i = 0; i < COUNT_OF(maps); i++) {
        const Json *map = json_get(schema, maps[i]);
        if (!map || map->type != JSON_OBJECT) continue;
        for (JSON_EACH_PAIR(name, part, map)) said.named |= said_of(s, part, named, depth + 1).named;
    }
    named = named || said.named || (json_get(schema, unions[0]) && json_get(schema, unions[1]));
    for (size_t i = 0; i < COUNT_OF(unions); i++)
        if (json_get(schema, unions[i]))
            both(&said, said_of_branches(s, json_get(schema, unions[i]), named, depth + 1));
    return said;
}

/* Whether the object always has "properties". */
static bool has_properties(Search *s, const Json *schema, int depth) {
    if (schema->type != JSON_OBJECT || depth > SEARCH_DEPTH_MAX || ++s->steps > SEARCH_STEPS_MAX) return false;
    const Json *target = resolve(s, json_get(schema, "$ref")), *all = json_get(schema, "allOf");
    if (json_get(schema, "properties") || (target && has_properties(s, target, depth + 1))) return true;
    bool any = false;
    if (all && all->type == JSON_ARRAY)
        for (JSON_EACH(part, all)) any = any || has_properties(s, part, depth + 1);
    return any;
}

uint32_t schema_member_types(const Json *root, Slice key) {
    Search s = {.root = root, .key = key};
    if (!root) return TYPE_ALL;
    s.closed = has_properties(&s, root, 0);
    s.steps = 0;
    const Said said = said_of(&s, root, false, 0);
    return s.steps > SEARCH_STEPS_MAX || !said.types ? TYPE_ALL : said.types;
}

typedef struct Names {
    Search search;
    SchemaNameFunction *found;
    void *context;
} Names;

static bool each_name(Names *n, const Json *schema, int depth) {
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    static const char *const single[] = {"if", "then", "else", "not"};
    static const char *const maps[] = {"dependentSchemas", "dependencies"};
    if (schema->type != JSON_OBJECT || depth > SEARCH_DEPTH_MAX || ++n->search.steps > SEARCH_STEPS_MAX) return true;
    const Json *properties = json_get(schema, "properties"), *target = resolve(&n->search, json_get(schema, "$ref"));
    if (properties && properties->type == JSON_OBJECT)
        for (JSON_EACH_PAIR(name, value, properties))
            if (!n->found(n->context, json_slice(name))) return false;
    if (target && !each_name(n, target, depth + 1)) return false;
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        const Json *list = json_get(schema, lists[i]);
        if (!list || list->type != JSON_ARRAY) continue;
        for (JSON_EACH(part, list))
            if (!each_name(n, part, depth + 1)) return false;
    }
    for (size_t i = 0; i < COUNT_OF(single); i++)
        if (json_get(schema, single[i]) && !each_name(n, json_get(schema, single[i]), depth + 1)) return false;
    for (size_t i = 0; i < COUNT_OF(maps); i++) {
        const Json *map = json_get(schema, maps[i]);
        if (!map || map->type != JSON_OBJECT) continue;
        for (JSON_EACH_PAIR(name, part, map))
            if (!each_name(n, part, depth + 1)) return false;
    }
    return true;
}

bool schema_member_names(const Json *root, SchemaNameFunction *found, void *context) {
    Names n = {.search = {.root = root}, .found = found, .context = context};
    return each_name(&n, root, 0);
}
