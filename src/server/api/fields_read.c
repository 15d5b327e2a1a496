/* Bodies against the tables of fields. */
#include <stdio.h>

#include "base/utf8.h"
#include "server/api/fields.h"

static bool read_long(const Json *value, const Field *f, int64_t *out, ApiError *error) {
    const bool open = f->min == 0 && f->max == 0; /* its reader knows */
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
static bool read_value(ApiRequest *request, const Field *f, const Json *value, ApiError *error) {
    union {
        double number;
        int64_t integer;
        bool flag;
        Slice text;
    } v;
    char *to = f->at == FIELD_NOWHERE ? NULL : (char *)request + f->at;
    switch (f->type) {
    case FIELD_NUMBER:
        if (!api_number(value, f->name, f->min, f->max, &v.number, error)) return false;
        if (to) *(float *)(void *)to = (float)v.number;
        return true;
    case FIELD_INTEGER:
        if (!read_long(value, f, &v.integer, error)) return false;
        if (to) *(int *)(void *)to = (int)v.integer;
        return true;
    case FIELD_LONG:
        if (!read_long(value, f, &v.integer, error)) return false;
        if (to) *(int64_t *)(void *)to = v.integer;
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

static const Field *find_field(Adapter adapter, Slice name) {
    size_t count;
    const Field *table = fields_all(&count);
    for (size_t i = 0; i < count; i++)
        if (table[i].adapters & adapter && slice_is(name, table[i].name)) return &table[i];
    return NULL;
}

static bool unknown(Slice key, ApiError *error) {
    char name[API_PARAM_MAX];
    snprintf(name, sizeof name, "%.*s", key.size < 100 ? (int)key.size : 100, key.data);
    const bool readable = utf8_valid(slice_of(name));
    return api_fail(error, 400, "unknown_parameter", readable ? name : NULL,
        "Unrecognized request argument supplied: %s", readable ? name : "(a long name)");
}

bool fields_read(ApiRequest *request, Adapter adapter, const Json *body, ApiError *error) {
    for (JSON_EACH_PAIR(key, value, body)) {
        const Field *field = find_field(adapter, json_slice(key));
        if (!field) return unknown(json_slice(key), error);
        if (value->type == JSON_NULL) continue;
        if (!read_value(request, field, value, error)) return false;
        if (field->read && !field->read(request, value, field->name, error)) return false;
    }
    return true;
}

/* ---- other doors ---- */

static const AdapterField *find_adapter_field(Adapter adapter, const char *path) {
    size_t count;
    const AdapterField *table = adapter_fields_all(&count);
    for (size_t i = 0; i < count; i++)
        if (table[i].field.adapters & adapter && !strcmp(path, table[i].field.name)) return &table[i];
    return NULL;
}

/* The object's members have rows of their own. */
static bool has_members(Adapter adapter, const char *path) {
    size_t count;
    const AdapterField *table = adapter_fields_all(&count);
    const size_t size = strlen(path);
    for (size_t i = 0; i < count; i++) {
        const Field *f = &table[i].field;
        if (f->adapters & adapter && !strncmp(f->name, path, size) && f->name[size] == '.') return true;
    }
    return false;
}

static bool check_value(Adapter adapter, const char *path, const Json *value, Buffer *chat, ApiError *error) {
    const AdapterField *row = find_adapter_field(adapter, path);
    if (!row) return unknown(slice_of(path), error);
    const Field *field = &row->field;
    if (value->type == JSON_NULL) return true;
    if (!read_value(NULL, field, value, error)) return false;
    if (field->read && !field->read(NULL, value, field->name, error)) return false;
    if (!row->as || !chat) return true;
    buffer_printf(chat, ",\"%s\":", row->as);
    json_write(chat, value);
    return true;
}

/* inside: the name of what the object is the value of, with a dot; "" of a body. Objects are two deep at most. */
static bool check_object(Adapter adapter, const char *inside, const Json *object, Buffer *chat, ApiError *error) {
    for (JSON_EACH_PAIR(key, value, object)) {
        char path[API_PARAM_MAX];
        const int size = snprintf(path, sizeof path, "%s%.*s", inside, SLICE_SHOWN(json_slice(key)));
        if (memchr(key->string, '.', key->size) || (size_t)size != strlen(inside) + key->size)
            return unknown(slice_of(path), error); /* no name of ours, though it may look like one */
        if (!check_value(adapter, path, value, chat, error)) return false;
        if (value->type != JSON_OBJECT || !has_members(adapter, path)) continue;
        snprintf(path + size, sizeof path - (size_t)size, ".");
        if (!check_object(adapter, path, value, chat, error)) return false;
    }
    return true;
}

bool fields_check(Adapter adapter, const Json *body, Buffer *chat, ApiError *error) {
    return check_object(adapter, "", body, chat, error);
}
