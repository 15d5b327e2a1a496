#include "server/api/members.h"

const Json *member_get(const Json *object, const char *name) {
    const Json *value = json_get(object, name);
    return value && value->type != JSON_NULL ? value : NULL;
}

bool member_is(const Json *object, const char *name, const char *text) {
    const Json *value = json_get(object, name);
    return value && value->type == JSON_STRING && slice_is(json_slice(value), text);
}

void member_copy(const Json *object, const char *name, const char *as, Buffer *out) {
    const Json *value = member_get(object, name);
    if (!value) return;
    buffer_printf(out, ",\"%s\":", as);
    json_write(out, value);
}

void member_text(const char *name, Slice text, Buffer *out) {
    buffer_printf(out, ",\"%s\":", name);
    json_write_string(out, text);
}
