/* The fields of a chat request that concern tools and reasoning. */
#pragma once
#include "server/api.h"

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
    bool thinking_hint; /* thinking is wanted of models that can be told */
} ToolRequest;

bool tools_read_list(ToolRequest *tools, const Json *value, const char *field, ApiError *error);
bool tools_read_choice(ToolRequest *tools, const Json *value, const char *field, ApiError *error);
bool tools_read_parallel(ToolRequest *tools, const Json *value, const char *field, ApiError *error);
bool tools_read_effort(ToolRequest *tools, const Json *value, const char *field, ApiError *error);
bool tools_read_thinking(ToolRequest *tools, const Json *value, const char *field, ApiError *error);
/* Once all fields are read. */
NODISCARD bool tools_settle(ToolRequest *tools, ApiError *error);

/* A tool's "function" object; its name; whether tool_choice lets it be called. */
const Json *tool_function(const Json *tool);
Slice tool_name(const Json *tool);
bool tool_callable(const ToolRequest *tools, const Json *tool);
