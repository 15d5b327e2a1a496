/* Objects of JSON schemas. Properties come in the order of the schema, then the keys of additionalProperties and
 * patternProperties. */
#include <stdlib.h>

#include "text/grammar/schema_parts.h"
#include "text/grammar/schema_scalar.h"

enum { GRID_MAX = 1 << 16 }; /* properties × number of pairs before them */

typedef struct Mention { /* a schema of a property */
    uint32_t member;
    const Json *value;
    uint32_t next; /* index of the previous entry of the same property, + 1 */
} Mention;

typedef struct Property {
    Slice name;
    bool required;
    uint32_t mention; /* the last, + 1 */
    Expr pair;        /* "name": value; EXPR_NONE: cannot be there */
} Property;

typedef struct Pattern { /* a key of patternProperties */
    uint32_t member;
    const Json *key, *schema;
    Lex lex;
} Pattern;

typedef struct Object {
    Schemas *s;
    const SchemaSet *set;
    Property *properties;
    uint32_t count, capacity;
    uint32_t own; /* properties that this object's schemas name; those behind them are named by other branches */
    Map names;    /* to places in properties */
    Mention *mentions;
    uint32_t mention_count, mention_capacity;
    Pattern *patterns;
    uint32_t pattern_count, pattern_capacity;
    Lex key_limit;       /* keys that propertyNames allows and, in arguments, that the syntax can spell */
    Spelling spelling;   /* the keys are spelled so */
    Expr begin, colon;   /* around a key */
    Expr comma;          /* between pairs */
    bool separate;       /* the pairs are arguments one by one, not a JSON object */
    bool has_properties; /* "properties" is somewhere in the set */
    uint32_t min, max;
    Expr others; /* a pair with any other key */
} Object;

/* --- Reading ------------------------------------------------------------------------------------------------------ */

/* The property of that name, made when it is new; NULL: a failure. */
static Property *property_add(Object *o, Slice name) {
    Budget *budget = o->s->budget;
    uint64_t place;
    if (map_get(&o->names, name, &place)) return &o->properties[place];
    o->properties = budget_grow(budget, o->properties, &o->capacity, (uint64_t)o->count + 1, sizeof *o->properties);
    if (!budget_step(budget, 1)) return NULL;
    if (!map_put(&o->names, name, o->count)) {
        budget_fail(budget, ERROR_MEMORY, "no memory for a schema");
        return NULL;
    }
    o->properties[o->count] = (Property){.name = name};
    return &o->properties[o->count++];
}

static bool mention_add(Object *o, uint32_t member, Slice name, const Json *value) {
    Property *property = property_add(o, name);
    if (!property) return false;
    o->mentions = budget_grow(
        o->s->budget, o->mentions, &o->mention_capacity, (uint64_t)o->mention_count + 1, sizeof *o->mentions);
    if (o->s->budget->failed) return false;
    o->mentions[o->mention_count++] = (Mention){member, value, property->mention};
    property->mention = o->mention_count;
    return true;
}

static bool pattern_add(Object *o, uint32_t member, const Json *key, const Json *value) {
    Schemas *s = o->s;
    const Json *schema = o->set->members[member].schema;
    const Lex lex = schema_pattern(s, schema, "patternProperties", json_slice(key), o->spelling);
    o->patterns =
        budget_grow(s->budget, o->patterns, &o->pattern_capacity, (uint64_t)o->pattern_count + 1, sizeof *o->patterns);
    if (s->budget->failed) return false;
    o->patterns[o->pattern_count++] = (Pattern){member, key, value, lex};
    return true;
}

static bool read_names(Object *o, const Json *schema) {
    const Json *names = json_get(schema, "propertyNames");
    MemberList list;
    members_begin(&list, PLACE_JSON, TYPE_ALL);
    if (!names) return true;
    if (!members_add(o->s, &list, names, 0)) return false;
    Lexicon *x = o->s->rules->lexicon;
    const Lex lex = list.impossible
        ? LEX_NONE
        : schema_key(o->s, &(SchemaSet){.members = list.data, .count = list.count}, o->spelling);
    if (o->s->budget->failed) return false;
    o->key_limit = lex_and2(x, o->key_limit, lex);
    return true;
}

static bool read_member(Object *o, uint32_t member) {
    Schemas *s = o->s;
    const Json *schema = o->set->members[member].schema;
    const Json *properties = json_get(schema, "properties"), *patterns = json_get(schema, "patternProperties"), *rest;
    uint32_t min, max;
    if (properties && properties->type != JSON_OBJECT)
        return schema_broken(s, schema, "properties", "it must be an object");
    if (patterns && patterns->type != JSON_OBJECT)
        return schema_broken(s, schema, "patternProperties", "it must be an object");
    if (!schema_rest(s, schema, "additionalProperties", "unevaluatedProperties", &rest) ||
        !schema_count(s, schema, "minProperties", 0, &min) ||
        !schema_count(s, schema, "maxProperties", LEX_FOREVER, &max) || !read_names(o, schema))
        return false;
    o->min = min > o->min ? min : o->min;
    o->max = max < o->max ? max : o->max;
    o->has_properties = o->has_properties || properties;
    if (properties)
        for (JSON_EACH_PAIR(key, value, properties))
            if (!mention_add(o, member, json_slice(key), value)) return false;
    if (patterns)
        for (JSON_EACH_PAIR(key, value, patterns))
            if (!pattern_add(o, member, key, value)) return false;
    return true;
}

static bool read_required(Object *o, const Json *schema) {
    const Json *required = json_get(schema, "required");
    if (!required || required->type == JSON_BOOL) return true; /* a flag of the property itself in the oldest draft */
    if (required->type != JSON_ARRAY) return schema_broken(o->s, schema, "required", "it must be an array");
    for (JSON_EACH(name, required)) {
        if (name->type != JSON_STRING) return schema_broken(o->s, schema, "required", "it must hold strings");
        Property *property = property_add(o, json_slice(name));
        if (!property) return false;
        property->required = true;
    }
    return true;
}

/* --- Values ------------------------------------------------------------------------------------------------------- */

/* The types of a key that no "properties" of the schema names. */
static uint32_t argument_other_types(const Object *o) { return schema_member_types(o->s->root, (Slice){NULL, 0}); }

/* Calls and answers have the members that their schemas name, unless these permit further ones or require more than
 * they name. */
static bool is_closed(const Object *o) {
    const bool closed = o->set->place == PLACE_ARGUMENTS || (o->s->form.closed && o->own > 0);
    return closed && o->has_properties && o->min <= o->own;
}

static bool add_name(void *context, Slice name) { return property_add(context, name); }

/* The reader of arguments between markers knows the types of a key by its name and the whole schema. So keys that
 * other branches name are properties of their own, not among all other keys. */
static bool read_others(Object *o) {
    const ArgumentForm *f = o->s->arguments;
    o->own = o->count;
    return !o->separate || f->syntax != ARGUMENTS_TAGGED || f->typed || schema_member_names(o->s->root, add_name, o);
}

/* What the set says of the value of a property (its name and its spelled key), or of any key that matches a pattern
 * like `like`, or (both NULL) of all other keys. */
static Expr value_of(Object *o, const Property *property, Slice spelled, const Pattern *like) {
    Schemas *s = o->s;
    MemberList list;
    const uint32_t types = !o->separate ? TYPE_ALL
        : property                      ? schema_member_types(s->root, property->name)
                                        : argument_other_types(o);
    bool said = false;
    members_begin(&list, o->separate ? PLACE_ARGUMENT : PLACE_JSON, types);
    for (uint32_t i = 0; i < o->set->count && !s->budget->failed; i++) {
        const Json *rest;
        bool known = !schema_rest(s, o->set->members[i].schema, "additionalProperties", "unevaluatedProperties", &rest);
        for (uint32_t m = property ? property->mention : 0; m; m = o->mentions[m - 1].next) {
            if (o->mentions[m - 1].member != i) continue;
            known = members_add(s, &list, o->mentions[m - 1].value, 0);
        }
        for (uint32_t k = 0; k < o->pattern_count; k++) {
            const Pattern *p = &o->patterns[k];
            bool fits = like && slice_equal(json_slice(p->key), json_slice(like->key));
            if (property) fits = lex_matches(s->rules->lexicon, p->lex, spelled);
            if (p->member == i && fits) known = members_add(s, &list, p->schema, 0);
        }
        if (!known && rest) members_add(s, &list, rest, 0);
        said = said || known || rest;
    }
    const bool foreign = !property || (!property->mention && !property->required);
    if (foreign && !said && is_closed(o)) return EXPR_NONE;
    return schema_set_expr(s, &list);
}

static void spell(const Object *o, Slice name, Buffer *out) {
    if (o->spelling == SPELLING_JSON)
        json_write_string(out, name);
    else
        buffer_slice(out, name);
}

static void make_pair(Object *o, Property *property) {
    Rules *r = o->s->rules;
    Buffer spelled = {0};
    spell(o, property->name, &spelled);
    if (spelled.failed) budget_fail(o->s->budget, ERROR_MEMORY, "no memory for a schema");
    if (!spelled.failed && lex_matches(r->lexicon, o->key_limit, buffer_view(&spelled))) {
        const Expr value = value_of(o, property, buffer_view(&spelled), NULL);
        const Expr key = expr_lex(r, lex_literal(r->lexicon, buffer_view(&spelled)));
        property->pair = value ? EXPR_SEQ(r, o->begin, key, o->colon, value) : EXPR_NONE;
    } else if (o->separate && property->required && !spelled.failed) {
        schema_refuse(o->s, o->s->root, "required", "this model's calls cannot spell one of the names");
    }
    buffer_free(&spelled);
}

/* Keys that are no property and match no pattern except those like `like`. */
static Lex other_keys(Object *o, const Pattern *like) {
    Schemas *s = o->s;
    Lexicon *x = s->rules->lexicon;
    const uint32_t start = x->work.count;
    Slice *texts = arena_alloc(&s->arena, o->count, sizeof *texts);
    if (!texts) budget_fail(s->budget, arena_failure(&s->arena), "no memory for a schema");
    for (uint32_t i = 0; texts && i < o->count; i++) {
        Buffer spelled = {0};
        spell(o, o->properties[i].name, &spelled);
        texts[i] = (Slice){spelled.failed ? NULL : arena_copy(&s->arena, buffer_view(&spelled)), spelled.size};
        if (!texts[i].data) budget_fail(s->budget, ERROR_MEMORY, "no memory for a schema");
        buffer_free(&spelled);
    }
    if (s->budget->failed) return LEX_NONE;
    if (o->key_limit == LEX_ALL && !o->count && !o->pattern_count) return s->form.string;
    if (!o->separate) lex_push(x, s->form.key);
    lex_push(x, o->key_limit);
    lex_push(x, lex_not(x, lex_literals(x, texts, o->count)));
    for (uint32_t i = 0; i < o->pattern_count; i++) {
        const bool same = like && slice_equal(json_slice(o->patterns[i].key), json_slice(like->key));
        lex_push(x, same ? o->patterns[i].lex : lex_not(x, o->patterns[i].lex));
    }
    return lex_combine(x, start, LEX_IS_AND);
}

static void make_others(Object *o) {
    Rules *r = o->s->rules;
    const uint32_t start = r->work_count;
    for (uint32_t i = 0; i <= o->pattern_count && !o->s->budget->failed; i++) {
        const Pattern *like = i < o->pattern_count ? &o->patterns[i] : NULL;
        const Expr value = value_of(o, NULL, (Slice){0}, like);
        const Lex key = value ? other_keys(o, like) : LEX_NONE;
        if (key && lex_live(r->lexicon, key)) expr_push(r, EXPR_SEQ(r, o->begin, expr_lex(r, key), o->colon, value));
    }
    o->others = expr_take(r, start, EXPR_IS_OR);
}

/* --- Order -------------------------------------------------------------------------------------------------------- */

/* Keys differ, so where a minimum is asked for the other keys count as at most one pair. */
static Expr more_others(Object *o, uint32_t min, uint32_t max, bool first) {
    Rules *r = o->s->rules;
    if (min > 1) return EXPR_NONE;
    const Expr more = EXPR_SEQ(r, o->comma, o->others);
    if (!first) return expr_repeat(r, more, min, max);
    return EXPR_SEQ(r, o->others, expr_repeat(r, more, 0, max == LEX_FOREVER ? max : max - 1));
}

/* From the last property to the first: the continuations after `done` pairs, for each number that the bounds tell
 * apart. next: [places] expressions. */
static Expr in_order(Object *o, Expr *next, uint32_t places, uint32_t min, uint32_t max) {
    Rules *r = o->s->rules;
    for (uint32_t done = 0; done < places; done++)
        next[done] = more_others(o, min > done ? min - done : 0, max == LEX_FOREVER ? max : max - done, false);
    Expr begin = more_others(o, min, max, true);
    for (uint32_t i = o->count; i-- > 0 && budget_step(o->s->budget, places);) {
        const Property *p = &o->properties[i];
        const Expr begin_here = EXPR_SEQ(r, p->pair, next[places > 1 ? 1 : 0]);
        begin = p->required ? begin_here : EXPR_OR(r, begin_here, begin);
        for (uint32_t done = 0; done < places;
             done++) { /* upwards: next[done + 1] still belongs to the following property */
            const bool full = max != LEX_FOREVER && done + 1 > max;
            const uint32_t then = done + 1 < places ? done + 1 : done;
            const Expr here = full ? EXPR_NONE : EXPR_SEQ(r, o->comma, p->pair, next[then]);
            next[done] = p->required ? here : EXPR_OR(r, here, next[done]);
        }
    }
    return begin;
}

static Expr around(Object *o, bool empty, Expr some) {
    if (!o->separate) return json_form_around(&o->s->form, "{}", empty, some);
    return empty ? expr_optional(o->s->rules, some) : some;
}

static Expr make_object(Object *o) {
    Budget *budget = o->s->budget;
    uint32_t required = 0, min = o->min, max = o->max;
    for (uint32_t i = 0; i < o->count; i++) required += o->properties[i].required;
    if (min > max || required > max) return EXPR_NONE;
    if (min > o->count + 1) {
        schema_refuse(o->s, o->set->members[0].schema, "minProperties",
            "it is supported up to one more than there are named properties");
        return EXPR_NONE;
    }
    const bool empty = required == 0 && min == 0;
    if (max == 0) return around(o, true, EXPR_NONE);
    if (min <= (required ? required : 1)) min = 0; /* that many there are anyway: without any, it is `empty` */
    if (max >= o->count && !o->others) max = LEX_FOREVER;
    uint32_t places = max != LEX_FOREVER && max > min ? max : min;
    places = (places < o->count ? places : o->count) + 1;
    if (min == 0 && max == LEX_FOREVER) places = 1;
    if ((uint64_t)places * (o->count + 1) > GRID_MAX) {
        if (places > 1)
            schema_refuse(o->s, o->set->members[0].schema, "maxProperties", "there are too many properties");
        if (places > 1) return EXPR_NONE;
    }
    Expr *next = budget_alloc(budget, places * sizeof *next);
    if (!next) return EXPR_NONE;
    const Expr some = in_order(o, next, places, min, max);
    budget_free(budget, next, places * sizeof *next);
    return around(o, empty, some);
}

/* How the object of a place is spelled. */
static void set_form(Object *o) {
    const JsonForm *json = &o->s->form;
    const ArgumentForm *f = o->s->arguments;
    Rules *r = json->rules;
    Lexicon *x = r->lexicon;
    o->separate = o->set->place == PLACE_ARGUMENTS && f->syntax != ARGUMENTS_JSON;
    o->spelling = o->separate ? SPELLING_UTF8 : SPELLING_JSON;
    o->key_limit = o->separate ? argument_keys(f, x) : LEX_ALL;
    o->begin = EXPR_EMPTY;
    o->colon = json->colon;
    o->comma = json->comma;
    if (!o->separate) return;
    const bool tagged = f->syntax == ARGUMENTS_TAGGED, python = f->syntax == ARGUMENTS_PYTHON;
    if (tagged) o->begin = expr_lex(r, lex_literal(x, f->key_begin));
    o->colon = expr_lex(r, lex_literal(x, tagged ? f->key_end : python ? SLICE("=") : SLICE(":")));
    o->comma = tagged ? EXPR_EMPTY : expr_lex(r, lex_literal(x, python ? SLICE(", ") : SLICE(",")));
}

Expr schema_object(Schemas *s, const SchemaSet *set) {
    Object o = {.s = s, .set = set, .max = LEX_FOREVER};
    bool ok = true;
    set_form(&o);
    for (uint32_t i = 0; i < set->count && ok; i++) ok = read_member(&o, i);
    for (uint32_t i = 0; i < set->count && ok; i++) ok = read_required(&o, set->members[i].schema);
    ok = ok && read_others(&o);
    for (uint32_t i = 0; i < o.count && ok && !s->budget->failed; i++) make_pair(&o, &o.properties[i]);
    if (ok && !s->budget->failed) make_others(&o);
    const Expr object = ok && !s->budget->failed ? make_object(&o) : EXPR_NONE;
    budget_free(s->budget, o.properties, o.capacity * sizeof *o.properties);
    budget_free(s->budget, o.mentions, o.mention_capacity * sizeof *o.mentions);
    budget_free(s->budget, o.patterns, o.pattern_capacity * sizeof *o.patterns);
    map_free(&o.names);
    return object;
}
