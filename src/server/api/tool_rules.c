#include "server/api/tool_rules.h"

#include <stdio.h>

#include "chat/call_constraint.h"
#include "chat/prompt.h"

static bool refuse(const Error *why, const char *param, ApiError *error) {
    if (why->code == ERROR_MEMORY) return api_out_of_memory(error);
    return api_fail(error, 400, why->code == ERROR_UNSUPPORTED ? "unsupported_value" : "invalid_value", param,
        "Invalid '%s': %s.", param, why->text);
}

static bool is_strict(const Json *function) {
    const Json *strict = json_get(function, "strict");
    return strict && strict->type == JSON_BOOL && strict->boolean;
}

static bool compiles(GrammarKind kind, const Buffer *text, Error *why) {
    if (text->failed) return fail(why, ERROR_MEMORY, "no memory for a schema");
    Grammar *grammar = grammar_compile(kind, buffer_view(text), GRAMMAR_SPACE_FLEXIBLE, NULL, why);
    grammar_free(grammar);
    return grammar != NULL;
}

/* By itself, and as the format spells arguments: a part that stands alone there may refer to what it is part of. */
static bool can_keep(const CallFormat *format, const CallTool *tool, Error *why) {
    const CallRules rules = {.format = format, .tools = tool, .count = 1, .announced = true};
    Buffer schema = {0}, call = {0};
    json_write(&schema, tool->parameters);
    if (!call_format_is_whole(format)) call_grammar_write(&rules, &call);
    const bool ok = compiles(GRAMMAR_JSON_SCHEMA, &schema, why) &&
        (call_format_is_whole(format) || compiles(GRAMMAR_LARK, &call, why));
    buffer_free(&schema);
    buffer_free(&call);
    return ok;
}

/* A schema that cannot be kept is an error of a tool that asks for strictness; of others, any object will do. */
static bool read_schema(const CallFormat *format, const Json *function, int index, CallTool *tool, ApiError *error) {
    const Json *parameters = json_get(function, "parameters");
    if (!parameters || parameters->type != JSON_OBJECT) return true;
    tool->parameters = parameters;
    Error why = {0};
    tool->loose = !can_keep(format, tool, &why);
    if (!tool->loose || (why.code != ERROR_MEMORY && !is_strict(function))) return true;
    char param[API_PARAM_MAX];
    snprintf(param, sizeof param, "tools[%d].function.parameters", index);
    return refuse(&why, param, error);
}

/* Those that may be called. */
static bool collect_tools(const ApiRequest *request, CallRules *rules, ApiError *error) {
    CallTool *tools = arena_alloc(request->arena, request->tools.list->size, sizeof *tools);
    if (!tools) return api_out_of_memory(error);
    rules->tools = tools;
    int index = 0;
    for (JSON_EACH(value, request->tools.list)) {
        const Json *function = tool_function(value);
        CallTool *tool = &tools[rules->count];
        tool->name = tool_name(value);
        if (tool_callable(&request->tools, value)) {
            if (!read_schema(rules->format, function, index, tool, error)) return false;
            rules->count++;
        }
        index++;
    }
    return true;
}

/* A schema that came as a text stands within other rules: it has to be one object, and nothing behind it. */
static bool read_schema_otherwise(const ConstraintRequest *format, Arena *arena, Slice *otherwise, ApiError *error) {
    Error why = {0};
    const Json *schema = json_parse(arena, format->source, &why);
    if (!schema) return refuse(&why, format->field, error);
    *otherwise = schema->type == JSON_OBJECT ? call_marker_begin(format->source) : SLICE("{}");
    return (schema->type == JSON_OBJECT || (schema->type == JSON_BOOL && schema->boolean)) ||
        api_fail(error, 400, "invalid_value", format->field, "Invalid '%s': no answer fits it.", format->field);
}

/* An answer that is no call must be what response_format says. */
static bool read_otherwise(const ConstraintRequest *format, Arena *arena, CallRules *rules, ApiError *error) {
    if (!format->field) return true;
    if (format->kind == GRAMMAR_JSON_OBJECT)
        rules->otherwise = SLICE("{\"type\":\"object\"}");
    else if (format->kind == GRAMMAR_JSON_SCHEMA)
        return read_schema_otherwise(format, arena, &rules->otherwise, error);
    else
        return api_fail(error, 400, "invalid_value", format->field,
            "'%s' is only allowed without 'tools', or with a 'tool_choice' that demands a call.", format->field);
    return true;
}

static bool constrain_calls(const ApiRequest *request, ChatModel *model, Constraint **constraint, ApiError *error) {
    const bool demanded = request->tools.mode == TOOLS_REQUIRED;
    const CallFormat *format = chat_model_calls(model);
    CallRules rules = {.format = format, .single = request->tools.single, .followed = !demanded};
    if (!collect_tools(request, &rules, error)) return false;
    if (!demanded && !read_otherwise(&request->constraint, request->arena, &rules, error)) return false;
    const bool all = demanded || rules.otherwise.data;
    rules.announced = !all || call_format_announces(format);
    rules.bare = format->bare || (!all && format->forgetful);
    Error why = {0};
    *constraint = call_constraint(model, &rules, all, &why);
    return *constraint || refuse(&why, "tools", error);
}

/* What holds is for what follows reasoning, which may be bounded. Models that do not reason are within any bound. */
static bool settle_reasoning(
    const ApiRequest *request, ChatModel *model, const Tokens *prompt, Constraint **constraint, ApiError *error) {
    const int64_t budget = model->reasoning ? request->tools.budget : -1;
    if (!*constraint && budget < 0) return true;
    bool open, ok = true;
    Error why = {0};
    if (!chat_prompt_reasons(model, prompt, &open, &why)) {
        constraint_release(*constraint);
        return api_out_of_memory(error);
    }
    if (budget >= 0 && !request->tools.prefetch && !reasoning_is_counted(model, open)) {
        constraint_release(*constraint);
        return api_unsupported(request->tools.budget_by, error);
    }
    ok = reasoning_is_counted(model, open);
    if (ok) *constraint = reasoning_constraint(model, *constraint, open, budget, &why);
    return !ok || *constraint || refuse(&why, request->tools.budget_by, error);
}

bool tool_rules_constrain(
    const ApiRequest *request, ChatModel *model, const Tokens *prompt, Constraint **constraint, ApiError *error) {
    *constraint = NULL;
    const bool calls = request->tools.list && request->tools.mode != TOOLS_NONE;
    if (calls ? !constrain_calls(request, model, constraint, error)
              : !constraint_make(&request->constraint, model, constraint, error))
        return false;
    return !request->messages || settle_reasoning(request, model, prompt, constraint, error);
}
