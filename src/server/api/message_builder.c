#include "server/api/message_builder.h"

#include <stdio.h>

#include "base/map.h"
#include "server/api/members.h"

/* ---- messages and parts ---- */

/* Room for one more element, in the arena; old blocks stay there. False: no memory. */
static bool grow(Arena *arena, void **list, size_t count, size_t *capacity, size_t size, size_t first) {
    if (count < *capacity) return true;
    const size_t wanted = *capacity ? 2 * *capacity : first;
    void *grown = arena_alloc(arena, wanted, size);
    if (!grown) return false;
    if (count > 0) memcpy(grown, *list, count * size);
    *list = grown;
    *capacity = wanted;
    return true;
}

ChatMessage *messages_begin(MessageBuilder *b, const char *role) {
    void *list = b->list;
    b->failed = b->failed || !grow(b->arena, &list, b->count, &b->capacity, sizeof *b->list, 8);
    b->list = list;
    b->parts = NULL;
    b->part_capacity = 0;
    ChatMessage *message = b->failed ? &b->spare : &b->list[b->count++];
    *message = (ChatMessage){.role = role};
    return message;
}

static void add_part(MessageBuilder *b, const ContentPart *part) {
    ChatMessage *message = b->failed ? &b->spare : &b->list[b->count - 1];
    void *parts = b->parts;
    b->failed = b->failed || !grow(b->arena, &parts, message->part_count, &b->part_capacity, sizeof *b->parts, 1);
    if (b->failed) return;
    b->parts = parts;
    b->parts[message->part_count++] = *part;
    message->parts = b->parts;
}

void messages_add_text(MessageBuilder *b, Slice text) {
    const ContentPart part = {.kind = CONTENT_TEXT, .text = text.data ? text : SLICE("")};
    const size_t count = b->failed ? 0 : b->list[b->count - 1].part_count;
    ContentPart *last = count > 0 ? &b->parts[count - 1] : NULL;
    if (b->skip_leading_empty && count == 1 && last->kind == CONTENT_TEXT && last->text.size == 0)
        *last = part;
    else
        add_part(b, &part);
}

void messages_add_reasoning(MessageBuilder *b, Slice text) {
    add_part(b, &(ContentPart){.kind = CONTENT_REASONING, .text = text.data ? text : SLICE("")});
}

void messages_add_media(MessageBuilder *b, ContentKind kind, const ChatMedia *media) {
    add_part(b, &(ContentPart){.kind = kind, .media = *media});
}

static void add_call(MessageBuilder *b, const ChatCall *call) {
    add_part(b, &(ContentPart){.kind = CONTENT_TOOL_CALL, .call = *call});
}

bool messages_add_text_call(MessageBuilder *b, ChatCall *call, ApiError *error) {
    Error why = {0};
    if (call->arguments.size == 0) call->arguments = SLICE("{}");
    call->object = json_parse(b->arena, call->arguments, &why);
    if (call->object && call->object->type != JSON_OBJECT) call->object = NULL;
    add_call(b, call);
    return call->object || why.code != ERROR_MEMORY || api_out_of_memory(error);
}

void messages_add_json_call(MessageBuilder *b, Slice id, Slice name, const Json *arguments) {
    static const Json empty[] = {{.type = JSON_OBJECT, .end = empty + 1}};
    ChatCall call = {.id = id, .name = name, .arguments = SLICE("{}"), .object = empty};
    if (arguments) {
        Buffer text = {0};
        json_write(&text, arguments);
        const char *copy = text.failed ? NULL : arena_copy(b->arena, buffer_view(&text));
        call.arguments = (Slice){copy, copy ? text.size : 0};
        call.object = arguments->type == JSON_OBJECT ? arguments : NULL;
        b->failed |= !copy;
        buffer_free(&text);
    }
    add_call(b, &call);
}

/* ---- content ---- */

bool part_refuse(const char *param, Slice type, ApiError *error) {
    return api_fail(error, 400, "unsupported_parameter", param,
        "Unsupported parameter: '%s': content of type '%.*s' is not supported by this model.", param,
        SLICE_SHOWN(type));
}

bool member_read_text(const Json *object, const char *name, const char *param, Slice *text, ApiError *error) {
    char path[API_PARAM_MAX];
    snprintf(path, sizeof path, "%.100s.%s", param, name);
    const Json *value = member_get(object, name);
    return value ? api_string(value, path, text, error) : api_missing(path, error);
}

bool part_read_text(const Json *part, const char *param, const PartType *types, Slice *text, ApiError *error) {
    Slice name;
    if (!api_type(part, JSON_OBJECT, param, error) || !member_read_text(part, "type", param, &name, error))
        return false;
    while (types->name && !slice_is(name, types->name)) types++;
    if (types->name && types->kind == CONTENT_TEXT) return member_read_text(part, types->field, param, text, error);
    return part_refuse(param, name, error);
}

/* NULL: the part has no such type. */
static const PartType *find_type(const PartType *types, const Json *part) {
    while (types->name && !member_is(part, "type", types->name)) types++;
    return types->name ? types : NULL;
}

bool messages_add_content(
    MessageBuilder *b, const Json *content, const char *param, const PartType *types, ApiError *error) {
    if (content->type == JSON_STRING) {
        messages_add_text(b, json_slice(content));
        return true;
    }
    if (!api_type(content, JSON_ARRAY, param, error)) return false;
    int index = 0;
    for (JSON_EACH(part, content)) {
        char path[API_PARAM_MAX];
        Slice text;
        snprintf(path, sizeof path, "%.100s[%d]", param, index++);
        const PartType *type = find_type(types, part);
        if (type && type->read) {
            if (!type->read(b, part, path, error)) return false;
            continue;
        }
        if (!part_read_text(part, path, types, &text, error)) return false;
        messages_add_text(b, text);
    }
    if (content->size == 0) messages_add_text(b, SLICE(""));
    return true;
}

/* ---- all of them ---- */

/* Results of tools get the name that the call with their id had, the last one before them. */
static bool name_results(ChatMessage *messages, size_t count) {
    Map calls = {0}; /* by id */
    bool ok = true;
    for (size_t i = 0; i < count && ok; i++) {
        ChatMessage *message = &messages[i];
        uint64_t call;
        if (message->call_id.data && !message->name.data && map_get(&calls, message->call_id, &call))
            message->name = ((const ChatCall *)(uintptr_t)call)->name;
        for (size_t k = message->part_count; k-- > 0 && ok;) /* the first of equal ids stays */
            if (message->parts[k].kind == CONTENT_TOOL_CALL)
                ok = map_put(&calls, message->parts[k].call.id, (uintptr_t)&message->parts[k].call);
    }
    map_free(&calls);
    return ok;
}

/* System messages at the beginning become one, with an empty line between their texts: many templates know one only. */
static bool join_systems(MessageBuilder *b, ApiError *error) {
    size_t count = 0, parts = 0;
    while (count < b->count && !strcmp(b->list[count].role, "system")) parts += b->list[count++].part_count;
    if (count < 2) return true;
    ContentPart *joined = arena_alloc(b->arena, parts + count - 1, sizeof *joined);
    if (!joined) return api_out_of_memory(error);
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (message_text_bytes(&b->list[i]) == 0) continue;
        if (at > 0) joined[at++] = (ContentPart){.kind = CONTENT_TEXT, .text = SLICE("")}; /* parts are lines */
        memcpy(joined + at, b->list[i].parts, b->list[i].part_count * sizeof *joined);
        at += b->list[i].part_count;
    }
    if (at == 0) joined[at++] = (ContentPart){.kind = CONTENT_TEXT, .text = SLICE("")};
    b->list[0].parts = joined;
    b->list[0].part_count = at;
    memmove(b->list + 1, b->list + count, (b->count - count) * sizeof *b->list);
    b->count -= count - 1;
    return true;
}

bool messages_end(MessageBuilder *b, ChatRequest *request, ApiError *error) {
    const char *field = request->input_field;
    if (b->failed || !name_results(b->list, b->count)) return api_out_of_memory(error);
    if (b->count == 0)
        return api_fail(error, 400, "empty_array", field, "Invalid '%s': there must be at least one message.", field);
    if (b->count > MESSAGES_MAX)
        return api_fail(error, 400, "array_above_max_length", field, "Invalid '%s': at most %d messages, got %zu.",
            field, MESSAGES_MAX, b->count);
    if (!join_systems(b, error)) return false;
    request->chat.messages = b->list;
    request->chat.message_count = b->count;
    return true;
}
