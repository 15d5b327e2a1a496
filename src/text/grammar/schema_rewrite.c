/* Rewritten as text, which is parsed again, so that references still resolve in the whole schema. A negation is never
 * wider than its original: where a number's constraint cannot be negated, numbers are left out. */
#include "text/grammar/schema_rewrite.h"

enum { NEGATION_DEPTH_MAX = 32, NEGATION_BYTES_MAX = 1 << 20 };

typedef struct Rewriter {
    Schemas *s;
    const Json *schema; /* schema of the rewritten keywords, for messages */
    const char *keyword;
    Buffer text;
    int depth;
} Rewriter;

bool schema_has_rewritten(const Json *schema) {
    static const char *const words[] = {"not", "dependentRequired", "dependentSchemas", "dependencies"};
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (json_get(schema, words[i])) return true;
    return json_get(schema, "if") && (json_get(schema, "then") || json_get(schema, "else"));
}

static bool refuse(Rewriter *w, const char *why) { return schema_refuse(w->s, w->schema, w->keyword, why); }

/* --- Small schemas ------------------------------------------------------------------------------------------------ */

/* Members of a list that is being written. */
static void comma(Rewriter *w) {
    const Slice text = buffer_view(&w->text);
    if (text.size > 0 && text.data[text.size - 1] != '[') buffer_byte(&w->text, ',');
}

static void put_text(Rewriter *w, const char *text) { buffer_text(&w->text, text); }
static void put_json(Rewriter *w, const Json *value) { json_write(&w->text, value); }

/* {"type":"…","keyword":value} */
static void put_bound(Rewriter *w, const char *type, const char *keyword, const Json *value) {
    comma(w);
    buffer_printf(&w->text, "{\"type\":\"%s\",\"%s\":", type, keyword);
    put_json(w, value);
    put_text(w, "}");
}

/* The same with value + step, where that is a count. */
static bool put_count(
    Rewriter *w, const char *type, const char *keyword, const Json *schema, const char *of, int step) {
    uint32_t count;
    if (!schema_count(w->s, schema, of, 0, &count)) return false;
    if (count == 0 && step < 0) return true; /* no count is lower */
    comma(w);
    buffer_printf(&w->text, "{\"type\":\"%s\",\"%s\":%lld}", type, keyword, (long long)count + step);
    return true;
}

/* --- Negations ---------------------------------------------------------------------------------------------------- */

static bool negate(Rewriter *w, const Json *schema);

static bool negate_type(Rewriter *w, const Json *schema) {
    static const struct {
        SchemaType type;
        const char *name;
    } names[] = {{TYPE_NULL, "null"}, {TYPE_BOOL, "boolean"}, {TYPE_STRING, "string"}, {TYPE_ARRAY, "array"},
        {TYPE_OBJECT, "object"}};
    Member member = {schema, 0};
    uint32_t types;
    if (!schema_types(w->s, &(SchemaSet){.members = &member, .count = 1}, &types)) return false;
    comma(w);
    put_text(w, "{\"type\":[");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (types & names[i].type) continue;
        comma(w);
        buffer_printf(&w->text, "\"%s\"", names[i].name);
    }
    if (!(types & TYPE_NUMBER)) {
        comma(w);
        put_text(w, "\"number\"");
    }
    put_text(w, "]}");
    return true;
}

static bool has_value(const Json *list, JsonType type, bool truth) {
    for (JSON_EACH(value, list))
        if (value->type == (uint32_t)type && (type != JSON_BOOL || value->boolean == truth)) return true;
    return false;
}

/* Types of which a value is listed are left out, but for strings and single numbers. */
static bool negate_values(Rewriter *w, const Json *list) {
    const Json *number = NULL;
    bool strings = false, numbers = false;
    for (JSON_EACH(value, list)) {
        strings |= value->type == JSON_STRING;
        numbers |= number && json_is_number(value);
        if (json_is_number(value)) number = value;
    }
    static const struct {
        JsonType type;
        const char *schema;
        bool truth;
    } others[] = {{JSON_NULL, "{\"type\":\"null\"}", false}, {JSON_BOOL, "{\"const\":true}", true},
        {JSON_BOOL, "{\"const\":false}", false}, {JSON_ARRAY, "{\"type\":\"array\"}", false},
        {JSON_OBJECT, "{\"type\":\"object\"}", false}};
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        if (has_value(list, others[i].type, others[i].truth)) continue;
        comma(w);
        put_text(w, others[i].schema);
    }
    if (!number) {
        comma(w);
        put_text(w, "{\"type\":\"number\"}");
    } else if (!numbers) {
        comma(w);
        put_text(w, "{\"type\":\"number\",\"exclusiveMinimum\":");
        put_json(w, number);
        put_text(w, "},{\"type\":\"number\",\"exclusiveMaximum\":");
        put_json(w, number);
        put_text(w, "}");
    }
    comma(w);
    put_text(w, "{\"type\":\"string\"");
    if (strings) {
        put_text(w, ",\"\\u0001enum\":");
        put_json(w, list);
    }
    put_text(w, "}");
    return true;
}

static bool negate_required(Rewriter *w, const Json *required) {
    if (required->type != JSON_ARRAY) return refuse(w, "a 'required' in it is no array");
    for (JSON_EACH(name, required)) {
        if (name->type != JSON_STRING) return refuse(w, "a name in a 'required' in it is no string");
        comma(w);
        put_text(w, "{\"type\":\"object\",\"properties\":{");
        put_json(w, name);
        put_text(w, ":false}}");
    }
    return true;
}

static bool negate_properties(Rewriter *w, const Json *properties) {
    if (properties->type != JSON_OBJECT) return refuse(w, "a 'properties' in it is no object");
    for (JSON_EACH_PAIR(key, value, properties)) {
        comma(w);
        put_text(w, "{\"type\":\"object\",\"required\":[");
        put_json(w, key);
        put_text(w, "],\"properties\":{");
        put_json(w, key);
        put_text(w, ":");
        if (!negate(w, value)) return false;
        put_text(w, "}}");
    }
    return true;
}

/* Each schema of a list, in {"anyOf": […]} or {"allOf": […]}. */
static bool negate_each(Rewriter *w, const Json *list, const char *joined) {
    if (list->type != JSON_ARRAY || list->size == 0) return refuse(w, "a list of schemas in it is none");
    comma(w);
    buffer_printf(&w->text, "{\"%s\":[", joined);
    for (JSON_EACH(part, list)) {
        comma(w);
        if (!negate(w, part)) return false;
    }
    put_text(w, "]}");
    return true;
}

/* Keywords without an opposite keyword. */
static bool refuse_opaque(Rewriter *w, Slice name) {
    static const char *const words[] = {"additionalProperties", "patternProperties", "propertyNames", "items",
        "prefixItems", "additionalItems", "contains", "uniqueItems", "multipleOf", "format", "if", "dependentRequired",
        "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef",
        "$recursiveRef"};
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (slice_is(name, words[i])) return refuse(w, "what is in it cannot be turned round");
    return true;
}

/* A value that breaks this keyword: schemas, appended to a list. */
static bool negate_keyword(Rewriter *w, const Json *schema, Slice name, const Json *value) {
    Schemas *s = w->s;
    if (slice_is(name, "type")) return negate_type(w, schema);
    if (slice_is(name, "enum"))
        return value->type == JSON_ARRAY ? negate_values(w, value) : refuse(w, "an enum is none");
    if (slice_is(name, "required")) return value->type == JSON_BOOL || negate_required(w, value);
    if (slice_is(name, "properties")) return negate_properties(w, value);
    if (slice_is(name, "minLength")) return put_count(w, "string", "maxLength", schema, "minLength", -1);
    if (slice_is(name, "maxLength")) return put_count(w, "string", "minLength", schema, "maxLength", 1);
    if (slice_is(name, "minItems")) return put_count(w, "array", "maxItems", schema, "minItems", -1);
    if (slice_is(name, "maxItems")) return put_count(w, "array", "minItems", schema, "maxItems", 1);
    if (slice_is(name, "minProperties")) return put_count(w, "object", "maxProperties", schema, "minProperties", -1);
    if (slice_is(name, "maxProperties")) return put_count(w, "object", "minProperties", schema, "maxProperties", 1);
    if (slice_is(name, "anyOf") || slice_is(name, "oneOf")) return negate_each(w, value, "allOf"); /* none of them */
    if (slice_is(name, "allOf")) return negate_each(w, value, "anyOf");
    if (slice_is(name, "pattern")) {
        put_bound(w, "string", "\\u0001pattern", value);
        return true;
    }
    if (slice_is(name, "const")) {
        const Json list[2] = {{.type = JSON_ARRAY, .size = 1, .end = list + 2}, *value};
        if (value->type < JSON_ARRAY) return negate_values(w, list);
        comma(w);
        buffer_printf(&w->text, "{\"type\":[\"null\",\"boolean\",\"number\",\"string\",\"%s\"]}",
            value->type == JSON_ARRAY ? "object" : "array");
        return true;
    }
    const struct {
        const char *name, *other;
    } bounds[] = {{"minimum", "exclusiveMaximum"}, {"maximum", "exclusiveMinimum"}, {"exclusiveMinimum", "maximum"},
        {"exclusiveMaximum", "minimum"}};
    for (size_t i = 0; i < COUNT_OF(bounds); i++) {
        if (!slice_is(name, bounds[i].name)) continue;
        if (!json_is_number(value)) return refuse(w, "a bound in it is no number");
        put_bound(w, "number", bounds[i].other, value);
        return true;
    }
    if (slice_is(name, "not")) {
        comma(w);
        put_json(w, value);
        return true;
    }
    if (slice_is(name, "$ref")) {
        const Json *target = value->type == JSON_STRING ? schema_resolve(s, schema, json_slice(value)) : NULL;
        comma(w);
        return target ? negate(w, target) : refuse(w, "a reference in it points to nothing");
    }
    return refuse_opaque(w, name);
}

/* A draft-4 flag beside a bound changes its meaning. */
static bool check_flags(Rewriter *w, const Json *schema) {
    const Json *low = json_get(schema, "exclusiveMinimum"), *high = json_get(schema, "exclusiveMaximum");
    const bool flags = (low && low->type == JSON_BOOL) || (high && high->type == JSON_BOOL);
    return !flags || refuse(w, "a bound in it is a flag");
}

/* One schema that is its opposite. */
static bool negate(Rewriter *w, const Json *schema) {
    if (schema->type == JSON_BOOL) {
        put_text(w, schema->boolean ? "false" : "true");
        return true;
    }
    if (schema->type != JSON_OBJECT) return refuse(w, "a schema in it is none");
    if (++w->depth > NEGATION_DEPTH_MAX || w->text.size > NEGATION_BYTES_MAX) return refuse(w, "it goes too deep");
    if (!budget_step(w->s->budget, 1 + schema->size) || !check_flags(w, schema)) return false;
    put_text(w, "{\"anyOf\":[");
    const size_t empty = w->text.size;
    for (JSON_EACH_PAIR(key, value, schema))
        if (!negate_keyword(w, schema, json_slice(key), value)) return false;
    if (w->text.size == empty) put_text(w, "false"); /* the schema allows everything, so its negation allows nothing */
    put_text(w, "]}");
    w->depth--;
    return true;
}

/* --- Keywords ----------------------------------------------------------------------------------------------------- */

/* Either without the property, or with the dependency. */
static bool write_dependency(Rewriter *w, const Json *key, const Json *value) {
    comma(w);
    put_text(w, "{\"anyOf\":[{\"properties\":{");
    put_json(w, key);
    put_text(w, ":false}},{\"required\":[");
    put_json(w, key);
    if (value->type == JSON_ARRAY) {
        for (JSON_EACH(name, value)) {
            comma(w);
            put_json(w, name);
        }
        put_text(w, "]}]}");
        return true;
    }
    if (value->type == JSON_STRING) { /* draft 3 */
        comma(w);
        put_json(w, value);
        put_text(w, "]}]}");
        return true;
    }
    put_text(w, "],\"allOf\":[");
    put_json(w, value);
    put_text(w, "]}]}");
    return true;
}

static bool write_dependencies(Rewriter *w, const char *keyword) {
    const Json *all = json_get(w->schema, keyword);
    w->keyword = keyword;
    if (!all) return true;
    if (all->type != JSON_OBJECT) return schema_broken(w->s, w->schema, keyword, "it must be an object");
    for (JSON_EACH_PAIR(key, value, all))
        if (!write_dependency(w, key, value)) return false;
    return true;
}

static bool write_condition(Rewriter *w) {
    const Json *condition = json_get(w->schema, "if"), *yes = json_get(w->schema, "then"),
               *no = json_get(w->schema, "else");
    w->keyword = "if";
    if (!condition || (!yes && !no)) return true;
    comma(w);
    put_text(w, "{\"anyOf\":[{\"allOf\":[");
    put_json(w, condition);
    if (yes) {
        comma(w);
        put_json(w, yes);
    }
    put_text(w, "]},{\"allOf\":[");
    if (!negate(w, condition)) return false;
    if (no) {
        comma(w);
        put_json(w, no);
    }
    put_text(w, "]}]}");
    return true;
}

static bool write_negation(Rewriter *w) {
    const Json *schema = json_get(w->schema, "not");
    w->keyword = "not";
    if (!schema) return true;
    comma(w);
    return negate(w, schema);
}

static bool write_all(Rewriter *w) {
    put_text(w, "{\"allOf\":[");
    if (!write_negation(w) || !write_condition(w) || !write_dependencies(w, "dependentRequired") ||
        !write_dependencies(w, "dependentSchemas") || !write_dependencies(w, "dependencies"))
        return false;
    put_text(w, "]}");
    return !w->text.failed || budget_fail(w->s->budget, ERROR_MEMORY, "no memory for a schema");
}

const Json *schema_rewrite(Schemas *s, const Json *schema) {
    const Slice key = {(const char *)&schema, sizeof schema};
    uint64_t found;
    if (map_get(&s->rewritten, key, &found)) return (const Json *)(uintptr_t)found;
    Rewriter w = {.s = s, .schema = schema};
    const Json *made = NULL;
    Error error = {0};
    if (write_all(&w)) {
        const char *text = arena_copy(&s->arena, buffer_view(&w.text));
        const char *name = arena_copy(&s->arena, key);
        made = text && name ? json_parse(&s->arena, (Slice){text, w.text.size}, &error) : NULL;
        if (!made || !map_put(&s->rewritten, (Slice){name, sizeof schema}, (uintptr_t)made)) {
            budget_fail(s->budget, error.code ? error.code : ERROR_MEMORY, "schema: %s",
                error.code ? error.text : "no memory for a schema");
            made = NULL;
        }
    }
    buffer_free(&w.text);
    return made;
}
