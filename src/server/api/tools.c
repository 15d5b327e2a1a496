#include "server/api/tools.h"

#include <stdio.h>

#include "base/json_nodes.h"
#include "server/api/members.h"

const ToolForm tool_form_chat = {
    .type = "function", .wrapped = true, .schema = "parameters", .name_max = TOOL_NAME_MAX};
const ToolForm tool_form_responses = {
    .type = "function", .skip_others = true, .schema = "parameters", .name_max = TOOL_NAME_MAX};
const ToolForm tool_form_messages = {
    .type = "custom", .type_optional = true, .schema = "input_schema", .name_max = TOOL_LONG_NAME_MAX};

/* ---- tools ---- */

static bool name_fits(Slice name, size_t most) {
    for (size_t i = 0; i < name.size; i++) {
        const char c = name.data[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-'))
            return false;
    }
    return name.size > 0 && name.size <= most;
}

/* The member "name" of an object; param: the object's path. */
static bool read_name(const Json *object, const char *param, size_t most, Slice *name, ApiError *error) {
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%.100s.name", param);
    const Json *value = json_get(object, "name");
    if (!value) return api_missing(path, error);
    if (!api_string(value, path, name, error)) return false;
    return name_fits(*name, most) ||
        api_fail(error, 400, "invalid_value", path, "Invalid '%s': expected 1 to %zu letters, digits, '_' and '-'.",
            path, most);
}

/* The type of an object, which must be the form's. *other: it has another one, and such are left out. */
static bool read_type(const Json *object, const char *param, const ToolForm *form, bool *other, ApiError *error) {
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%.100s.type", param);
    const Json *type = json_get(object, "type");
    Slice name;
    *other = false;
    if (form->type_optional && !member_get(object, "type")) return true;
    if (!type) return api_missing(path, error);
    if (!api_string(type, path, &name, error)) return false;
    const bool supported = slice_is(name, form->type);
    *other = !supported && form->skip_others;
    return supported || *other ||
        api_fail(error, 400, "unsupported_parameter", path,
            "Unsupported value for '%s': '%.*s'. Only tools of type '%s' are supported.", path, SLICE_SHOWN(name),
            form->type);
}

/* {"function": {…}} at param; *path: of what is in it. */
static const Json *read_wrapper(const Json *object, const char *param, char path[API_PARAM_MAX], ApiError *error) {
    snprintf(path, API_PARAM_MAX, "%.90s.function", param);
    const Json *function = json_get(object, "function");
    if (!function) api_missing(path, error);
    return function && api_type(function, JSON_OBJECT, path, error) ? function : NULL;
}

static bool check_member(const Json *function, const char *key, JsonType type, const char *param, ApiError *error) {
    const Json *value = member_get(function, key);
    if (!value) return true;
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%.90s.%s", param, key);
    bool flag;
    Slice text;
    return type == JSON_BOOL  ? api_bool(value, path, &flag, error)
        : type == JSON_STRING ? api_string(value, path, &text, error)
                              : api_type(value, type, path, error);
}

/* The object with name, description, schema; NULL: an error, or with *other a tool that is left out. */
static const Json *read_tool(const Json *tool, const char *param, const ToolForm *form, Arena *arena, ChatTool *out,
    bool *other, ApiError *error) {
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%s", param);
    if (!api_type(tool, JSON_OBJECT, param, error) || !read_type(tool, param, form, other, error) || *other)
        return NULL;
    const Json *function = form->wrapped ? read_wrapper(tool, param, path, error) : tool;
    if (!function || !read_name(function, path, form->name_max, &out->name, error) ||
        !check_member(function, "description", JSON_STRING, path, error) ||
        !check_member(function, "strict", JSON_BOOL, path, error) ||
        !check_member(function, form->schema, JSON_OBJECT, path, error))
        return NULL;
    const Json *strict = member_get(function, "strict");
    out->parameters = member_get(function, form->schema);
    out->strict = strict && strict->boolean;
    out->field = arena_printf(arena, "%s.%s", path, form->schema);
    if (out->field) return function;
    api_out_of_memory(error);
    return NULL;
}

static size_t member_nodes(const Json *object, const char *name) {
    const Json *value = member_get(object, name);
    return !value ? 0 : value->type < JSON_ARRAY ? 2 : 2 + json_child_nodes(value);
}

static Json *put_member(Json *at, const Json *object, const char *name, const char *as, uint32_t *pairs) {
    const Json *value = member_get(object, name);
    if (!value) return at;
    ++*pairs;
    return json_put_tree(json_put_string(at, slice_of(as)), value);
}

/* {"type": "function", "function": {name, description, parameters, strict}} */
static Json *put_definition(Json *at, const Json *function, const ToolForm *form) {
    Json *tool = at, *object;
    uint32_t pairs = 0;
    at = json_put_pair(at + 1, SLICE("type"), SLICE("function"));
    object = json_put_string(at, SLICE("function"));
    at = put_member(object + 1, function, "name", "name", &pairs);
    at = put_member(at, function, "description", "description", &pairs);
    at = put_member(at, function, form->schema, "parameters", &pairs);
    at = put_member(at, function, "strict", "strict", &pairs);
    json_close(object, JSON_OBJECT, pairs, at);
    return json_close(tool, JSON_OBJECT, 2, at);
}

static const Json *make_definitions(
    const Json *const *functions, size_t count, const ToolForm *form, Arena *arena, ApiError *error) {
    enum { NODES_AROUND = 5 }; /* the tool, "type" and its value, "function" and its value */
    size_t nodes = 1;          /* all of it is within one body */
    for (size_t i = 0; i < count; i++)
        nodes += NODES_AROUND + member_nodes(functions[i], "name") + member_nodes(functions[i], "description") +
            member_nodes(functions[i], form->schema) + member_nodes(functions[i], "strict");
    Json *list = arena_alloc(arena, nodes, sizeof *list), *at = list + 1;
    if (!list) api_out_of_memory(error);
    for (size_t i = 0; i < count && list; i++) at = put_definition(at, functions[i], form);
    if (list) json_close(list, JSON_ARRAY, (uint32_t)count, at);
    return list;
}

/* The same text of JSON; neither of two that are NULL differs from the other. */
static bool same_value(const Json *a, const Json *b) {
    Buffer one = {0}, other = {0};
    if (a) json_write(&one, a);
    if (b) json_write(&other, b);
    const bool same = !a == !b && !one.failed && !other.failed && slice_equal(buffer_view(&one), buffer_view(&other));
    buffer_free(&one);
    buffer_free(&other);
    return same;
}

/* A call does not say which of two tools of one name it means: they must have the same arguments. */
static bool check_unique(const ToolOptions *tools, const char *param, const ToolForm *form, ApiError *error) {
    const ChatTool *last = &tools->list[tools->count - 1];
    for (const ChatTool *tool = tools->list; tool < last; tool++) {
        char path[API_PARAM_MAX];
        if (!slice_equal(tool->name, last->name) || same_value(tool->parameters, last->parameters)) continue;
        snprintf(path, sizeof path, "%.90s%s.name", param, form->wrapped ? ".function" : "");
        return api_fail(error, 400, "invalid_value", path,
            "Invalid '%s': there is another tool '%.*s' with another '%s'. Names of tools must be unique.", path,
            SLICE_SHOWN(last->name), form->schema);
    }
    return true;
}

bool tools_read_list(
    ToolOptions *tools, Arena *arena, const Json *value, const char *field, const ToolForm *form, ApiError *error) {
    const Json *functions[TOOLS_MAX];
    if (!api_type(value, JSON_ARRAY, field, error)) return false;
    tools->list = arena_alloc(arena, value->size < TOOLS_MAX ? value->size : TOOLS_MAX, sizeof *tools->list);
    if (!tools->list) return api_out_of_memory(error);
    int index = 0;
    for (JSON_EACH(tool, value)) {
        char param[API_PARAM_MAX];
        bool other = false;
        ChatTool read = {0};
        snprintf(param, sizeof param, "%s[%d]", field, index++);
        const Json *function = read_tool(tool, param, form, arena, &read, &other, error);
        if (!function && !other) return false;
        if (other) continue;
        if (tools->count == TOOLS_MAX)
            return api_fail(error, 400, "array_above_max_length", field, "Invalid '%s': at most %d tools, got %u.",
                field, TOOLS_MAX, value->size);
        functions[tools->count] = function;
        tools->list[tools->count++] = read;
        if (!check_unique(tools, param, form, error)) return false;
    }
    if (tools->count == 0) return true;
    tools->definitions = form->wrapped ? value : make_definitions(functions, tools->count, form, arena, error);
    return tools->definitions;
}

/* ---- tool_choice ---- */

static bool read_mode(Slice mode, const char *field, bool none, ToolMode *out, ApiError *error) {
    static const struct {
        const char *name;
        ToolMode mode;
    } modes[] = {{"auto", TOOLS_AUTO}, {"required", TOOLS_REQUIRED}, {"none", TOOLS_NONE}};
    for (size_t i = 0; i < COUNT_OF(modes) - !none; i++) {
        if (!slice_is(mode, modes[i].name)) continue;
        *out = modes[i].mode;
        return true;
    }
    return api_fail(error, 400, "invalid_value", field, "Invalid value for '%s': '%.*s'. Expected one of %s.", field,
        SLICE_SHOWN(mode), none ? "'none', 'auto' and 'required'" : "'auto' and 'required'");
}

/* The function that must be called. */
static bool demand(ToolOptions *tools, const Json *object, const char *param, const char *name_field, ApiError *error) {
    tools->mode = TOOLS_REQUIRED;
    tools->name_field = name_field;
    return read_name(object, param, TOOL_LONG_NAME_MAX, &tools->name, error); /* it must be that of a tool */
}

static Slice *begin_allowed(ToolOptions *tools, Arena *arena, const Json *list, const char *field, ApiError *error) {
    Slice *names = arena_alloc(arena, list->size, sizeof *names);
    if (!names) api_out_of_memory(error);
    tools->allowed = names;
    tools->allowed_field = field;
    return names;
}

static bool end_allowed(const ToolOptions *tools, ApiError *error) {
    const char *field = tools->allowed_field;
    return tools->allowed_count > 0 || api_fail(error, 400, "empty_array", field, "Invalid '%s': empty array.", field);
}

/* {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}} */
static bool read_allowed(ToolOptions *tools, Arena *arena, const Json *value, ApiError *error) {
    static const char field[] = "tool_choice.allowed_tools", list_field[] = "tool_choice.allowed_tools.tools";
    static const char mode_field[] = "tool_choice.allowed_tools.mode";
    const Json *object = json_get(value, "allowed_tools");
    const Json *source = object ? object : value; /* the Responses API has them at this level */
    const Json *mode = json_get(source, "mode"), *list = json_get(source, "tools");
    Slice word;
    if (!api_type(source, JSON_OBJECT, field, error)) return false;
    if (!mode) return api_missing(mode_field, error);
    if (!list) return api_missing(list_field, error);
    if (!api_string(mode, mode_field, &word, error) || !read_mode(word, mode_field, false, &tools->mode, error) ||
        !api_type(list, JSON_ARRAY, list_field, error))
        return false;
    Slice *names = begin_allowed(tools, arena, list, list_field, error);
    if (!names) return false;
    int index = 0;
    for (JSON_EACH(tool, list)) {
        char param[API_PARAM_MAX], path[API_PARAM_MAX];
        bool other;
        snprintf(param, sizeof param, "tool_choice.allowed_tools.tools[%d]", index++);
        if (!api_type(tool, JSON_OBJECT, param, error) || !read_type(tool, param, &tool_form_chat, &other, error))
            return false;
        const Json *function = read_wrapper(tool, param, path, error);
        if (!function || !read_name(function, path, TOOL_NAME_MAX, &names[tools->allowed_count++], error)) return false;
    }
    return end_allowed(tools, error);
}

bool tools_read_choice(ToolOptions *tools, Arena *arena, const Json *value, const char *field, ApiError *error) {
    char path[API_PARAM_MAX];
    bool other;
    tools->choice_given = true;
    if (value->type == JSON_STRING) return read_mode(json_slice(value), field, true, &tools->mode, error);
    if (!api_type(value, JSON_OBJECT, field, error)) return false;
    if (member_is(value, "type", "allowed_tools")) return read_allowed(tools, arena, value, error);
    if (!read_type(value, field, &tool_form_chat, &other, error)) return false;
    const Json *function = read_wrapper(value, field, path, error);
    return function && demand(tools, function, path, "tool_choice.function.name", error);
}

bool tools_read_responses_choice(
    ToolOptions *tools, Arena *arena, const Json *value, const char *field, ApiError *error) {
    const Json *list = member_get(value, "tools"), *mode = member_get(value, "mode");
    Slice word;
    tools->choice_given = true;
    if (value->type == JSON_STRING) return read_mode(json_slice(value), field, true, &tools->mode, error);
    if (member_is(value, "type", "function") && member_get(value, "name"))
        return demand(tools, value, field, "tool_choice.name", error);
    if (!member_is(value, "type", "allowed_tools") || !list || list->type != JSON_ARRAY || !mode)
        return api_unsupported(field, error);
    if (!api_string(mode, "tool_choice.mode", &word, error) ||
        !read_mode(word, "tool_choice.mode", false, &tools->mode, error))
        return false;
    Slice *names = begin_allowed(tools, arena, list, "tool_choice.tools", error);
    if (!names) return false;
    int index = 0;
    for (JSON_EACH(tool, list)) {
        char param[API_PARAM_MAX];
        snprintf(param, sizeof param, "tool_choice.tools[%d]", index++);
        if (!member_get(tool, "name")) continue; /* a built-in tool, which the model does not have */
        if (!read_name(tool, param, TOOL_NAME_MAX, &names[tools->allowed_count++], error)) return false;
    }
    return end_allowed(tools, error);
}

bool tools_read_messages_choice(ToolOptions *tools, const Json *value, const char *field, ApiError *error) {
    const Json *single = member_get(value, "disable_parallel_tool_use");
    tools->choice_given = true;
    if (single && single->type == JSON_BOOL && single->boolean) tools->single = true;
    if (member_is(value, "type", "tool") && member_get(value, "name"))
        return demand(tools, value, field, "tool_choice.name", error);
    static const struct {
        const char *type;
        ToolMode mode;
    } modes[] = {{"auto", TOOLS_AUTO}, {"none", TOOLS_NONE}, {"any", TOOLS_REQUIRED}};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        if (!member_is(value, "type", modes[i].type)) continue;
        tools->mode = modes[i].mode;
        return true;
    }
    return api_fail(error, 400, "invalid_value", field, "Invalid value for '%s'.", field);
}

/* ---- all together ---- */

static bool has_tool(const ToolOptions *tools, Slice name) {
    for (size_t i = 0; i < tools->count; i++)
        if (slice_equal(tools->list[i].name, name)) return true;
    return false;
}

static bool check_known(const ToolOptions *tools, Slice name, const char *field, ApiError *error) {
    return has_tool(tools, name) ||
        api_fail(error, 400, "invalid_value", field, "Invalid value for '%s': there is no function '%.*s' in 'tools'.",
            field, SLICE_SHOWN(name));
}

static bool is_callable(const ToolOptions *tools, Slice name) {
    if (tools->name.data && !slice_equal(tools->name, name)) return false;
    bool allowed = !tools->allowed;
    for (size_t i = 0; i < tools->allowed_count; i++) allowed |= slice_equal(tools->allowed[i], name);
    return allowed;
}

bool tools_settle(ToolOptions *tools, ApiError *error) {
    if (tools->count == 0) {
        if (tools->mode == TOOLS_REQUIRED || tools->allowed)
            return api_fail(error, 400, "invalid_value", "tool_choice",
                "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.");
        tools->mode = TOOLS_NONE;
        return true;
    }
    if (tools->name.data && !check_known(tools, tools->name, tools->name_field, error)) return false;
    if (tools->name.data) tools->single = true;
    for (size_t i = 0; i < tools->allowed_count; i++)
        if (!check_known(tools, tools->allowed[i], tools->allowed_field, error)) return false;
    for (size_t i = 0; i < tools->count; i++) tools->list[i].callable = is_callable(tools, tools->list[i].name);
    return true;
}
