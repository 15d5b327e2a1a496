/* Sets of schemas. */
#include "text/grammar/schema_set.h"

#include <stdlib.h>

/* --- Errors ------------------------------------------------------------------------------------------------------- */

static void write_path(Buffer *out, const Json *root, const Json *target) {
    buffer_byte(out, '#');
    while (root != target && root->type >= JSON_ARRAY) {
        const Json *found = NULL;
        uint32_t index = 0;
        for (const Json *child = json_first(root); child != root->end && !found; child = json_next(child), index++) {
            const Json *key = child;
            if (root->type == JSON_OBJECT) child = json_next(child);
            if (target < child || target >= json_next(child)) continue;
            found = child;
            if (root->type == JSON_OBJECT) {
                buffer_printf(out, "/%.*s", SLICE_SHOWN(json_slice(key)));
            } else {
                buffer_printf(out, "/%u", index);
            }
        }
        if (!found) return;
        root = found;
    }
}

static bool say(Schemas *s, ErrorCode code, const Json *schema, const char *keyword, const char *why) {
    Buffer path = {.limit = 600};
    write_path(&path, s->root, schema);
    budget_fail(s->budget, code, "schema, %s/%s: %s", path.data ? path.data : "#", keyword, why);
    buffer_free(&path);
    return false;
}
bool schema_refuse(Schemas *s, const Json *schema, const char *keyword, const char *why) {
    return say(s, ERROR_UNSUPPORTED, schema, keyword, why);
}
bool schema_broken(Schemas *s, const Json *schema, const char *keyword, const char *why) {
    return say(s, ERROR_FORMAT, schema, keyword, why);
}

/* --- References --------------------------------------------------------------------------------------------------- */

static int hex_value(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

/* One part of a JSON pointer, percent signs and tildes resolved. */
static Slice pointer_part(Schemas *s, Slice text) {
    char *out = arena_alloc(&s->arena, text.size + 1, 1);
    size_t size = 0;
    if (!out) budget_fail(s->budget, ERROR_MEMORY, "no memory for a schema");
    for (size_t i = 0; out && i < text.size; i++) {
        const char c = text.data[i];
        if (c == '%' && i + 2 < text.size && hex_value(text.data[i + 1]) >= 0 && hex_value(text.data[i + 2]) >= 0) {
            out[size++] = (char)(hex_value(text.data[i + 1]) * 16 + hex_value(text.data[i + 2]));
            i += 2;
        } else if (c == '~' && i + 1 < text.size && (text.data[i + 1] == '0' || text.data[i + 1] == '1')) {
            out[size++] = text.data[++i] == '0' ? '~' : '/';
        } else {
            out[size++] = c;
        }
    }
    return (Slice){out, size};
}

static const Json *child_named(const Json *node, Slice name) {
    if (node->type == JSON_OBJECT) {
        for (JSON_EACH_PAIR(key, value, node))
            if (slice_equal(json_slice(key), name)) return value;
    } else if (node->type == JSON_ARRAY && name.size && name.size < 9) {
        char digits[10] = {0}, *end;
        memcpy(digits, name.data, name.size);
        unsigned long index = strtoul(digits, &end, 10);
        for (JSON_EACH(child, node))
            if (!*end && index-- == 0) return child;
    }
    return NULL;
}

static const Json *find_anchor(const Json *root, Slice name) {
    for (const Json *node = root, *end = json_next(root); node < end; node++) {
        if (node->type != JSON_OBJECT) continue;
        const Json *anchor = json_get(node, "$anchor");
        if (anchor && anchor->type == JSON_STRING && slice_equal(json_slice(anchor), name)) return node;
    }
    return NULL;
}

const Json *schema_resolve(Schemas *s, const Json *schema, Slice reference) {
    const Json *id = json_get(s->root, "$id"), *node = s->root;
    if (id && id->type == JSON_STRING && reference.size && reference.data[0] != '#' &&
        slice_starts(reference, json_slice(id)) &&
        (reference.size == id->size || reference.data[id->size] == '#')) { /* the root by its name */
        reference = (Slice){reference.data + id->size, reference.size - id->size};
        if (!reference.size) return node;
    }
    if (!reference.size || reference.data[0] != '#') {
        schema_refuse(s, schema, "$ref", "only references within the schema are supported");
        return NULL;
    }
    Slice rest = {reference.data + 1, reference.size - 1};
    if (rest.size && rest.data[0] != '/') {
        node = find_anchor(s->root, rest);
        rest.size = 0;
    }
    while (node && rest.size) {
        const char *slash = memchr(rest.data + 1, '/', rest.size - 1);
        const size_t size = slash ? (size_t)(slash - rest.data) : rest.size;
        const Slice name = pointer_part(s, (Slice){rest.data + 1, size - 1});
        if (s->budget->failed) return NULL;
        node = child_named(node, name);
        rest = (Slice){rest.data + size, rest.size - size};
        /* A schema with its own $id is the root of its references; such references are not followed. */
        if (node && rest.size && json_get(node, "$id")) {
            schema_refuse(s, schema, "$ref", "references into a schema with an $id of its own are not supported");
            return NULL;
        }
    }
    if (!node) schema_broken(s, schema, "$ref", "it points to nothing");
    return node;
}

/* --- Members ------------------------------------------------------------------------------------------------------ */

/* Keywords that constrain a value; other keywords are annotations, names, or resolved into the set. */
static bool asserts(const Member *member) {
    static const char *const words[] = {"type", "enum", "const", "properties", "required", "additionalProperties",
        "patternProperties", "propertyNames", "items", "prefixItems", "additionalItems", "minItems", "maxItems",
        "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
        "multipleOf", "minProperties", "maxProperties", "uniqueItems", "contains", "unevaluatedItems",
        "unevaluatedProperties", "$dynamicRef", "$recursiveRef", "\1pattern", "\1enum"};
    static const char *const rewritten[] = {"not", "if", "dependentRequired", "dependentSchemas", "dependencies"};
    for (JSON_EACH_PAIR(key, value, member->schema)) {
        const Slice name = json_slice(key);
        if (slice_is(name, "anyOf") && !(member->resolved & RESOLVED_ANY_OF)) return true;
        if (slice_is(name, "oneOf") && !(member->resolved & RESOLVED_ONE_OF)) return true;
        for (size_t i = 0; i < COUNT_OF(rewritten); i++)
            if (slice_is(name, rewritten[i]) && !(member->resolved & RESOLVED_REWRITTEN)) return true;
        for (size_t i = 0; i < COUNT_OF(words); i++)
            if (slice_is(name, words[i])) return true;
    }
    return false;
}

bool members_keep(Schemas *s, MemberList *list, Member member) {
    bool known = !asserts(&member);
    for (uint32_t i = 0; i < list->count; i++)
        known = known || (list->data[i].schema == member.schema && list->data[i].resolved == member.resolved);
    if (known) return true;
    if (list->count == SCHEMA_MEMBERS_MAX)
        return budget_fail(s->budget, ERROR_LIMIT, "schema: more than %d schemas for one value", SCHEMA_MEMBERS_MAX);
    list->data[list->count++] = member;
    return true;
}

/* Follows allOf and $ref; a schema that was met already adds nothing. */
static bool add(Schemas *s, MemberList *list, MemberList *met, const Json *schema, uint64_t resolved) {
    if (schema->type == JSON_BOOL) {
        list->impossible = list->impossible || !schema->boolean;
        return true;
    }
    if (schema->type != JSON_OBJECT) return schema_broken(s, schema, "", "a schema must be an object, true or false");
    for (uint32_t i = 0; i < met->count; i++)
        if (met->data[i].schema == schema && met->data[i].resolved == resolved) return true;
    if (met->count == SCHEMA_MEMBERS_MAX)
        return budget_fail(s->budget, ERROR_LIMIT, "schema: more than %d schemas for one value", SCHEMA_MEMBERS_MAX);
    met->data[met->count++] = (Member){schema, resolved};
    const Json *reference = json_get(schema, "$ref"), *all = json_get(schema, "allOf");
    if (reference && reference->type != JSON_STRING) return schema_broken(s, schema, "$ref", "it must be a string");
    if (all && all->type != JSON_ARRAY) return schema_broken(s, schema, "allOf", "it must be an array");
    if (!members_keep(s, list, (Member){schema, resolved})) return false;
    if (reference) {
        const Json *target = schema_resolve(s, schema, json_slice(reference));
        if (!target || !add(s, list, met, target, 0)) return false;
    }
    for (const Json *part = all ? json_first(all) : NULL; part && part != all->end; part = json_next(part))
        if (!add(s, list, met, part, 0)) return false;
    return true;
}

bool members_add(Schemas *s, MemberList *list, const Json *schema, uint64_t resolved) {
    MemberList met;
    met.count = 0;
    return budget_step(s->budget, 1) && add(s, list, &met, schema, resolved);
}

SchemaSet *schema_set(Schemas *s, const MemberList *list) {
    uint64_t found;
    if (s->budget->failed) return NULL;
    Member all[SCHEMA_MEMBERS_MAX + 1];
    memcpy(all, list->data, list->count * sizeof *all);
    all[list->count] = (Member){NULL, (uint64_t)list->place << 32 | list->types};
    const Slice key = {(const char *)all, (list->count + 1) * sizeof *all};
    if (!list->impossible && map_get(&s->sets, key, &found)) return (SchemaSet *)(uintptr_t)found;
    SchemaSet *set = arena_alloc(&s->arena, 1, sizeof *set);
    Member *members = arena_alloc(&s->arena, list->count + 1, sizeof *members);
    if (!set || !members) {
        budget_fail(s->budget, arena_failure(&s->arena), "no memory for a schema");
        return NULL;
    }
    memcpy(members, all, key.size);
    *set = (SchemaSet){.members = members,
        .count = list->count,
        .impossible = list->impossible,
        .place = list->place,
        .types = list->types};
    set->rule = rule_new(s->rules, SLICE("schema"));
    if (!list->impossible && !map_put(&s->sets, (Slice){(const char *)members, key.size}, (uintptr_t)set))
        budget_fail(s->budget, ERROR_MEMORY, "no memory for a schema");
    *s->pending_end = set;
    s->pending_end = &set->next;
    return s->budget->failed ? NULL : set;
}

Expr schema_set_expr(Schemas *s, const MemberList *list) {
    if (s->budget->failed || list->impossible) return EXPR_NONE;
    if (!list->count && list->place == PLACE_JSON) return expr_rule(s->rules, s->form.any);
    const SchemaSet *set = schema_set(s, list);
    return set ? expr_rule(s->rules, set->rule) : EXPR_NONE;
}

/* --- Small things ------------------------------------------------------------------------------------------------- */

bool schema_count(Schemas *s, const Json *schema, const char *keyword, uint32_t fallback, uint32_t *bound) {
    const Json *value = json_get(schema, keyword);
    *bound = fallback;
    if (!value) return true;
    const double number = json_is_number(value) ? json_number(value) : -1;
    if (number < 0 || number != (double)(uint64_t)(number < 1e18 ? number : 0))
        return schema_broken(s, schema, keyword, "it must be a whole number of at least 0");
    *bound = number < LEX_FOREVER - 1 ? (uint32_t)number : LEX_FOREVER - 1;
    return true;
}

bool schema_rest(Schemas *s, const Json *schema, const char *keyword, const char *unevaluated, const Json **rest) {
    static const char *const applied[] = {"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if",
        "dependentSchemas", "dependencies", "contains"};
    const Json *other = json_get(schema, unevaluated);
    *rest = json_get(schema, keyword);
    if (*rest || !other) return true;
    *rest = other;
    if (other->type == JSON_BOOL && other->boolean) return true;
    for (size_t i = 0; i < COUNT_OF(applied); i++)
        if (json_get(schema, applied[i]) && schema_is_lenient(s)) {
            *rest = NULL;
            return true;
        } else if (json_get(schema, applied[i]))
            return schema_refuse(
                s, schema, unevaluated, "it is not supported beside schemas that are applied in place");
    return true;
}

bool schema_types(Schemas *s, const SchemaSet *set, uint32_t *types) {
    *types = TYPE_ALL;
    for (uint32_t i = 0; i < set->count; i++) {
        const Json *type = json_get(set->members[i].schema, "type");
        if (!type) continue;
        uint32_t allowed = 0;
        bool known = true;
        if (type->type == JSON_STRING) {
            allowed = schema_type_named(json_slice(type));
            known = allowed;
        } else if (type->type == JSON_ARRAY) {
            for (JSON_EACH(name, type)) {
                const uint32_t one = name->type == JSON_STRING ? schema_type_named(json_slice(name)) : 0;
                known = known && one;
                allowed |= one;
            }
        } else {
            known = false;
        }
        if (!known) return schema_broken(s, set->members[i].schema, "type", "there is no such type");
        *types &= allowed;
    }
    return true;
}
