#include "server/api/reasoning.h"

#include <stdio.h>

#include "base/json_nodes.h"

/* ---- fields ---- */

bool reasoning_read_effort(ReasoningOptions *r, const Json *value, const char *field, ApiError *error) {
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    Slice effort;
    if (!api_string(value, field, &effort, error)) return false;
    if (r->effort.data && !slice_equal(r->effort, effort))
        return api_fail(error, 400, "invalid_value", field, "'%s' differs from another effort in the request.", field);
    r->effort = effort;
    r->effort_field = field;
    for (size_t i = 0; i < COUNT_OF(efforts); i++)
        if (slice_is(effort, efforts[i])) return true;
    return api_fail(error, 400, "invalid_value", field,
        "Invalid value for '%s': expected one of 'none', 'minimal', 'low', 'medium', 'high', 'xhigh' and 'max'.",
        field);
}

bool reasoning_read_thinking(ReasoningOptions *r, const Json *value, const char *field, ApiError *error) {
    r->thinking_given = true;
    r->thinking_field = field;
    return api_bool(value, field, &r->thinking, error);
}

bool reasoning_read_budget(ReasoningOptions *r, const Json *value, const char *field, ApiError *error) {
    int64_t budget;
    if (!api_integer(value, field, -1, INT32_MAX, &budget, error)) return false;
    if (r->budget_field && budget != r->budget)
        return api_fail(error, 400, "invalid_value", field, "'%s' and '%s' are both set and differ: send one of them.",
            field, r->budget_field);
    r->budget = budget;
    r->budget_field = field;
    return true;
}

static bool read_member(ReasoningOptions *r, Slice name, const Json *value, ApiError *error) {
    bool flag = false;
    if (slice_is(name, "max_tokens")) return reasoning_read_budget(r, value, "reasoning.max_tokens", error);
    if (slice_is(name, "effort")) return reasoning_read_effort(r, value, "reasoning.effort", error);
    if (slice_is(name, "enabled")) return reasoning_read_thinking(r, value, "reasoning.enabled", error);
    if (slice_is(name, "exclude"))
        return api_bool(value, "reasoning.exclude", &flag, error) &&
            (!flag || api_unsupported("reasoning.exclude", error));
    char param[API_PARAM_MAX];
    snprintf(param, sizeof param, "reasoning.%.*s", SLICE_SHOWN(name));
    return api_fail(error, 400, "unknown_parameter", param, "Unknown parameter: '%s'.", param);
}

bool reasoning_read_object(ReasoningOptions *r, const Json *value, ApiError *error) {
    for (JSON_EACH_PAIR(key, member, value))
        if (member->type != JSON_NULL && !read_member(r, json_slice(key), member, error)) return false;
    return true;
}

void reasoning_advise_thinking(ReasoningOptions *r, bool thinking) {
    r->advisory = r->thinking_given = true;
    r->thinking = thinking;
}

void reasoning_advise_effort(ReasoningOptions *r, Slice effort) {
    r->advisory = true;
    r->effort = effort;
}

/* ---- variables of the template ---- */

static bool knows(const ChatModel *model, const char *variable) {
    const Slice text = model->template ? template_source(model->template) : (Slice){0};
    return text.size > 0 && memmem(text.data, text.size, variable, strlen(variable));
}

static bool refuse_template(const char *field, ApiError *error) {
    return api_fail(error, 400, "unsupported_parameter", field,
        "Unsupported parameter: '%s' is not supported by this model's chat template.", field);
}

bool reasoning_settle(const ChatRequest *request, const ChatModel *model, ChatPrompt *prompt, ApiError *error) {
    const ReasoningOptions *r = &request->reasoning;
    const bool switches = knows(model, "enable_thinking"), grades = knows(model, "reasoning_effort");
    const bool off = r->effort.data && slice_is(r->effort, "none");
    if (r->effort.data && !switches && !grades && !off && !r->advisory) return refuse_template(r->effort_field, error);
    if (r->thinking_given && r->thinking && !switches && !r->advisory) return refuse_template(r->thinking_field, error);
    const bool effort = r->effort.data && grades && !off;
    const bool thinking = switches && (r->thinking_given || r->effort.data);
    if (!effort && !thinking) return true;
    if ((effort && json_get(prompt->arguments, "reasoning_effort")) ||
        (thinking && json_get(prompt->arguments, "enable_thinking")))
        return api_fail(error, 400, "invalid_value", "chat_template_kwargs",
            "'enable_thinking' and 'reasoning_effort' are set both in 'chat_template_kwargs' and outside of it.");
    Json *root = arena_alloc(request->arena, 1 + 2 + 2 + json_child_nodes(prompt->arguments), sizeof *root);
    if (!root) return api_out_of_memory(error);
    Json *at = root + 1;
    if (effort) at = json_put_pair(at, SLICE("reasoning_effort"), r->effort);
    if (thinking)
        at = json_put_bool(json_put_string(at, SLICE("enable_thinking")), r->thinking_given ? r->thinking : !off);
    at = json_put_children(at, prompt->arguments);
    const uint32_t others = prompt->arguments ? prompt->arguments->size : 0;
    json_close(root, JSON_OBJECT, (uint32_t)effort + (uint32_t)thinking + others, at);
    prompt->arguments = root;
    return true;
}
