/* The template's variables are JSON nodes that are built from the messages without text in between. */
#include "chat/prompt.h"

#include "base/checked.h"
#include "base/json_nodes.h"

/* How templates want calls of earlier answers. */
typedef struct Spelling {
    bool arguments_as_text; /* not as objects */
    bool empty_content;     /* not null, where there is none */
    bool systems_as_user;   /* system messages behind the first message have the role user */
} Spelling;

static const Spelling spellings[] = {
    {false, false, false}, {true, false, false}, {false, true, false}, {true, true, false}};

/* A message with its parts joined, as templates of text models expect it. Messages with images, audio or videos stay
 * lists of parts, and all others where the template shows no texts but those of parts. */
typedef struct Flat {
    const ChatMessage *message;
    Slice content, reasoning; /* data NULL: none */
    size_t call_count;
    bool listed;
} Flat;

static const Flat *flatten(const ChatModel *m, const ChatPrompt *p, Arena *arena, Error *error) {
    Flat *flat = arena_alloc(arena, p->message_count, sizeof *flat);
    if (!flat) fail(error, arena_failure(arena), "no memory for %zu messages", p->message_count);
    for (size_t i = 0; i < p->message_count && flat; i++) {
        const ChatMessage *message = &p->messages[i];
        flat[i] = (Flat){.message = message, .call_count = message_call_count(message)};
        if (!message_text(message, arena, &flat[i].content, error) ||
            !message_reasoning(message, arena, &flat[i].reasoning, error))
            return NULL;
        flat[i].listed = message_media_count(message) > 0 || (m->text_parts && flat[i].content.data);
    }
    return flat;
}

/* ---- a message ---- */

enum { NODES_PER_MESSAGE = 1 + 2 * 5 + 2, NODES_PER_CALL = 3 + 2 * 4, NODES_PER_PART = 1 + 2 * 2 };

/* {id, type, function: {name, arguments}} */
static Json *put_call(Json *at, const ChatCall *call, Spelling spelling) {
    Json *object = at++;
    if (call->id.data) at = json_put_pair(at, SLICE("id"), call->id);
    at = json_put_pair(at, SLICE("type"), SLICE("function"));
    Json *function = at = json_put_string(at, SLICE("function"));
    at = json_put_pair(at + 1, SLICE("name"), call->name);
    at = json_put_string(at, SLICE("arguments"));
    at = call->object && !spelling.arguments_as_text ? json_put_tree(at, call->object)
                                                     : json_put_string(at, call->arguments);
    json_close(function, JSON_OBJECT, 2, at);
    return json_close(object, JSON_OBJECT, call->id.data ? 3 : 2, at);
}

static Json *put_calls(Json *at, const Flat *flat, Spelling spelling) {
    Json *list = at = json_put_string(at, SLICE("tool_calls"));
    at++;
    for (size_t i = 0; i < flat->message->part_count; i++)
        if (flat->message->parts[i].kind == CONTENT_TOOL_CALL)
            at = put_call(at, &flat->message->parts[i].call, spelling);
    return json_close(list, JSON_ARRAY, (uint32_t)flat->call_count, at);
}

/* [{type: "text", text}, {type: "image"}, {type: "audio"}, {type: "video"}, …] */
static Json *put_parts(Json *at, const ChatMessage *message) {
    Json *list = at++;
    uint32_t count = 0;
    for (size_t i = 0; i < message->part_count; i++) {
        const ContentPart *part = &message->parts[i];
        if (part->kind != CONTENT_TEXT && !content_is_media(part->kind)) continue;
        const bool text = part->kind == CONTENT_TEXT;
        Json *object = at;
        at = json_put_pair(at + 1, SLICE("type"),
            text                              ? SLICE("text")
                : part->kind == CONTENT_IMAGE ? SLICE("image")
                : part->kind == CONTENT_VIDEO ? SLICE("video")
                                              : SLICE("audio"));
        if (text) at = json_put_pair(at, SLICE("text"), part->text.data ? part->text : SLICE(""));
        json_close(object, JSON_OBJECT, text ? 2 : 1, at);
        count++;
    }
    return json_close(list, JSON_ARRAY, count, at);
}

static Json *put_message(Json *at, const Flat *flat, Spelling spelling, bool first) {
    const ChatMessage *message = flat->message;
    const struct {
        Slice key, value;
    } others[] = {{SLICE("name"), message->name}, {SLICE("reasoning_content"), flat->reasoning},
        {SLICE("tool_call_id"), message->call_id}};
    Json *object = at++;
    uint32_t pairs = 2;
    const bool as_user = spelling.systems_as_user && !first && !strcmp(message->role, "system");
    at = json_put_pair(at, SLICE("role"), slice_of(as_user ? "user" : message->role));
    if (flat->listed) {
        at = put_parts(json_put_string(at, SLICE("content")), message);
    } else {
        at = json_put_pair(at, SLICE("content"), flat->content.data ? flat->content : SLICE(""));
        if (!flat->content.data && !spelling.empty_content) at[-1] = (Json){.type = JSON_NULL};
    }
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        if (!others[i].value.data) continue;
        at = json_put_pair(at, others[i].key, others[i].value);
        pairs++;
    }
    if (flat->call_count > 0) {
        at = put_calls(at, flat, spelling);
        pairs++;
    }
    return json_close(object, JSON_OBJECT, pairs, at);
}

/* Adds the largest number of nodes of a message; false: a text or their sum is too large. */
static bool count_nodes(const Flat *flat, size_t *count) {
    const ChatMessage *message = flat->message;
    const Slice texts[] = {flat->content, message->name, flat->reasoning, message->call_id};
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        if (texts[i].size > UINT32_MAX) return false;
    size_t all = NODES_PER_MESSAGE + (flat->listed ? NODES_PER_PART * message->part_count : 0);
    for (size_t i = 0; i < message->part_count; i++) {
        const ChatCall *call = &message->parts[i].call;
        if (message->parts[i].kind != CONTENT_TOOL_CALL) continue;
        if (call->arguments.size > UINT32_MAX) return false;
        if (!size_add(all, NODES_PER_CALL + json_child_nodes(call->object), &all)) return false;
    }
    return size_add(*count, all, count);
}

/* ---- all variables ---- */

/* {messages, add_generation_prompt, tools, special tokens …, arguments …} */
static const Json *make_variables(
    const ChatModel *m, const ChatPrompt *p, const Flat *flat, Spelling spelling, Arena *arena, Error *error) {
    enum { NODES_AROUND = 1 + 2 + 2 + 2 };
    size_t count = json_child_nodes(m->special_tokens) + json_child_nodes(p->arguments) + json_child_nodes(p->tools) +
        NODES_AROUND;
    for (size_t i = 0; i < p->message_count; i++) {
        if (count_nodes(&flat[i], &count)) continue;
        fail(error, ERROR_LIMIT, "message %zu has more than %u bytes", i, UINT32_MAX);
        return NULL;
    }
    Json *root = arena_alloc(arena, count, sizeof *root);
    if (!root) {
        fail(error, arena_failure(arena), "no memory for the template's variables, %zu messages", p->message_count);
        return NULL;
    }
    Json *at = json_put_string(root + 1, SLICE("messages")), *list = at++;
    for (size_t i = 0; i < p->message_count; i++) at = put_message(at, &flat[i], spelling, i == 0);
    json_close(list, JSON_ARRAY, (uint32_t)p->message_count, at);
    at = json_put_string(at, SLICE("add_generation_prompt"));
    at = json_put_bool(at, !p->continues);
    if (p->tools) at = json_put_tree(json_put_string(at, SLICE("tools")), p->tools);
    at = json_put_children(at, m->special_tokens);
    at = json_put_children(at, p->arguments);
    const uint32_t pairs = 2 + (p->tools != NULL) + m->special_tokens->size + (p->arguments ? p->arguments->size : 0);
    json_close(root, JSON_OBJECT, pairs, at);
    return root;
}

static bool has_calls(const ChatPrompt *p, const Flat *flat) {
    for (size_t i = 0; i < p->message_count; i++)
        if (flat[i].call_count > 0) return true;
    return false;
}

static bool has_later_system(const ChatPrompt *p) {
    for (size_t i = 1; i < p->message_count; i++)
        if (!strcmp(p->messages[i].role, "system")) return true;
    return false;
}

static bool render(
    const ChatModel *m, const ChatPrompt *p, const Flat *flat, Arena *arena, Rendered *rendered, Error *error) {
    const size_t ways = has_calls(p, flat) ? COUNT_OF(spellings) : 1, tries = has_later_system(p) ? 2 * ways : ways;
    Error first = {0};
    for (size_t i = 0; i < tries; i++) {
        Error why = {0};
        Spelling spelling = spellings[i % ways];
        spelling.systems_as_user = i >= ways;
        const Json *variables = make_variables(m, p, flat, spelling, arena, &why);
        if (variables && template_render(m->template, variables, rendered, &why)) return true;
        rendered_free(rendered);
        *rendered = (Rendered){0};
        const bool memory = why.code == ERROR_MEMORY || !variables;
        if (i == 0 || memory) first = why;
        if (i == 0 && variables) fail_while(&first, "The chat template refused the messages");
        if (memory) break;
    }
    if (error) *error = first;
    return false;
}

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* The last position of `what` in the text, or −1; in linear time (Knuth, Morris, Pratt). */
static bool find_last(Slice text, Slice what, Arena *arena, ptrdiff_t *last, Error *error) {
    *last = -1;
    if (what.size == 0 || what.size > text.size) return true;
    uint32_t *border =
        arena_alloc(arena, what.size, sizeof *border); /* longest proper border of the first i + 1 bytes */
    if (!border) return fail(error, arena_failure(arena), "no memory to find the last message in the prompt");
    for (size_t i = 1, size = 0; i < what.size; i++) {
        while (size > 0 && what.data[size] != what.data[i]) size = border[size - 1];
        size += what.data[size] == what.data[i];
        border[i] = (uint32_t)size;
    }
    for (size_t i = 0, size = 0; i < text.size; i++) {
        while (size > 0 && (size == what.size || what.data[size] != text.data[i])) size = border[size - 1];
        size += what.data[size] == text.data[i];
        if (size == what.size) *last = (ptrdiff_t)(i + 1 - size);
    }
    return true;
}

/* Cuts the rendered text after the last message's content; its trailing blanks stay if the template has kept them. As
 * transformers' apply_chat_template with continue_final_message. */
static bool cut_open(Slice content, Rendered *rendered, Arena *arena, Error *error) {
    const Slice text = buffer_view(&rendered->text);
    while (content.size > 0 && is_space(content.data[0])) content = (Slice){content.data + 1, content.size - 1};
    Slice core = content;
    while (core.size > 0 && is_space(core.data[core.size - 1])) core.size--;
    ptrdiff_t at;
    if (!find_last(text, core, arena, &at, error)) return false;
    if (at < 0) return fail(error, ERROR_UNSUPPORTED, "the chat template does not show the last message as it is");
    const size_t left = text.size - (size_t)at;
    const bool whole = content.size <= left && !memcmp(text.data + at, content.data, content.size);
    const char *end = text.data + at + (whole ? content.size : core.size);
    size_t count = 0;
    while (count < rendered->span_count && rendered->spans[count].text.data < end) count++;
    rendered->span_count = count;
    Span *last = &rendered->spans[count - 1];
    if (last->text.data + last->text.size > end) last->text.size = (size_t)(end - last->text.data);
    return true;
}

static bool encode(
    const ChatModel *m, Rendered *rendered, Arena *arena, Tokens *tokens, PromptMedia *media, Error *error) {
    Span *spans = rendered->spans;
    size_t count = rendered->span_count;
    return prompt_media_expand(media, m, &spans, &count, arena, error) &&
        tokenizer_encode_spans(m->tokenizer, spans, count, tokens, error) &&
        prompt_media_place(media, m, tokens, arena, error);
}

bool chat_prompt(
    const ChatModel *m, const ChatPrompt *p, Arena *arena, Tokens *tokens, PromptMedia *media, Error *error) {
    *media = (PromptMedia){0};
    if (!m->template) return fail(error, ERROR_UNSUPPORTED, "the model '%s' has no chat template", m->name);
    const Flat *flat = flatten(m, p, arena, error);
    if (!flat) return false;
    Rendered rendered = {0};
    const bool ok = prompt_media_open(media, m, p->messages, p->message_count, arena, error) &&
        render(m, p, flat, arena, &rendered, error) &&
        (!p->continues || cut_open(flat[p->message_count - 1].content, &rendered, arena, error)) &&
        encode(m, &rendered, arena, tokens, media, error);
    rendered_free(&rendered);
    if (ok) return true;
    const PromptMedia failed = *media;
    prompt_media_close(media);
    media->refused = failed.refused;
    media->refused_kind = failed.refused_kind;
    return false;
}

bool raw_prompt(const ChatModel *m, Slice text, Tokens *tokens, Error *error) {
    Tokens bare = {0};
    const size_t before = tokens->count;
    bool ok = tokenizer_encode(m->tokenizer, text, CONTROL_RECOGNISED, true, tokens, error) &&
        tokenizer_encode(m->tokenizer, text, CONTROL_RECOGNISED, false, &bare, error);
    const size_t added = ok ? tokens->count - before - bare.count : 0;
    int32_t *ids = tokens->ids + before;
    const bool twice = ok && added > 0 && bare.count > 0 && ids[0] == ids[1] && ids[0] == bare.ids[0] &&
        tokenizer_is_special(m->tokenizer, ids[0]);
    if (twice) memmove(ids, ids + 1, (--tokens->count - before) * sizeof *ids);
    tokens_free(&bare);
    return ok;
}

bool chat_prompt_reasoning(const ChatModel *m, const Tokens *prompt, PromptReasoning *reasoning, Error *error) {
    enum { TAIL = 16 };
    const size_t count = prompt->count < TAIL ? prompt->count : TAIL;
    Buffer tail = {0};
    const bool ok = !m->reasoning ||
        tokenizer_decode(m->tokenizer, prompt->ids + prompt->count - count, count, false, &tail, error);
    *reasoning = ok ? reasoning_at_end(m->reasoning, buffer_view(&tail)) : PROMPT_REASONING_NONE;
    buffer_free(&tail);
    return ok;
}
