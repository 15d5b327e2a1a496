/* The fields of a chat request that concern tools and reasoning. */
#pragma once
#include "server/api/api.h"

enum { TOOLS_MAX = 128, TOOL_NAME_MAX = 64 };

typedef enum ToolMode {
    TOOLS_AUTO,     /* the model decides */
    TOOLS_NONE,     /* no call is made */
    TOOLS_REQUIRED, /* at least one call, and nothing else */
} ToolMode;

typedef struct ToolRequest {
    const Json *list;    /* tools; NULL: there are none */
    const Json *choice;  /* tool_choice, as it came */
    const Json *allowed; /* of allowed_tools: [{"type", "function": {"name"}}, …]; NULL: all are */
    Slice name;          /* the one that must be called; data NULL: any */
    ToolMode mode;
    bool single;  /* at most one call */
    Slice effort; /* reasoning_effort; data NULL: not given */
    bool thinking, thinking_given;
    bool prefetch;         /* effort and thinking are for models that can be told: others are not asked */
    int64_t budget;        /* most tokens of reasoning; −1: any number */
    const char *budget_by; /* the field that said so; NULL: none */
} ToolRequest;

bool tools_read_list(ToolRequest *tools, const Json *value, const char *field, ApiError *error);
bool tools_read_choice(ToolRequest *tools, const Json *value, const char *field, ApiError *error);
bool tools_read_parallel(ToolRequest *tools, const Json *value, const char *field, ApiError *error);
bool tools_read_effort(ToolRequest *tools, const Json *value, const char *field, ApiError *error);
bool tools_read_thinking(ToolRequest *tools, const Json *value, const char *field, ApiError *error);
/* Fields of a chat that say it in several ways, which agree. −1: no limit. */
bool tools_read_budget(ToolRequest *tools, const Json *value, const char *field, ApiError *error);
/* {"max_tokens", "effort", "enabled", "exclude"}, as OpenRouter has it. */
bool tools_read_reasoning(ToolRequest *tools, const Json *value, const char *field, ApiError *error);
/* What agents send whatever the model: it holds where the model can be told. */
void tools_hint_thinking(ToolRequest *tools, bool thinking);
void tools_hint_effort(ToolRequest *tools, Slice effort);
/* Once all fields are read. */
NODISCARD bool tools_settle(ToolRequest *tools, ApiError *error);

/* A tool's "function" object; its name; whether tool_choice lets it be called. */
const Json *tool_function(const Json *tool);
Slice tool_name(const Json *tool);
bool tool_callable(const ToolRequest *tools, const Json *tool);
