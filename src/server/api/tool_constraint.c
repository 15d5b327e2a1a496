#include "server/api/tool_constraint.h"

#include "chat/call_constraint.h"
#include "chat/prompt.h"
#include "server/api/response_format.h"

static bool refuse(const Error *why, const char *param, ApiError *error) {
    if (why->code == ERROR_MEMORY) return api_out_of_memory(error);
    return api_fail(error, 400, why->code == ERROR_UNSUPPORTED ? "unsupported_value" : "invalid_value", param,
        "Invalid '%s': %s.", param, why->text);
}

static bool compiles(const Buffer *text, Error *why) {
    if (text->failed) return fail(why, ERROR_MEMORY, "no memory for a schema");
    Grammar *grammar = grammar_compile(GRAMMAR_LARK, buffer_view(text), GRAMMAR_SPACE_FLEXIBLE, NULL, why);
    grammar_free(grammar);
    return grammar != NULL;
}

/* Whether the schema compiles in the format's own spelling. */
static bool can_keep(const CallFormat *format, const CallTool *tool, Error *why) {
    const CallRules rules = {.format = format, .tools = tool, .count = 1, .announced = true};
    Buffer call = {0};
    call_grammar_write(&rules, &call);
    const bool ok = compiles(&call, why);
    buffer_free(&call);
    return ok;
}

/* A schema that cannot be enforced is an error of a strict tool. Of other tools, keywords that cannot be kept are left
 * out; if that does not help, they accept any object. */
static bool take_schema(const CallFormat *format, const ChatTool *tool, CallTool *out, ApiError *error) {
    Error why = {0};
    *out = (CallTool){.name = tool->name, .parameters = tool->parameters};
    if (!tool->parameters) return true;
    while (!can_keep(format, out, &why)) {
        if (why.code == ERROR_MEMORY || tool->strict || out->keeps == CALL_KEEPS_NOTHING)
            return refuse(&why, tool->field, error);
        out->keeps++;
    }
    return true;
}

static bool collect_tools(const ChatRequest *request, CallRules *rules, ApiError *error) {
    CallTool *tools = arena_alloc(request->arena, request->tools.count, sizeof *tools);
    if (!tools) return api_out_of_memory(error);
    rules->tools = tools;
    for (size_t i = 0; i < request->tools.count; i++) {
        if (!request->tools.list[i].callable) continue;
        if (!take_schema(rules->format, &request->tools.list[i], &tools[rules->count++], error)) return false;
    }
    return true;
}

/* A schema that was sent as a text becomes part of other rules: it must be one JSON object and nothing else. */
static bool read_schema_otherwise(const ResponseFormat *format, Arena *arena, Slice *otherwise, ApiError *error) {
    Error why = {0};
    const Json *schema = json_parse(arena, format->source, &why);
    if (!schema) return refuse(&why, format->field, error);
    *otherwise = schema->type == JSON_OBJECT ? call_marker_begin(format->source) : SLICE("{}");
    return (schema->type == JSON_OBJECT || (schema->type == JSON_BOOL && schema->boolean)) ||
        api_fail(error, 400, "invalid_value", format->field, "Invalid '%s': no answer fits it.", format->field);
}

/* An answer without calls must have the response format. */
static bool read_otherwise(const ResponseFormat *format, Arena *arena, CallRules *rules, ApiError *error) {
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

static bool constrain_calls(const ChatRequest *request, ChatModel *model, Constraint **constraint, ApiError *error) {
    const bool demanded = request->tools.mode == TOOLS_REQUIRED;
    const CallFormat *format = chat_model_calls(model);
    CallRules rules = {.format = format, .single = request->tools.single, .followed = !demanded};
    if (!collect_tools(request, &rules, error)) return false;
    if (!demanded && !read_otherwise(&request->format, request->arena, &rules, error)) return false;
    const bool all = demanded || rules.otherwise.data;
    rules.announced = !all || call_format_announces(format);
    rules.bare = format->bare || (!all && format->forgetful);
    Error why = {0};
    *constraint = call_constraint(model, &rules, all, &why);
    return *constraint || refuse(&why, "tools", error);
}

/* The constraint applies after the reasoning, which may have a budget. Models without reasoning keep any budget. */
static bool settle_reasoning(
    const ChatRequest *request, ChatModel *model, const Tokens *prompt, Constraint **constraint, ApiError *error) {
    const int64_t budget = model->reasoning ? request->reasoning.budget : -1;
    if (!*constraint && budget < 0) return true;
    PromptReasoning place;
    bool ok = true;
    Error why = {0};
    if (!chat_prompt_reasoning(model, prompt, &place, &why)) {
        constraint_release(*constraint);
        return api_out_of_memory(error);
    }
    if (*constraint && place == PROMPT_REASONING_CLOSED) return true; /* the answer has no reasoning any more */
    const bool open = place == PROMPT_REASONING_OPEN;
    if (budget >= 0 && !request->reasoning.advisory && !reasoning_is_counted(model, open)) {
        constraint_release(*constraint);
        return api_unsupported(request->reasoning.budget_field, error);
    }
    ok = reasoning_is_counted(model, open);
    if (ok) *constraint = reasoning_constraint(model, *constraint, open, budget, &why);
    return !ok || *constraint || refuse(&why, request->reasoning.budget_field, error);
}

bool tool_constraint(
    const ChatRequest *request, ChatModel *model, const Tokens *prompt, Constraint **constraint, ApiError *error) {
    *constraint = NULL;
    const bool calls = request->tools.count > 0 && request->tools.mode != TOOLS_NONE;
    if (calls ? !constrain_calls(request, model, constraint, error)
              : !format_constraint(&request->format, model, constraint, error))
        return false;
    return request->chat.message_count == 0 || settle_reasoning(request, model, prompt, constraint, error);
}
