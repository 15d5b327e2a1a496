/* Strings and numbers of JSON schemas. */
#include "text/grammar/schema_scalar.h"

#include "text/grammar/format.h"
#include "text/grammar/number.h"
#include "text/grammar/pattern.h"
#include "text/grammar/schema_rewrite.h"

/* --- Strings ------------------------------------------------------------------------------------------------------ */

Lex schema_pattern(Schemas *s, const Json *schema, const char *keyword, Slice pattern, Spelling spelling) {
    Lexicon *x = s->rules->lexicon;
    const Lex lex = spelling == SPELLING_JSON ? pattern_in_json(x, pattern) : pattern_in_text(x, pattern);
    if (s->budget->failed && s->budget->error.code != ERROR_MEMORY) {
        const Error why = s->budget->error;
        s->budget->failed = false;
        if (why.code == ERROR_UNSUPPORTED && schema_is_lenient(s)) return LEX_ALL;
        schema_refuse(s, schema, keyword, why.text);
        s->budget->error.code = why.code;
    }
    return lex;
}

static Lex format_of(Schemas *s, const Json *schema, Spelling spelling) {
    const Json *format = json_get(schema, "format");
    const char *pattern = NULL;
    if (!format || format->type != JSON_STRING) return LEX_ALL;
    const FormatKind kind = format_pattern(json_slice(format), &pattern);
    if (kind == FORMAT_REFUSED && !schema_is_lenient(s))
        schema_refuse(s, schema, "format", "this format is not supported");
    return kind == FORMAT_KNOWN ? schema_pattern(s, schema, "format", slice_of(pattern), spelling) : LEX_ALL;
}

static Lex listed_texts(Schemas *s, const Json *list, Spelling spelling);

/* Any string, each in one spelling. */
static Lex any_string(Schemas *s, uint32_t min, uint32_t max, Spelling spelling) {
    Lexicon *x = s->rules->lexicon;
    if (spelling == SPELLING_UTF8) return lex_repeat(x, chars_any(x, spelling), min, max);
    return min == 0 && max == LEX_FOREVER ? s->form.key : json_form_string(&s->form, min, max, true);
}

/* Values that a rewritten schema excludes; the texts then have one spelling only. */
static void push_negations(Schemas *s, const Json *schema, Spelling spelling) {
    Lexicon *x = s->rules->lexicon;
    const Json *pattern = json_get(schema, SCHEMA_NOT_PATTERN), *list = json_get(schema, SCHEMA_NOT_ENUM);
    if (pattern && pattern->type != JSON_STRING) schema_broken(s, schema, "pattern", "it must be a string");
    if (s->budget->failed || (!pattern && !list)) return;
    lex_push(x, any_string(s, 0, LEX_FOREVER, spelling));
    const Lex found = pattern ? schema_pattern(s, schema, "pattern", json_slice(pattern), spelling) : LEX_ALL;
    if (found != LEX_ALL) lex_push(x, lex_not(x, found));
    if (list && list->type == JSON_ARRAY) lex_push(x, lex_not(x, listed_texts(s, list, spelling)));
}

bool schema_limits_strings(const SchemaSet *set) {
    static const char *const words[] = {
        "minLength", "maxLength", "pattern", "format", "enum", "const", SCHEMA_NOT_PATTERN, SCHEMA_NOT_ENUM};
    for (uint32_t i = 0; i < set->count; i++)
        for (size_t k = 0; k < COUNT_OF(words); k++)
            if (json_get(set->members[i].schema, words[k])) return true;
    return false;
}

Lex schema_string(Schemas *s, const SchemaSet *set, Spelling spelling) {
    Lexicon *x = s->rules->lexicon;
    const uint32_t start = x->work.count;
    uint32_t min = 0, max = LEX_FOREVER;
    for (uint32_t i = 0; i < set->count && !s->budget->failed; i++) {
        const Json *schema = set->members[i].schema, *pattern = json_get(schema, "pattern");
        uint32_t least, most;
        if (!schema_count(s, schema, "minLength", 0, &least) ||
            !schema_count(s, schema, "maxLength", LEX_FOREVER, &most))
            break;
        min = least > min ? least : min;
        max = most < max ? most : max;
        if (pattern && pattern->type != JSON_STRING) schema_broken(s, schema, "pattern", "it must be a string");
        const Lex parts[] = {pattern && !s->budget->failed
                ? schema_pattern(s, schema, "pattern", json_slice(pattern), spelling)
                : LEX_ALL,
            format_of(s, schema, spelling)};
        for (size_t k = 0; k < COUNT_OF(parts); k++)
            if (parts[k] != LEX_ALL) lex_push(x, parts[k]);
        push_negations(s, schema, spelling);
    }
    const bool patterns = x->work.count > start;
    if (!patterns && spelling == SPELLING_UTF8) return any_string(s, min, max, spelling);
    if (!patterns && min == 0 && max == LEX_FOREVER) return s->form.string;
    if (!patterns) return json_form_string(&s->form, min, max, false);
    if (min > 0 || max < LEX_FOREVER) lex_push(x, any_string(s, min, max, spelling));
    const Lex all = lex_combine(x, start, LEX_IS_AND);
    return lex_live(x, all) ? all : LEX_NONE;
}

/* --- Numbers ------------------------------------------------------------------------------------------------------ */

static bool read_bound(Schemas *s, const Json *schema, const char *keyword, Decimal *bound) {
    const Json *value = json_get(schema, keyword);
    if (!json_is_number(value)) return schema_broken(s, schema, keyword, "it must be a number");
    return decimal_read(s->budget, bound, value) || schema_refuse(s, schema, keyword, "it has too many digits");
}

/* keyword and its "exclusive" form, which in older drafts is a flag beside it. */
static bool tighten(Schemas *s, const Json *schema, bool low, NumberRange *range) {
    const char *keyword = low ? "minimum" : "maximum", *exclusive = low ? "exclusiveMinimum" : "exclusiveMaximum";
    const Json *flag = json_get(schema, exclusive);
    bool *has = low ? &range->has_low : &range->has_high, *open = low ? &range->low_open : &range->high_open;
    Decimal *bound = low ? &range->low : &range->high, value;
    for (int i = 0; i < 2; i++) {
        const char *name = i ? exclusive : keyword;
        if (!json_get(schema, name) || (i && flag->type == JSON_BOOL)) continue;
        if (!read_bound(s, schema, name, &value)) return false;
        const bool excludes = i || (flag && flag->type == JSON_BOOL && flag->boolean);
        const int order = *has ? decimal_compare(&value, bound) * (low ? 1 : -1) : 1;
        if (order > 0) {
            *bound = value;
            *open = excludes;
        } else if (order == 0) {
            *open = *open || excludes;
        }
        *has = true;
    }
    return true;
}

Lex schema_number(Schemas *s, const SchemaSet *set, bool integer) {
    Lexicon *x = s->rules->lexicon;
    const uint32_t start = x->work.count;
    NumberRange range = {.integer = integer};
    for (uint32_t i = 0; i < set->count && !s->budget->failed; i++) {
        const Json *schema = set->members[i].schema, *multiple = json_get(schema, "multipleOf");
        range.any_length = range.any_length || json_get(schema, "enum") || json_get(schema, "const");
        Decimal of;
        if (!tighten(s, schema, true, &range) || !tighten(s, schema, false, &range)) break;
        if (!multiple || !read_bound(s, schema, "multipleOf", &of)) continue;
        if (!of.count || of.negative) schema_broken(s, schema, "multipleOf", "it must be greater than 0");
        const Lex lex = number_multiple(x, &of);
        if (!lex) schema_refuse(s, schema, "multipleOf", "it has too many digits");
        lex_push(x, lex);
    }
    lex_push(x, number_lex(x, &range));
    const Lex all = lex_combine(x, start, LEX_IS_AND);
    return lex_live(x, all) ? all : LEX_NONE;
}

/* --- Enumerated values -------------------------------------------------------------------------------------------- */

static bool json_equal(Schemas *s, const Json *a, const Json *b) {
    if (json_is_number(a) && json_is_number(b)) {
        Decimal one, other;
        if (decimal_read(s->budget, &one, a) && decimal_read(s->budget, &other, b))
            return decimal_compare(&one, &other) == 0;
        return budget_fail(s->budget, ERROR_UNSUPPORTED, "schema: a number in enum or const has too many digits");
    }
    if (a->type != b->type) return false;
    if (a->type == JSON_NULL) return true;
    if (a->type == JSON_BOOL) return a->boolean == b->boolean;
    if (a->type == JSON_STRING) return slice_equal(json_slice(a), json_slice(b));
    if (a->size != b->size) return false;
    if (a->type == JSON_ARRAY) {
        const Json *other = json_first(b);
        for (JSON_EACH(child, a)) {
            if (!json_equal(s, child, other)) return false;
            other = json_next(other);
        }
        return true;
    }
    for (JSON_EACH_PAIR(key, value, a)) {
        const Json *other = NULL;
        for (JSON_EACH_PAIR(other_key, other_value, b))
            if (slice_equal(json_slice(key), json_slice(other_key))) other = other_value;
        if (!other || !json_equal(s, value, other)) return false;
    }
    return true;
}

static bool allowed(Schemas *s, const SchemaSet *set, const Json *value) {
    for (uint32_t i = 0; i < set->count; i++) {
        const Json *schema = set->members[i].schema, *one = json_get(schema, "const"), *list = json_get(schema, "enum");
        if (one && !json_equal(s, one, value)) return false;
        if (!list) continue;
        bool found = false;
        for (JSON_EACH(other, list)) found = found || json_equal(s, other, value);
        if (!found || !budget_step(s->budget, list->size)) return false;
    }
    return true;
}

bool schema_values(Schemas *s, const SchemaSet *set, ValueFunction each, void *context) {
    const Json *one = NULL, *list = NULL;
    uint32_t sources = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        const Json *schema = set->members[i].schema, *all = json_get(schema, "enum");
        if (all && all->type != JSON_ARRAY) return schema_broken(s, schema, "enum", "it must be an array");
        if (json_get(schema, "const")) one = json_get(schema, "const");
        sources += (json_get(schema, "const") != NULL) + (all != NULL);
        list = list ? list : all;
    }
    if (one) {
        if (allowed(s, set, one)) each(s, one, context);
    } else if (list) {
        for (JSON_EACH(value, list))
            if (sources == 1 || allowed(s, set, value)) each(s, value, context);
    }
    return one || list;
}

typedef struct Texts {
    bool strings;
    Spelling spelling; /* strings are spelled so */
    Slice *data;
    uint32_t count, capacity;
} Texts;

static void add_text(Schemas *s, const Json *value, void *context) {
    Texts *texts = context;
    if ((value->type == JSON_STRING) != texts->strings || (!texts->strings && !json_is_number(value))) return;
    Buffer text = {0};
    if (value->type == JSON_STRING && texts->spelling == SPELLING_UTF8)
        buffer_slice(&text, json_slice(value));
    else
        json_write(&text, value);
    texts->data =
        budget_grow(s->budget, texts->data, &texts->capacity, (uint64_t)texts->count + 1, sizeof *texts->data);
    const char *copy = text.failed ? NULL : arena_copy(&s->arena, buffer_view(&text));
    if (!copy) budget_fail(s->budget, ERROR_MEMORY, "no memory for a schema");
    if (!s->budget->failed) texts->data[texts->count++] = (Slice){copy, text.size};
    buffer_free(&text);
}

static Lex listed_texts(Schemas *s, const Json *list, Spelling spelling) {
    Texts texts = {.strings = true, .spelling = spelling};
    for (JSON_EACH(value, list)) add_text(s, value, &texts);
    const Lex lex = lex_literals(s->rules->lexicon, texts.data, texts.count);
    budget_free(s->budget, texts.data, texts.capacity * sizeof *texts.data);
    return lex;
}

Lex schema_scalar_values(Schemas *s, const SchemaSet *set, bool strings, Spelling spelling) {
    Texts texts = {.strings = strings, .spelling = spelling};
    const bool given = schema_values(s, set, add_text, &texts);
    const Lex lex = lex_literals(s->rules->lexicon, texts.data, texts.count);
    budget_free(s->budget, texts.data, texts.capacity * sizeof *texts.data);
    return given ? lex : LEX_ALL;
}

Lex schema_key(Schemas *s, const SchemaSet *set, Spelling spelling) {
    static const char *const words[] = {"anyOf", "oneOf", "not", "if", "$dynamicRef"};
    uint32_t types;
    for (uint32_t i = 0; i < set->count; i++)
        for (size_t k = 0; k < COUNT_OF(words); k++)
            if (json_get(set->members[i].schema, words[k]))
                schema_refuse(s, set->members[i].schema, words[k], "it is not supported for names of properties");
    if (s->budget->failed || !schema_types(s, set, &types) || !(types & TYPE_STRING)) return LEX_NONE;
    const Lex parts[] = {any_string(s, 0, LEX_FOREVER, spelling), schema_string(s, set, spelling),
        schema_scalar_values(s, set, true, spelling)};
    return s->budget->failed ? LEX_NONE : lex_and(s->rules->lexicon, parts, COUNT_OF(parts));
}
