/* JSON schemas to rules: one set of schemas at a time. */
#include "text/grammar/schema.h"

#include "text/grammar/schema_disjoint.h"
#include "text/grammar/schema_parts.h"
#include "text/grammar/schema_rewrite.h"
#include "text/grammar/schema_scalar.h"

/* --- anyOf and oneOf ---------------------------------------------------------------------------------------------- */

/* The other members of the set and one branch. */
static bool with_branch(
    Schemas *s, const SchemaSet *set, uint32_t index, uint64_t resolved, const Json *branch, MemberList *list) {
    members_begin(list, set->place, set->types);
    for (uint32_t i = 0; i < set->count; i++) {
        const Member *m = &set->members[i];
        if (!members_keep(s, list, (Member){m->schema, m->resolved | (i == index ? resolved : 0)})) return false;
    }
    return members_add(s, list, branch, 0);
}

static bool all_disjoint(Schemas *s, const SchemaSet *set, uint32_t index, const Json *branches) {
    const Json *schema = set->members[index].schema;
    if (branches->size > 64) return schema_refuse(s, schema, "oneOf", "it has more than 64 branches");
    for (JSON_EACH(a, branches)) {
        for (const Json *b = json_next(a); b != branches->end; b = json_next(b)) {
            MemberList one, other;
            if (!with_branch(s, set, index, RESOLVED_ONE_OF, a, &one) ||
                !with_branch(s, set, index, RESOLVED_ONE_OF, b, &other))
                return false;
            if (schema_disjoint(s, &one, &other) || schema_is_lenient(s)) continue;
            return schema_refuse(s, schema, "oneOf", "some value might fit two of its branches; say anyOf if it may");
        }
    }
    return true;
}

static Expr branches_of(Schemas *s, const SchemaSet *set, uint32_t index, bool any) {
    Rules *r = s->rules;
    const Json *schema = set->members[index].schema, *branches = json_get(schema, any ? "anyOf" : "oneOf");
    const uint32_t start = r->work_count;
    if (branches->type != JSON_ARRAY || branches->size == 0) {
        schema_broken(s, schema, any ? "anyOf" : "oneOf", "it must be an array of at least one schema");
        return EXPR_NONE;
    }
    if (!any && !all_disjoint(s, set, index, branches)) return EXPR_NONE;
    for (JSON_EACH(branch, branches)) {
        MemberList list;
        if (!with_branch(s, set, index, any ? RESOLVED_ANY_OF : RESOLVED_ONE_OF, branch, &list)) break;
        expr_push(r, schema_set_expr(s, &list));
    }
    return expr_take(r, start, EXPR_IS_OR);
}

/* --- Values by type ----------------------------------------------------------------------------------------------- */

typedef struct Values {
    const SchemaSet *set;
    uint32_t types;
} Values;

/* What of an enumerated value its text alone cannot say: strings and numbers are lexemes, and checked as such. */
static void add_value(Schemas *s, const Json *value, void *context) {
    static const char *const words[] = {"properties", "required", "additionalProperties", "patternProperties",
        "propertyNames", "items", "prefixItems", "additionalItems", "minItems", "maxItems", "minProperties",
        "maxProperties", "uniqueItems", "contains", "unevaluatedProperties", "unevaluatedItems"};
    const Values *values = context;
    static const uint32_t of[] = {
        [JSON_NULL] = TYPE_NULL, [JSON_BOOL] = TYPE_BOOL, [JSON_ARRAY] = TYPE_ARRAY, [JSON_OBJECT] = TYPE_OBJECT};
    if (value->type == JSON_STRING || json_is_number(value) || !(values->types & of[value->type])) return;
    for (uint32_t i = 0; value->type >= JSON_ARRAY && i < values->set->count; i++)
        for (size_t k = 0; k < COUNT_OF(words); k++)
            if (json_get(values->set->members[i].schema, words[k]) && !schema_is_lenient(s))
                schema_refuse(s, values->set->members[i].schema, words[k], "it is not supported beside enum or const");
    expr_push(s->rules, json_form_value(&s->form, value));
}

static Expr word(Schemas *s, const char *text) {
    return expr_lex(s->rules, lex_literal(s->rules->lexicon, slice_of(text)));
}

static void add_types(Schemas *s, const SchemaSet *set, uint32_t types) {
    Rules *r = s->rules;
    if (types & TYPE_NULL) expr_push(r, word(s, "null"));
    const bool python = set->place == PLACE_ARGUMENT && s->arguments->syntax == ARGUMENTS_PYTHON;
    if (types & TYPE_BOOL)
        expr_push(r, EXPR_OR(r, word(s, python ? "True" : "true"), word(s, python ? "False" : "false")));
    if (types & TYPE_ARRAY) expr_push(r, schema_array(s, set));
    if (types & TYPE_OBJECT && !s->budget->failed) expr_push(r, schema_object(s, set));
}

static Expr strings(Schemas *s, const SchemaSet *set, Spelling spelling) {
    Rules *r = s->rules;
    Lexicon *x = r->lexicon;
    Lex all = lex_and2(x, schema_scalar_values(s, set, true, spelling), schema_string(s, set, spelling));
    if (spelling == SPELLING_UTF8 && !s->budget->failed)
        all = lex_and2(x, all, argument_texts(s->arguments, x, set->types, schema_limits_strings(set)));
    return s->budget->failed || !lex_live(x, all) ? EXPR_NONE : expr_lex(r, all);
}

/* Values of these types that a set allows, as JSON. */
static Expr json_values(Schemas *s, const SchemaSet *set, uint32_t types) {
    Rules *r = s->rules;
    Lexicon *x = r->lexicon;
    const uint32_t start = r->work_count;
    Values values = {.set = set, .types = types};
    if (!schema_values(s, set, add_value, &values) && !s->budget->failed) add_types(s, set, types);
    if (types & TYPE_STRING && !s->budget->failed) expr_push(r, strings(s, set, SPELLING_JSON));
    if (types & TYPE_NUMBER && !s->budget->failed)
        expr_push(r,
            expr_lex(r,
                lex_and2(x, schema_scalar_values(s, set, false, SPELLING_JSON),
                    schema_number(s, set, !(types & TYPE_FRACTION)))));
    return expr_take(r, start, EXPR_IS_OR);
}

static Expr marker(Schemas *s, Slice text) { return expr_lex(s->rules, lex_literal(s->rules->lexicon, text)); }

/* The value of an argument with its markers. */
static Expr argument_value(Schemas *s, const SchemaSet *set, uint32_t types) {
    Rules *r = s->rules;
    const ArgumentForm *f = s->arguments;
    if (f->syntax == ARGUMENTS_PYTHON) return json_values(s, set, types);
    types &= set->types; /* a value of another type would be read as one of these */
    const Expr begin = marker(s, f->value_begin), end = marker(s, f->value_end);
    const Expr text = types & TYPE_STRING ? strings(s, set, SPELLING_UTF8) : EXPR_NONE;
    const uint32_t others = set->types == TYPE_STRING ? types & ~(uint32_t)TYPE_STRING : types;
    if (f->syntax == ARGUMENTS_BRACES) return EXPR_OR(r, EXPR_SEQ(r, end, text, end), json_values(s, set, others));
    if (f->typed)
        return EXPR_OR(r, EXPR_SEQ(r, marker(s, SLICE(" string=\"true\"")), begin, text, end),
            EXPR_SEQ(r, marker(s, SLICE(" string=\"false\"")), begin,
                json_values(s, set, types & ~(uint32_t)TYPE_STRING), end));
    return EXPR_SEQ(r, begin, EXPR_OR(r, text, json_values(s, set, others)), end);
}

static Expr values_by_type(Schemas *s, const SchemaSet *set) {
    uint32_t types;
    if (!schema_types(s, set, &types)) return EXPR_NONE;
    if (set->place == PLACE_ARGUMENTS) types &= TYPE_OBJECT;
    return set->place == PLACE_ARGUMENT ? argument_value(s, set, types) : json_values(s, set, types);
}

/* --- Sets --------------------------------------------------------------------------------------------------------- */

static bool refuse_unsupported(Schemas *s, const Json *schema) {
    static const char *const words[] = {"$dynamicRef", "$recursiveRef"};
    for (size_t i = 0; i < COUNT_OF(words) && !schema_is_lenient(s); i++)
        if (json_get(schema, words[i])) return schema_refuse(s, schema, words[i], "it is not supported");
    return true;
}

/* The schema `true`. */
static const Json *nothing_said(void) {
    static const Json yes = {.type = JSON_BOOL, .boolean = true};
    return &yes;
}

static Expr set_body(Schemas *s, const SchemaSet *set) {
    if (set->impossible) return EXPR_NONE;
    for (uint32_t i = 0; i < set->count; i++)
        if (!refuse_unsupported(s, set->members[i].schema)) return EXPR_NONE;
    for (uint32_t i = 0; i < set->count; i++) {
        const Member *m = &set->members[i];
        if (m->resolved & RESOLVED_REWRITTEN || !schema_has_rewritten(m->schema)) continue;
        const Json *rewritten = schema_rewrite(s, m->schema);
        if (!rewritten && schema_is_lenient(s) && s->budget->error.code == ERROR_UNSUPPORTED) {
            s->budget->failed = false;
            rewritten = nothing_said();
        }
        MemberList list;
        const bool ok = rewritten && with_branch(s, set, i, RESOLVED_REWRITTEN, rewritten, &list);
        return ok ? schema_set_expr(s, &list) : EXPR_NONE;
    }
    for (uint32_t i = 0; i < set->count; i++) {
        const Member *m = &set->members[i];
        for (int any = 1; any >= 0; any--)
            if (json_get(m->schema, any ? "anyOf" : "oneOf") &&
                !(m->resolved & (any ? RESOLVED_ANY_OF : RESOLVED_ONE_OF)))
                return branches_of(s, set, i, any);
    }
    return values_by_type(s, set);
}

bool schema_compile(const JsonForm *form, const ArgumentForm *arguments, Slice text, Rule *root) {
    Rules *r = form->rules;
    Schemas s = {
        .rules = r, .budget = r->budget, .form = *form, .arguments = arguments, .arena = {.limit = GRAMMAR_BYTES_MAX}};
    Error error = {0};
    s.pending_end = &s.pending;
    s.root = json_parse(&s.arena, text, &error);
    if (!s.root) budget_fail(r->budget, error.code, "schema: %s", error.text);
    MemberList list;
    members_begin(&list, arguments ? PLACE_ARGUMENTS : PLACE_JSON, TYPE_ALL);
    *root = rule_new(r, SLICE("root"));
    if (s.root && members_add(&s, &list, s.root, 0)) rule_define(r, *root, schema_set_expr(&s, &list));
    while (s.pending && !r->budget->failed) {
        SchemaSet *set = s.pending;
        s.pending = set->next;
        if (!s.pending) s.pending_end = &s.pending;
        rule_define(r, set->rule, set_body(&s, set));
    }
    map_free(&s.sets);
    map_free(&s.rewritten);
    arena_free(&s.arena);
    return !r->budget->failed;
}
