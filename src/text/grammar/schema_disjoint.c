/* Whether two schemas share values. Only direct evidence counts: types, constants, numbers, and properties that both
 * require, or one requires and the other, closed, does not name. */
#include "text/grammar/schema_disjoint.h"

#include "text/grammar/schema_scalar.h"

enum { DISJOINT_DEPTH_MAX = 4 };

static bool disjoint(Schemas *s, const SchemaSet *a, const SchemaSet *b, int depth);

static bool scalars_disjoint(Schemas *s, const SchemaSet *a, const SchemaSet *b, bool strings) {
    const Lex parts[] = {strings ? s->form.key : schema_number(s, a, false),
        strings ? schema_string(s, a, SPELLING_JSON) : schema_number(s, b, false),
        strings ? schema_string(s, b, SPELLING_JSON) : LEX_ALL, schema_scalar_values(s, a, strings, SPELLING_JSON),
        schema_scalar_values(s, b, strings, SPELLING_JSON)};
    const Lex both = lex_and(s->rules->lexicon, parts, COUNT_OF(parts));
    return !s->budget->failed && !lex_live(s->rules->lexicon, both);
}

static const Json *property_of(const Json *schema, Slice name) {
    const Json *properties = json_get(schema, "properties");
    if (!properties || properties->type != JSON_OBJECT) return NULL;
    for (JSON_EACH_PAIR(key, value, properties))
        if (slice_equal(json_slice(key), name)) return value;
    return NULL;
}

static bool requires(const SchemaSet *set, Slice name) {
    for (uint32_t i = 0; i < set->count; i++) {
        const Json *required = json_get(set->members[i].schema, "required");
        if (!required || required->type != JSON_ARRAY) continue;
        for (JSON_EACH(one, required))
            if (one->type == JSON_STRING && slice_equal(json_slice(one), name)) return true;
    }
    return false;
}

/* A schema of the set has no room for the property at all. */
static bool excludes(const SchemaSet *set, Slice name) {
    for (uint32_t i = 0; i < set->count; i++) {
        const Json *schema = set->members[i].schema, *rest = json_get(schema, "additionalProperties");
        const bool closed = rest && rest->type == JSON_BOOL && !rest->boolean && !json_get(schema, "patternProperties");
        if (closed && !property_of(schema, name)) return true;
    }
    return false;
}

static bool property_set(Schemas *s, const SchemaSet *set, Slice name, MemberList *list) {
    members_begin(list, PLACE_JSON, TYPE_ALL);
    for (uint32_t i = 0; i < set->count; i++) {
        const Json *value = property_of(set->members[i].schema, name);
        if (value && !members_add(s, list, value, 0)) return false;
    }
    return true;
}

static bool objects_disjoint(Schemas *s, const SchemaSet *a, const SchemaSet *b, int depth) {
    for (uint32_t i = 0; i < a->count; i++) {
        const Json *required = json_get(a->members[i].schema, "required");
        if (!required || required->type != JSON_ARRAY) continue;
        for (JSON_EACH(name, required)) {
            MemberList one, other;
            if (name->type != JSON_STRING || !budget_step(s->budget, 1)) continue;
            if (excludes(b, json_slice(name))) return true;
            if (!requires(b, json_slice(name)) || !property_set(s, a, json_slice(name), &one) ||
                !property_set(s, b, json_slice(name), &other))
                continue;
            const SchemaSet mine = {.members = one.data, .count = one.count};
            const SchemaSet theirs = {.members = other.data, .count = other.count};
            if (one.impossible || other.impossible || disjoint(s, &mine, &theirs, depth + 1)) return true;
        }
    }
    return false;
}

static void count_value(Schemas *s, const Json *value, void *context) {
    uint32_t *types = context;
    static const uint32_t of[] = {[JSON_NULL] = TYPE_NULL,
        [JSON_BOOL] = TYPE_BOOL,
        [JSON_STRING] = TYPE_STRING,
        [JSON_ARRAY] = TYPE_ARRAY,
        [JSON_OBJECT] = TYPE_OBJECT};
    *types |= json_is_number(value) ? TYPE_NUMBER : of[value->type];
}

static bool types_of(Schemas *s, const SchemaSet *set, uint32_t *types) {
    uint32_t values = 0;
    if (!schema_types(s, set, types)) return false;
    if (schema_values(s, set, count_value, &values)) *types &= values;
    return !s->budget->failed;
}

static bool disjoint(Schemas *s, const SchemaSet *a, const SchemaSet *b, int depth) {
    uint32_t types, others;
    if (depth > DISJOINT_DEPTH_MAX || !types_of(s, a, &types) || !types_of(s, b, &others)) return false;
    types &= others;
    if (types & (TYPE_NULL | TYPE_BOOL | TYPE_ARRAY)) return false;
    if (types & TYPE_STRING && !scalars_disjoint(s, a, b, true)) return false;
    if (types & TYPE_NUMBER && !scalars_disjoint(s, a, b, false)) return false;
    if (types & TYPE_OBJECT && !objects_disjoint(s, a, b, depth) && !objects_disjoint(s, b, a, depth)) return false;
    return true;
}

bool schema_disjoint(Schemas *s, const MemberList *a, const MemberList *b) {
    const SchemaSet one = {.members = (Member *)a->data, .count = a->count};
    const SchemaSet other = {.members = (Member *)b->data, .count = b->count};
    return a->impossible || b->impossible || disjoint(s, &one, &other, 0);
}
