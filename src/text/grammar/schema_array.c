/* Arrays of JSON schemas. */
#include "text/grammar/schema_parts.h"

typedef struct ArrayBounds {
    uint32_t min, max, prefix; /* prefix: elements with schemas of their own */
} ArrayBounds;

/* prefixItems, or items as a list in older drafts. */
static const Json *prefix_of(const Json *schema) {
    const Json *prefix = json_get(schema, "prefixItems"), *items = json_get(schema, "items");
    return prefix && prefix->type == JSON_ARRAY ? prefix : items && items->type == JSON_ARRAY ? items : NULL;
}

/* The schema of the elements after the prefix; NULL: none. */
static bool rest_of(Schemas *s, const Json *schema, const Json **rest) {
    const Json *items = json_get(schema, "items");
    const bool list = items && items->type == JSON_ARRAY;
    return schema_rest(s, schema, list ? "additionalItems" : "items", "unevaluatedItems", rest);
}

static bool check_member(Schemas *s, const Json *schema, ArrayBounds *bounds) {
    const Json *prefix = prefix_of(schema), *rest;
    const Json *unique = json_get(schema, "uniqueItems");
    uint32_t min, max;
    if (!schema_count(s, schema, "minItems", 0, &min) || !schema_count(s, schema, "maxItems", LEX_FOREVER, &max))
        return false;
    if (json_get(schema, "contains") && !schema_is_lenient(s))
        return schema_refuse(s, schema, "contains", "it is not supported");
    if (!rest_of(s, schema, &rest)) return false;
    if (unique && unique->type == JSON_BOOL && unique->boolean && max > 1 && !schema_is_lenient(s))
        return schema_refuse(s, schema, "uniqueItems", "it is supported for arrays of at most one element only");
    bounds->min = min > bounds->min ? min : bounds->min;
    bounds->max = max < bounds->max ? max : bounds->max;
    if (prefix && prefix->size > bounds->prefix) bounds->prefix = prefix->size;
    return true;
}

/* The element at an index; UINT32_MAX: any element after all prefixes. */
static Expr element(Schemas *s, const SchemaSet *set, uint32_t index) {
    MemberList list;
    members_begin(&list, PLACE_JSON, TYPE_ALL);
    for (uint32_t i = 0; i < set->count; i++) {
        const Json *schema = set->members[i].schema, *prefix = prefix_of(schema), *one;
        if (!rest_of(s, schema, &one)) return EXPR_NONE;
        if (prefix && index < prefix->size) {
            one = json_first(prefix);
            for (uint32_t k = 0; k < index; k++) one = json_next(one);
        }
        if (one && !members_add(s, &list, one, 0)) return EXPR_NONE;
    }
    return schema_set_expr(s, &list);
}

Expr schema_array(Schemas *s, const SchemaSet *set) {
    Rules *r = s->rules;
    ArrayBounds bounds = {.max = LEX_FOREVER};
    for (uint32_t i = 0; i < set->count; i++)
        if (!check_member(s, set->members[i].schema, &bounds)) return EXPR_NONE;
    const uint32_t prefix = bounds.prefix < bounds.max ? bounds.prefix : bounds.max, min = bounds.min;
    if (min > bounds.max) return EXPR_NONE;
    const uint32_t max = bounds.max == LEX_FOREVER ? LEX_FOREVER : bounds.max - prefix;
    const Expr rest = max ? element(s, set, UINT32_MAX) : EXPR_NONE;
    if (!prefix) {
        const Expr list = max ? json_form_list(&s->form, rest, min ? min : 1, max) : EXPR_NONE;
        return json_form_around(&s->form, "[]", min == 0, list);
    }
    /* From the last element of the prefix to the first, each with its continuations. */
    Expr tail = expr_repeat(r, EXPR_SEQ(r, s->form.comma, rest), min > prefix ? min - prefix : 0, max);
    for (uint32_t i = prefix - 1; i > 0 && budget_step(s->budget, 1); i--) {
        tail = EXPR_SEQ(r, s->form.comma, element(s, set, i), tail);
        if (i >= min) tail = expr_optional(r, tail);
    }
    return json_form_around(&s->form, "[]", min == 0, EXPR_SEQ(r, element(s, set, 0), tail));
}
