#include "server/api/adapter.h"

const Json *adapter_get(const Json *object, const char *name) {
    const Json *value = json_get(object, name);
    return value && value->type != JSON_NULL ? value : NULL;
}

bool adapter_is(const Json *object, const char *name, const char *text) {
    const Json *value = json_get(object, name);
    return value && value->type == JSON_STRING && slice_is(json_slice(value), text);
}

void adapter_copy(const Json *object, const char *name, const char *as, Buffer *out) {
    const Json *value = adapter_get(object, name);
    if (!value) return;
    buffer_printf(out, ",\"%s\":", as);
    json_write(out, value);
}

void adapter_tool(const Json *function, const char *schema, Buffer *out) {
    buffer_text(out, "{\"type\":\"function\",\"function\":{\"name\":");
    json_write(out, adapter_get(function, "name"));
    adapter_copy(function, "description", "description", out);
    adapter_copy(function, schema, "parameters", out);
    adapter_copy(function, "strict", "strict", out);
    buffer_text(out, "}}");
}

void adapter_text(const char *name, Slice text, Buffer *out) {
    buffer_printf(out, ",\"%s\":", name);
    json_write_string(out, text);
}

static bool read_part(const Json *part, const char *const *types, const char *param, Slice *text, ApiError *error) {
    *text = (Slice){0};
    if (!api_type(part, JSON_OBJECT, param, error)) return false;
    for (; *types; types++) {
        if (!adapter_is(part, "type", *types)) continue;
        const Json *value = json_get(part, "text");
        return value ? api_string(value, param, text, error) : api_missing(param, error);
    }
    return true;
}

bool adapter_join(
    const Json *content, const char *const *types, bool skip, const char *param, Buffer *out, ApiError *error) {
    if (content->type == JSON_STRING) {
        json_write_string(out, json_slice(content));
        return true;
    }
    if (!api_type(content, JSON_ARRAY, param, error)) return false;
    Buffer joined = {0};
    bool ok = true;
    for (JSON_EACH(part, content)) {
        Slice text;
        ok = read_part(part, types, param, &text, error);
        if (ok && !text.data && !skip) ok = api_unsupported(param, error);
        if (!ok) break;
        if (text.data && joined.size > 0) buffer_byte(&joined, '\n');
        if (text.data) buffer_slice(&joined, text);
    }
    json_write_string(out, buffer_view(&joined));
    out->failed |= joined.failed;
    buffer_free(&joined);
    return ok;
}

bool adapter_read(ApiRequest *request, Buffer *chat, ApiError *error) {
    Error why = {0};
    const char *text = chat->failed ? NULL : arena_copy(request->arena, buffer_view(chat));
    const Json *body = text ? json_parse(request->arena, (Slice){text, chat->size}, &why) : NULL;
    buffer_free(chat);
    if (body) return params_read_chat(request, body, error);
    if (!text || why.code == ERROR_MEMORY) return api_out_of_memory(error);
    return api_fail(error, 400, "invalid_value", NULL, "The request cannot be understood: %s.", why.text);
}
