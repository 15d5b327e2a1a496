#include "server/api/tool_params.h"

#include <stdio.h>

const Json *tool_function(const Json *tool) { return json_get(tool, "function"); }

Slice tool_name(const Json *tool) {
    const Json *name = json_get(tool_function(tool), "name");
    return name && name->type == JSON_STRING ? json_slice(name) : (Slice){0};
}

/* ---- tools ---- */

static bool name_fits(Slice name) {
    for (size_t i = 0; i < name.size; i++) {
        const char c = name.data[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-'))
            return false;
    }
    return name.size > 0 && name.size <= TOOL_NAME_MAX;
}

/* {"type": "function", …} in an object at param. */
static bool check_type(const Json *object, const char *param, ApiError *error) {
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%.100s.type", param);
    const Json *type = json_get(object, "type");
    Slice name;
    if (!type) return api_missing(path, error);
    if (!api_string(type, path, &name, error)) return false;
    return slice_is(name, "function") ||
        api_fail(error, 400, "unsupported_parameter", path,
            "Unsupported value for '%s': '%.*s'. Only tools of type 'function' are supported.", path,
            SLICE_SHOWN(name));
}

/* The name of {"function": {"name"}} at param. */
static bool read_name(const Json *object, const char *param, Slice *name, ApiError *error) {
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%.90s.function", param);
    const Json *function = json_get(object, "function");
    if (!function) return api_missing(path, error);
    if (!api_type(function, JSON_OBJECT, path, error)) return false;
    snprintf(path, sizeof path, "%.90s.function.name", param);
    const Json *value = json_get(function, "name");
    if (!value) return api_missing(path, error);
    if (!api_string(value, path, name, error)) return false;
    return name_fits(*name) ||
        api_fail(error, 400, "invalid_value", path, "Invalid '%s': expected 1 to %d letters, digits, '_' and '-'.",
            path, TOOL_NAME_MAX);
}

static bool check_member(const Json *function, const char *key, JsonType type, const char *param, ApiError *error) {
    const Json *value = json_get(function, key);
    if (!value || value->type == JSON_NULL) return true;
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%.90s.function.%s", param, key);
    bool flag;
    Slice text;
    return type == JSON_BOOL  ? api_bool(value, path, &flag, error)
        : type == JSON_STRING ? api_string(value, path, &text, error)
                              : api_type(value, type, path, error);
}

static bool check_tool(const Json *tool, const char *param, ApiError *error) {
    Slice name;
    if (!api_type(tool, JSON_OBJECT, param, error) || !check_type(tool, param, error) ||
        !read_name(tool, param, &name, error))
        return false;
    const Json *function = tool_function(tool);
    return check_member(function, "description", JSON_STRING, param, error) &&
        check_member(function, "strict", JSON_BOOL, param, error) &&
        check_member(function, "parameters", JSON_OBJECT, param, error);
}

bool tools_read_list(ToolRequest *tools, const Json *value, const char *field, ApiError *error) {
    if (!api_type(value, JSON_ARRAY, field, error)) return false;
    if (value->size > TOOLS_MAX)
        return api_fail(error, 400, "array_above_max_length", field, "Invalid '%s': at most %d tools, got %u.", field,
            TOOLS_MAX, value->size);
    int index = 0;
    for (JSON_EACH(tool, value)) {
        char param[API_PARAM_MAX];
        snprintf(param, sizeof param, "%s[%d]", field, index++);
        if (!check_tool(tool, param, error)) return false;
    }
    tools->list = value->size > 0 ? value : NULL;
    return true;
}

/* ---- tool_choice ---- */

static bool read_mode(Slice mode, const char *field, bool words, ToolMode *out, ApiError *error) {
    static const struct {
        const char *name;
        ToolMode mode;
    } modes[] = {{"auto", TOOLS_AUTO}, {"required", TOOLS_REQUIRED}, {"none", TOOLS_NONE}};
    for (size_t i = 0; i < COUNT_OF(modes) - !words; i++) {
        if (!slice_is(mode, modes[i].name)) continue;
        *out = modes[i].mode;
        return true;
    }
    return api_fail(error, 400, "invalid_value", field, "Invalid value for '%s': '%.*s'. Expected one of %s.", field,
        SLICE_SHOWN(mode), words ? "'none', 'auto' and 'required'" : "'auto' and 'required'");
}

/* {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}} */
static bool read_allowed(ToolRequest *tools, const Json *value, ApiError *error) {
    static const char field[] = "tool_choice.allowed_tools";
    const Json *object = json_get(value, "allowed_tools");
    const Json *source = object ? object : value; /* the Responses API has them at this level */
    const Json *mode = json_get(source, "mode"), *list = json_get(source, "tools");
    Slice word;
    if (!api_type(source, JSON_OBJECT, field, error)) return false;
    if (!mode) return api_missing("tool_choice.allowed_tools.mode", error);
    if (!list) return api_missing("tool_choice.allowed_tools.tools", error);
    if (!api_string(mode, "tool_choice.allowed_tools.mode", &word, error) ||
        !read_mode(word, "tool_choice.allowed_tools.mode", false, &tools->mode, error) ||
        !api_type(list, JSON_ARRAY, "tool_choice.allowed_tools.tools", error))
        return false;
    if (list->size == 0)
        return api_fail(error, 400, "empty_array", "tool_choice.allowed_tools.tools",
            "Invalid 'tool_choice.allowed_tools.tools': empty array.");
    int index = 0;
    for (JSON_EACH(tool, list)) {
        char param[API_PARAM_MAX];
        Slice name;
        snprintf(param, sizeof param, "tool_choice.allowed_tools.tools[%d]", index++);
        if (!api_type(tool, JSON_OBJECT, param, error) || !check_type(tool, param, error) ||
            !read_name(tool, param, &name, error))
            return false;
    }
    tools->allowed = list;
    return true;
}

bool tools_read_choice(ToolRequest *tools, const Json *value, const char *field, ApiError *error) {
    tools->choice = value;
    if (value->type == JSON_STRING) return read_mode(json_slice(value), field, true, &tools->mode, error);
    if (!api_type(value, JSON_OBJECT, field, error)) return false;
    const Json *type = json_get(value, "type");
    if (type && type->type == JSON_STRING && slice_is(json_slice(type), "allowed_tools"))
        return read_allowed(tools, value, error);
    tools->mode = TOOLS_REQUIRED;
    return check_type(value, field, error) && read_name(value, field, &tools->name, error);
}

bool tools_read_parallel(ToolRequest *tools, const Json *value, const char *field, ApiError *error) {
    bool parallel;
    if (!api_bool(value, field, &parallel, error)) return false;
    tools->single = !parallel;
    return true;
}

/* ---- reasoning ---- */

bool tools_read_effort(ToolRequest *tools, const Json *value, const char *field, ApiError *error) {
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    Slice effort;
    if (!api_string(value, field, &effort, error)) return false;
    if (tools->effort.data && !slice_equal(tools->effort, effort))
        return api_fail(error, 400, "invalid_value", field, "'%s' differs from another effort in the request.", field);
    tools->effort = effort;
    for (size_t i = 0; i < COUNT_OF(efforts); i++)
        if (slice_is(effort, efforts[i])) return true;
    return api_fail(error, 400, "invalid_value", field,
        "Invalid value for '%s': expected one of 'none', 'minimal', 'low', 'medium', 'high', 'xhigh' and 'max'.",
        field);
}

bool tools_read_thinking(ToolRequest *tools, const Json *value, const char *field, ApiError *error) {
    tools->thinking_given = true;
    return api_bool(value, field, &tools->thinking, error);
}

bool tools_read_budget(ToolRequest *tools, const Json *value, const char *field, ApiError *error) {
    int64_t budget;
    if (!api_integer(value, field, -1, INT32_MAX, &budget, error)) return false;
    if (tools->budget_by && budget != tools->budget)
        return api_fail(error, 400, "invalid_value", field, "'%s' and '%s' are both set and differ: send one of them.",
            field, tools->budget_by);
    tools->budget = budget;
    tools->budget_by = field;
    return true;
}

static bool read_reasoning_member(ToolRequest *tools, Slice name, const Json *value, ApiError *error) {
    bool flag = false;
    if (slice_is(name, "max_tokens")) return tools_read_budget(tools, value, "reasoning.max_tokens", error);
    if (slice_is(name, "effort")) return tools_read_effort(tools, value, "reasoning.effort", error);
    if (slice_is(name, "enabled")) return tools_read_thinking(tools, value, "reasoning.enabled", error);
    if (slice_is(name, "exclude"))
        return api_bool(value, "reasoning.exclude", &flag, error) &&
            (!flag || api_unsupported("reasoning.exclude", error));
    char param[API_PARAM_MAX];
    snprintf(param, sizeof param, "reasoning.%.*s", SLICE_SHOWN(name));
    return api_fail(error, 400, "unknown_parameter", param, "Unknown parameter: '%s'.", param);
}

bool tools_read_reasoning(ToolRequest *tools, const Json *value, const char *field, ApiError *error) {
    for (JSON_EACH_PAIR(key, member, value))
        if (member->type != JSON_NULL && !read_reasoning_member(tools, json_slice(key), member, error)) return false;
    return true;
}

void tools_hint_thinking(ToolRequest *tools, bool thinking) {
    tools->prefetch = tools->thinking_given = true;
    tools->thinking = thinking;
}

void tools_hint_effort(ToolRequest *tools, Slice effort) {
    tools->prefetch = true;
    tools->effort = effort;
}

/* ---- all together ---- */

static bool has_tool(const Json *list, Slice name) {
    for (JSON_EACH(tool, list))
        if (slice_equal(tool_name(tool), name)) return true;
    return false;
}

static bool check_known(const ToolRequest *tools, Slice name, const char *param, ApiError *error) {
    return has_tool(tools->list, name) ||
        api_fail(error, 400, "invalid_value", param, "Invalid value for '%s': there is no function '%.*s' in 'tools'.",
            param, SLICE_SHOWN(name));
}

bool tool_callable(const ToolRequest *tools, const Json *tool) {
    const Slice name = tool_name(tool);
    return (!tools->name.data || slice_equal(tools->name, name)) && (!tools->allowed || has_tool(tools->allowed, name));
}

bool tools_settle(ToolRequest *tools, ApiError *error) {
    if (!tools->list) {
        const bool asks = tools->choice && (tools->mode == TOOLS_REQUIRED || tools->allowed);
        if (asks)
            return api_fail(error, 400, "invalid_value", "tool_choice",
                "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.");
        tools->mode = TOOLS_NONE;
        return true;
    }
    if (tools->name.data && !check_known(tools, tools->name, "tool_choice.function.name", error)) return false;
    if (tools->name.data) tools->single = true;
    if (!tools->allowed) return true;
    for (JSON_EACH(tool, tools->allowed))
        if (!check_known(tools, tool_name(tool), "tool_choice.allowed_tools.tools", error)) return false;
    return true;
}
