/* Tools and the choice of tools, in the forms that the APIs have for them. param and field are paths in the request. */
#pragma once
#include "chat/request.h"
#include "server/api/api.h"

enum { TOOLS_MAX = 128, TOOL_NAME_MAX = 64, TOOL_LONG_NAME_MAX = 128 };

/* How an API writes a tool. */
typedef struct ToolForm {
    const char *type;   /* the supported one */
    bool type_optional; /* a tool without a type has this one */
    bool skip_others;   /* tools of other types are left out instead of being refused */
    bool wrapped;       /* name, description and schema are members of "function" */
    const char *schema; /* the member that holds the parameters */
    size_t name_max;    /* longest name, in bytes */
} ToolForm;

extern const ToolForm tool_form_chat, tool_form_responses, tool_form_messages;

/* An array of tools; templates get them in the form of Chat Completions. */
NODISCARD bool tools_read_list(
    ToolOptions *tools, Arena *arena, const Json *value, const char *field, const ToolForm *form, ApiError *error);
/* tool_choice of Chat Completions, Responses and Messages. */
NODISCARD bool tools_read_choice(
    ToolOptions *tools, Arena *arena, const Json *value, const char *field, ApiError *error);
NODISCARD bool tools_read_responses_choice(
    ToolOptions *tools, Arena *arena, const Json *value, const char *field, ApiError *error);
NODISCARD bool tools_read_messages_choice(ToolOptions *tools, const Json *value, const char *field, ApiError *error);
/* Once all fields are read: the choice must name tools that there are. */
NODISCARD bool tools_settle(ToolOptions *tools, ApiError *error);
