/* Bodies are read by the tables of fields. */
#include <stdio.h>

#include "base/utf8.h"
#include "server/api/fields.h"

static bool read_integer(const Json *value, const Field *f, int64_t *out, ApiError *error) {
    const bool open = f->min == 0 && f->max == 0; /* the field's reader knows the range */
    return api_integer(
        value, f->name, open ? INT64_MIN : (int64_t)f->min, open ? INT64_MAX : (int64_t)f->max, out, error);
}

static bool read_text(const Json *value, const Field *f, Slice *out, ApiError *error) {
    if (!api_string(value, f->name, out, error)) return false;
    const size_t count = api_characters(*out);
    return f->max == 0 || count <= (size_t)f->max ||
        api_fail(error, 400, "string_above_max_length", f->name,
            "Invalid '%s': string too long. Expected a string with maximum length %d, but got length %zu.", f->name,
            (int)f->max, count);
}

static bool read_list(const Json *value, const Field *f, ApiError *error) {
    if (!api_type(value, JSON_ARRAY, f->name, error)) return false;
    if (value->size < (uint32_t)f->min)
        return api_fail(error, 400, "empty_array", f->name,
            "Invalid '%s': empty array. Expected an array with minimum length %d, but got an empty array instead.",
            f->name, (int)f->min);
    return f->max == 0 || value->size <= (uint32_t)f->max ||
        api_fail(error, 400, "array_above_max_length", f->name,
            "Invalid '%s': array too long. Expected an array with maximum length %d, but got length %u.", f->name,
            (int)f->max, value->size);
}

/* Into the request, or nowhere. */
static bool read_value(ChatRequest *request, const Field *f, const Json *value, ApiError *error) {
    union {
        double number;
        int64_t integer;
        bool flag;
        Slice text;
    } v;
    char *to = f->at == NOWHERE ? NULL : (char *)request + f->at;
    switch (f->type) {
    case FIELD_NUMBER:
        if (!api_number(value, f->name, f->min, f->max, &v.number, error)) return false;
        if (to) *(float *)(void *)to = (float)v.number;
        return true;
    case FIELD_INTEGER:
        if (!read_integer(value, f, &v.integer, error)) return false;
        if (to) *(int *)(void *)to = (int)v.integer;
        return true;
    case FIELD_BOOL:
        if (!api_bool(value, f->name, &v.flag, error)) return false;
        if (to) *(bool *)(void *)to = v.flag;
        return true;
    case FIELD_TEXT:
        if (!read_text(value, f, &v.text, error)) return false;
        if (to) *(Slice *)(void *)to = v.text;
        return true;
    case FIELD_ARRAY:
        if (!read_list(value, f, error)) return false;
        break;
    case FIELD_OBJECT:
        if (!api_type(value, JSON_OBJECT, f->name, error)) return false;
        break;
    case FIELD_ANY: break;
    }
    if (to) *(const Json **)(void *)to = value;
    return true;
}

/* ---- tables ---- */

typedef struct Table {
    const Field *fields;
    size_t count;
} Table;

static Table table_of(Api api) {
    Table table;
    table.fields = api & (API_CHAT | API_COMPLETIONS) ? fields_all(&table.count) : adapter_fields_all(&table.count);
    return table;
}

static const Field *find_field(Api api, Slice path) {
    const Table table = table_of(api);
    for (size_t i = 0; i < table.count; i++)
        if (table.fields[i].apis & api && slice_is(path, table.fields[i].name)) return &table.fields[i];
    return NULL;
}

/* Whether the members of an object have rows of their own. */
static bool has_members(Api api, const char *path) {
    const Table table = table_of(api);
    const size_t size = strlen(path);
    for (size_t i = 0; i < table.count; i++) {
        const Field *f = &table.fields[i];
        if (f->apis & api && !strncmp(f->name, path, size) && f->name[size] == '.') return true;
    }
    return false;
}

static bool unknown(Slice key, ApiError *error) {
    char name[API_PARAM_MAX];
    snprintf(name, sizeof name, "%.*s", key.size < 100 ? (int)key.size : 100, key.data);
    const bool readable = utf8_valid(slice_of(name));
    return api_fail(error, 400, "unknown_parameter", readable ? name : NULL,
        "Unrecognized request argument supplied: %s", readable ? name : "(a long name)");
}

/* ---- bodies ---- */

void fields_note_ignored(ChatRequest *request, const char *path) {
    if (!request->ignored) return;
    const size_t size = strlen(request->ignored), wanted = strlen(path) + 3;
    for (const char *c = path; *c; c++)
        if (*c <= ' ' || *c > '~') return; /* it cannot stand in a header */
    if (size + wanted < request->ignored_size)
        snprintf(request->ignored + size, request->ignored_size - size, "%s%s", size ? ", " : "", path);
}

/* Notes a field that is ignored. False: fields are not. */
static bool ignore(ChatRequest *request, const char *path) {
    if (!request || !request->lenient) return false;
    fields_note_ignored(request, path);
    return true;
}

/* Whether an error says that a field is not known, or has a value that stands for none. */
static bool may_be_ignored(const ApiError *error) {
    static const char *const codes[] = {
        "unsupported_parameter", "unknown_parameter", "empty_array", "integer_below_min_value"};
    for (size_t i = 0; error->code && i < COUNT_OF(codes); i++)
        if (!strcmp(error->code, codes[i])) return true;
    return false;
}

static bool read_field(ChatRequest *request, const Field *field, const Json *value, ApiError *error) {
    if (value->type == JSON_NULL) return true;
    if (!read_value(request, field, value, error)) return false;
    return !field->read || field->read(request, value, field->name, error);
}

/* inside: the path of the object with a dot; "" for a body. Objects are two deep at most. */
static bool read_object(ChatRequest *request, Api api, const char *inside, const Json *object, ApiError *error) {
    for (JSON_EACH_PAIR(key, value, object)) {
        char path[API_PARAM_MAX];
        const Slice name = json_slice(key);
        const int size = snprintf(path, sizeof path, "%s%.*s", inside, SLICE_SHOWN(name));
        if (memchr(name.data, '.', name.size) || (size_t)size != strlen(inside) + name.size ||
            strlen(path) != (size_t)size)
            return unknown(*inside ? slice_of(path) : name, error); /* it may look like one of a table */
        const Field *field = find_field(api, slice_of(path));
        if (!field && ignore(request, path)) continue;
        if (!field) return unknown(slice_of(path), error);
        if (!read_field(request, field, value, error)) {
            if (!may_be_ignored(error) || !ignore(request, path)) return false;
            *error = (ApiError){0};
            continue;
        }
        if (value->type != JSON_OBJECT || !has_members(api, path)) continue;
        snprintf(path + size, sizeof path - (size_t)size, ".");
        if (!read_object(request, api, path, value, error)) return false;
    }
    return true;
}

bool fields_read(ChatRequest *request, Api api, const Json *body, ApiError *error) {
    return read_object(request, api, "", body, error);
}
