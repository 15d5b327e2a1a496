#include "server/api/response_format.h"

#include <stdio.h>
#include <string.h>

#include "server/api/members.h"

enum { SCHEMA_NAME_MAX = 64 };

static bool ask(ResponseFormat *r, GrammarKind kind, Slice source, const char *field, ApiError *error) {
    if (r->field)
        return api_fail(error, 400, "invalid_value", field, "'%s' and '%s' both say what the answer may be: send one.",
            r->field, field);
    *r = (ResponseFormat){.field = field, .kind = kind, .source = source, .space = r->space};
    return true;
}

/* What a buffer holds, in the arena. */
static bool keep(Buffer *text, Arena *arena, Slice *out, ApiError *error) {
    const char *copy = text->failed ? NULL : arena_copy(arena, buffer_view(text));
    *out = (Slice){copy, text->size};
    buffer_free(text);
    return copy || api_out_of_memory(error);
}

/* ---- single fields ---- */

bool format_read_schema(ResponseFormat *r, Arena *arena, const Json *value, const char *field, ApiError *error) {
    Slice source;
    if (value->type == JSON_STRING) return ask(r, GRAMMAR_JSON_SCHEMA, json_slice(value), field, error);
    if (value->type != JSON_BOOL && !api_type(value, JSON_OBJECT, field, error)) return false;
    Buffer text = {0};
    json_write(&text, value);
    return keep(&text, arena, &source, error) && ask(r, GRAMMAR_JSON_SCHEMA, source, field, error);
}

bool format_read_regex(ResponseFormat *r, Arena *arena, const Json *value, const char *field, ApiError *error) {
    Slice text;
    return api_string(value, field, &text, error) && ask(r, GRAMMAR_REGEX, text, field, error);
}

bool format_read_grammar(ResponseFormat *r, Arena *arena, const Json *value, const char *field, ApiError *error) {
    Slice text;
    if (!api_string(value, field, &text, error)) return false;
    const bool gbnf = memmem(text.data, text.size, "::=", 3);
    return ask(r, gbnf ? GRAMMAR_GBNF : GRAMMAR_LARK, text, field, error);
}

/* One of several texts: a regular expression in which every character stands for itself. */
bool format_read_choice(ResponseFormat *r, Arena *arena, const Json *value, const char *field, ApiError *error) {
    if (!api_type(value, JSON_ARRAY, field, error)) return false;
    if (value->size == 0)
        return api_fail(
            error, 400, "empty_array", field, "Invalid '%s': empty array. Expected at least one text.", field);
    Buffer text = {0};
    Slice source;
    for (JSON_EACH(item, value)) {
        Slice choice;
        if (!api_string(item, field, &choice, error)) {
            buffer_free(&text);
            return false;
        }
        buffer_text(&text, text.size ? "|" : "(?:");
        for (size_t i = 0; i < choice.size; i++) {
            if (strchr("\\^$.*+?()[]{}|/-", choice.data[i]) && choice.data[i]) buffer_byte(&text, '\\');
            buffer_byte(&text, choice.data[i]);
        }
    }
    buffer_byte(&text, ')');
    return keep(&text, arena, &source, error) && ask(r, GRAMMAR_REGEX, source, field, error);
}

/* ---- response_format ---- */

static bool unknown_key(const Json *key, const char *inside, ApiError *error) {
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%s.%.*s", inside, key->size < 64 ? (int)key->size : 64, key->string);
    return api_fail(error, 400, "unknown_parameter", path, "Unknown parameter: '%s'.", path);
}

static bool is_known(const Json *key, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (slice_is(json_slice(key), names[i])) return true;
    return false;
}

static bool check_name(const Json *name, const char *path, ApiError *error) {
    Slice text;
    if (!name) return api_missing(path, error);
    if (!api_string(name, path, &text, error)) return false;
    bool good = text.size > 0 && text.size <= SCHEMA_NAME_MAX;
    for (size_t i = 0; i < text.size && good; i++) {
        const char c = text.data[i];
        good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    }
    return good ||
        api_fail(error, 400, "invalid_value", path,
            "Invalid '%s': expected 1 to %d letters, digits, underscores and dashes.", path, SCHEMA_NAME_MAX);
}

/* {"name", "description", "schema", "strict"} at path; field demands it. A schema is enforced, strict or not. */
static bool read_named_schema(
    ResponseFormat *r, Arena *arena, const Json *object, const char *path, const char *field, ApiError *error) {
    const Json *description = member_get(object, "description"), *strict = member_get(object, "strict"),
               *schema = member_get(object, "schema");
    char name[API_PARAM_MAX], other[API_PARAM_MAX];
    Slice text;
    bool flag;
    snprintf(name, sizeof name, "%.100s.name", path);
    if (!check_name(json_get(object, "name"), name, error)) return false;
    snprintf(other, sizeof other, "%.100s.description", path);
    if (description && !api_string(description, other, &text, error)) return false;
    snprintf(other, sizeof other, "%.100s.strict", path);
    if (strict && !api_bool(strict, other, &flag, error)) return false;
    if (!schema) return ask(r, GRAMMAR_JSON_OBJECT, SLICE(""), field, error);
    snprintf(other, sizeof other, "%.100s.schema", path);
    return api_type(schema, JSON_OBJECT, other, error) && format_read_schema(r, arena, schema, field, error);
}

static bool read_json_schema(ResponseFormat *r, Arena *arena, const Json *value, const char *field, ApiError *error) {
    static const char *const known[] = {"name", "description", "schema", "strict"};
    static const char *const path = "response_format.json_schema";
    if (!value || value->type == JSON_NULL) return api_missing(path, error);
    if (!api_type(value, JSON_OBJECT, path, error)) return false;
    for (JSON_EACH_PAIR(key, unused, value))
        if (!is_known(key, known, COUNT_OF(known))) return unknown_key(key, path, error);
    return read_named_schema(r, arena, value, path, field, error);
}

bool format_read_response(ResponseFormat *r, Arena *arena, const Json *value, const char *field, ApiError *error) {
    static const char *const known[] = {"type", "json_schema", "schema"};
    if (!api_type(value, JSON_OBJECT, field, error)) return false;
    const Json *type = json_get(value, "type"), *schema = json_get(value, "schema");
    Slice name;
    if (!type) return api_missing("response_format.type", error);
    if (!api_string(type, "response_format.type", &name, error)) return false;
    const bool object = slice_is(name, "json_object"), by_schema = slice_is(name, "json_schema");
    if (!object && !by_schema && !slice_is(name, "text"))
        return api_fail(error, 400, "invalid_value", "response_format.type",
            "Invalid value for 'response_format.type': supported values are 'text', 'json_object' and 'json_schema'.");
    for (JSON_EACH_PAIR(key, unused, value)) {
        const bool other = slice_is(json_slice(key), "json_schema") ? !by_schema
            : slice_is(json_slice(key), "schema")                   ? !object
                                                                    : false;
        if (other || !is_known(key, known, COUNT_OF(known))) return unknown_key(key, field, error);
    }
    if (by_schema) return read_json_schema(r, arena, json_get(value, "json_schema"), field, error);
    if (!object) return true;
    if (schema && schema->type != JSON_NULL) return format_read_schema(r, arena, schema, field, error);
    return ask(r, GRAMMAR_JSON_OBJECT, SLICE(""), field, error);
}

/* ---- the same of other APIs ---- */

bool format_read_text(ResponseFormat *r, Arena *arena, const Json *value, const char *field, ApiError *error) {
    if (member_is(value, "type", "text")) return true;
    if (member_is(value, "type", "json_object")) return ask(r, GRAMMAR_JSON_OBJECT, SLICE(""), field, error);
    if (!member_is(value, "type", "json_schema")) return api_unsupported(field, error);
    if (!member_get(value, "schema")) return api_missing("text.format.schema", error);
    return read_named_schema(r, arena, value, field, field, error);
}

bool format_read_output(ResponseFormat *r, Arena *arena, const Json *value, const char *field, ApiError *error) {
    const Json *schema = member_get(value, "schema");
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%.100s.schema", field);
    if (!member_is(value, "type", "json_schema")) return api_unsupported(field, error);
    if (!schema) return api_missing(path, error);
    return api_type(schema, JSON_OBJECT, path, error) && format_read_schema(r, arena, schema, field, error);
}

bool format_read_ollama(ResponseFormat *r, Arena *arena, const Json *value, const char *field, ApiError *error) {
    if (value->type == JSON_STRING && value->size == 0) return true;
    if (value->type == JSON_STRING && slice_is(json_slice(value), "json"))
        return ask(r, GRAMMAR_JSON_OBJECT, SLICE(""), field, error);
    return api_type(value, JSON_OBJECT, field, error) && format_read_schema(r, arena, value, field, error);
}

/* ---- structured_outputs ---- */

bool format_read_structured(ResponseFormat *r, Arena *arena, const Json *value, const char *field, ApiError *error) {
    bool flag = false;
    if (!api_type(value, JSON_OBJECT, field, error)) return false;
    for (JSON_EACH_PAIR(key, item, value)) {
        const Slice name = json_slice(key);
        bool ok = true;
        if (item->type == JSON_NULL) continue;
        if (slice_is(name, "json")) {
            ok = format_read_schema(r, arena, item, field, error);
        } else if (slice_is(name, "regex")) {
            ok = format_read_regex(r, arena, item, field, error);
        } else if (slice_is(name, "choice")) {
            ok = format_read_choice(r, arena, item, field, error);
        } else if (slice_is(name, "grammar")) {
            ok = format_read_grammar(r, arena, item, field, error);
        } else if (slice_is(name, "json_object")) {
            ok = api_bool(item, "structured_outputs.json_object", &flag, error) &&
                (!flag || ask(r, GRAMMAR_JSON_OBJECT, SLICE(""), field, error));
        } else if (slice_is(name, "disable_any_whitespace")) {
            ok = api_bool(item, "structured_outputs.disable_any_whitespace", &flag, error);
            r->space = flag ? GRAMMAR_SPACE_NONE : GRAMMAR_SPACE_FLEXIBLE;
        } else {
            ok = unknown_key(key, field, error);
        }
        if (!ok) return false;
    }
    return r->field ||
        api_fail(error, 400, "missing_required_parameter", field,
            "'structured_outputs' needs one of 'json', 'regex', 'choice', 'grammar' and 'json_object'.");
}

/* ---- compiling ---- */

bool format_constraint(const ResponseFormat *r, ChatModel *model, Constraint **constraint, ApiError *error) {
    Error why = {0};
    *constraint = NULL;
    if (!r->field) return true;
    const GrammarKind kind = r->kind == GRAMMAR_JSON_SCHEMA ? GRAMMAR_JSON_ANSWER : r->kind;
    *constraint = constraint_compile(model, kind, r->source, r->space, &why);
    if (*constraint) return true;
    if (why.code == ERROR_MEMORY) return api_out_of_memory(error);
    return api_fail(error, 400, why.code == ERROR_UNSUPPORTED ? "unsupported_value" : "invalid_value", r->field,
        "Invalid '%s': %s.", r->field, why.text);
}
