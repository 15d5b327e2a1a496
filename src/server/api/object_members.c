#include "server/api/object_members.h"

#include <stdio.h>

#include "server/api/members.h"

/* Objects whose members their readers check themselves are not here: messages of Chat Completions, files, images and
 * audio of both OpenAI APIs. */
static const ObjectMembers table[] = {
    {API_CHAT, "messages[].content[]", "text", "type text", "cache_control annotations", ""},
    {API_CHAT, "messages[].content[]", "refusal", "type refusal", "", ""},
    {API_CHAT, "messages[].content[]", "thinking", "type thinking", "signature closed", ""},
    {API_CHAT, "messages[].tool_calls[]", NULL, "id type function", "index", ""},
    {API_CHAT, "messages[].tool_calls[].function", NULL, "name arguments", "", ""},
    {API_CHAT | API_OLLAMA_CHAT, "tools[]", NULL, "type function", "cache_control", ""},
    {API_CHAT | API_OLLAMA_CHAT, "tools[].function", NULL, "name description parameters strict", "", ""},
    {API_CHAT, "response_format.json_schema", NULL, "name schema strict", "description", ""},
    {API_RESPONSES, "input[]", "message", "type role content", "id status phase", ""},
    {API_RESPONSES, "input[]", "function_call", "type call_id name arguments", "id status", ""},
    {API_RESPONSES, "input[]", "function_call_output", "type call_id output", "id status", ""},
    {API_RESPONSES, "input[]", "reasoning", "type content", "id status summary encrypted_content", ""},
    {API_RESPONSES, "input[].content[]", "input_text", "type text", "", ""},
    {API_RESPONSES, "input[].content[]", "output_text", "type text", "annotations logprobs", ""},
    {API_RESPONSES, "input[].content[]", "refusal", "type refusal", "", ""},
    {API_RESPONSES, "tools[]", "function", "type name description parameters strict", "", ""},
    {API_RESPONSES, "text.format", NULL, "type name schema strict", "description", ""},
    {API_MESSAGES, "system[]", "text", "type text", "cache_control citations", ""},
    {API_MESSAGES, "messages[]", NULL, "role content", "", ""},
    {API_MESSAGES, "messages[].content[]", "text", "type text", "cache_control citations", ""},
    {API_MESSAGES, "messages[].content[]", "image", "type source", "cache_control", ""},
    {API_MESSAGES, "messages[].content[]", "document", "type source title context", "cache_control", "citations"},
    {API_MESSAGES, "messages[].content[]", "search_result", "type title content", "source cache_control", "citations"},
    {API_MESSAGES, "messages[].content[]", "tool_use", "type id name input", "cache_control caller", ""},
    {API_MESSAGES, "messages[].content[]", "tool_result", "type tool_use_id content", "cache_control is_error", ""},
    {API_MESSAGES, "messages[].content[]", "thinking", "type thinking", "signature", ""},
    {API_MESSAGES, "messages[].content[]", "redacted_thinking", "type", "data", ""},
    {API_MESSAGES, "messages[].content[].content[]", "text", "type text", "cache_control citations", ""},
    {API_MESSAGES, "messages[].content[].content[]", "image", "type source", "cache_control", ""},
    {API_MESSAGES, "messages[].content[].content[]", "document", "type source title context", "cache_control",
        "citations"},
    {API_MESSAGES, "messages[].content[].content[]", "search_result", "type title content", "source cache_control",
        "citations"},
    {API_MESSAGES, "messages[].content[].source", NULL, "type data content url", "media_type", ""},
    {API_MESSAGES, "tools[]", NULL, "type name description input_schema strict",
        "cache_control input_examples defer_loading eager_input_streaming", ""},
    {API_MESSAGES, "tool_choice", NULL, "type name disable_parallel_tool_use", "", ""},
    {API_OLLAMA_CHAT, "messages[]", NULL, "role content images thinking tool_calls tool_name tool_call_id", "", ""},
    {API_OLLAMA_CHAT, "messages[].tool_calls[]", NULL, "id function", "type", ""},
    {API_OLLAMA_CHAT, "messages[].tool_calls[].function", NULL, "name arguments", "index description", ""},
};

const ObjectMembers *object_members_all(size_t *count) {
    *count = COUNT_OF(table);
    return table;
}

typedef struct Check {
    ChatRequest *request;
    const ObjectMembers *row;
    ApiError *error;
} Check;

static bool is_named(const char *names, Slice name) {
    for (const char *at = names; *at; at += strspn(at, " ")) {
        const size_t size = strcspn(at, " ");
        if (slice_equal((Slice){at, size}, name)) return true;
        at += size;
    }
    return false;
}

static bool is_default(const Json *value) {
    const Json *enabled = json_get(value, "enabled");
    return (value->type == JSON_BOOL && !value->boolean) ||
        (enabled && enabled->type == JSON_BOOL && !enabled->boolean);
}

static bool check_object(const Check *c, const Json *object, const char *param) {
    const ObjectMembers *row = c->row;
    if (object->type != JSON_OBJECT) return true;
    const bool message = row->type && !strcmp(row->type, "message") && !member_get(object, "type");
    if (row->type && !message && !member_is(object, "type", row->type)) return true;
    for (JSON_EACH_PAIR(key, value, object)) {
        const Slice name = json_slice(key);
        char path[API_PARAM_MAX];
        if (value->type == JSON_NULL || is_named(row->read, name) || is_named(row->without_effect, name)) continue;
        const bool refused = is_named(row->refused, name);
        if (refused && is_default(value)) continue;
        snprintf(path, sizeof path, "%.90s.%.*s", param, name.size < 32 ? (int)name.size : 32, name.data);
        if (refused && !c->request->lenient) return api_unsupported(path, c->error);
        fields_note_ignored(c->request, path);
    }
    return true;
}

/* rest: what of the row's path is still to be followed from the value; param: the path so far. */
static bool check_path(const Check *c, const Json *value, const char *rest, const char *param) {
    char path[API_PARAM_MAX];
    if (rest[0] == '[') {
        if (value->type != JSON_ARRAY) return true;
        int index = 0;
        for (JSON_EACH(item, value)) {
            snprintf(path, sizeof path, "%.100s[%d]", param, index++);
            if (!check_path(c, item, rest + 2, path)) return false;
        }
        return true;
    }
    if (!rest[0]) return check_object(c, value, param);
    rest += rest[0] == '.';
    char name[32];
    const size_t size = strcspn(rest, ".[");
    snprintf(name, sizeof name, "%.*s", (int)size, rest);
    const Json *member = member_get(value, name);
    snprintf(path, sizeof path, "%.90s%s%s", param, *param ? "." : "", name);
    return !member || check_path(c, member, rest + size, path);
}

bool object_members_check(ChatRequest *request, Api api, const Json *body, ApiError *error) {
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const Check check = {request, &table[i], error};
        if (table[i].apis & api && !check_path(&check, body, table[i].path, "")) return false;
    }
    return true;
}
