/* The template's variables are nodes of JSON, made from the messages as they are: no text in between. */
#include "chat/prompt.h"

#include "base/checked.h"

static Json *put_string(Json *at, Slice text) {
    *at = (Json){.type = JSON_STRING, .size = (uint32_t)text.size, .string = text.data};
    return at + 1;
}

static Json *put_pair(Json *at, Slice key, Slice value) { return put_string(put_string(at, key), value); }

static size_t child_count(const Json *container) { return container ? (size_t)(container->end - container) - 1 : 0; }

/* A container's children, with their ends where they are now. */
static Json *put_children(Json *at, const Json *container) {
    if (!container) return at;
    for (const Json *node = json_first(container); node != container->end; node++) {
        Json *copy = at + (node - json_first(container));
        *copy = *node;
        if (node->type >= JSON_ARRAY) copy->end = copy + (node->end - node);
    }
    return at + child_count(container);
}

static Json *put_message(Json *at, const ChatMessage *message) {
    Json *object = at++;
    *object = (Json){.type = JSON_OBJECT, .size = message->name.data ? 3 : 2};
    at = put_pair(at, SLICE("role"), slice_of(message->role));
    at = put_pair(at, SLICE("content"), message->content);
    if (message->name.data) at = put_pair(at, SLICE("name"), message->name);
    object->end = at;
    return at;
}

/* {messages, add_generation_prompt, special tokens …, arguments …} */
static const Json *make_variables(const ChatModel *m, const ChatPrompt *p, Arena *arena, Error *error) {
    enum { NODES_PER_MESSAGE = 1 + 2 * 3, NODES_AROUND = 1 + 2 + 2 };
    const size_t others = child_count(m->special_tokens) + child_count(p->arguments) + NODES_AROUND;
    size_t count;
    Json *root = size_mul(p->message_count, NODES_PER_MESSAGE, &count) && size_add(count, others, &count)
        ? arena_alloc(arena, count, sizeof *root)
        : NULL;
    if (!root) {
        fail(error, arena_failure(arena), "no memory for the template's variables, %zu messages", p->message_count);
        return NULL;
    }
    Json *at = put_string(root + 1, SLICE("messages")), *list = at++;
    for (size_t i = 0; i < p->message_count; i++) {
        const ChatMessage *message = &p->messages[i];
        if (message->content.size > UINT32_MAX || message->name.size > UINT32_MAX) {
            fail(error, ERROR_LIMIT, "message %zu has more than %u bytes", i, UINT32_MAX);
            return NULL;
        }
        at = put_message(at, message);
    }
    *list = (Json){.type = JSON_ARRAY, .size = (uint32_t)p->message_count, .end = at};
    at = put_string(at, SLICE("add_generation_prompt"));
    *at++ = (Json){.type = JSON_BOOL, .boolean = true};
    at = put_children(at, m->special_tokens);
    at = put_children(at, p->arguments);
    const uint32_t pairs = 2 + m->special_tokens->size + (p->arguments ? p->arguments->size : 0);
    *root = (Json){.type = JSON_OBJECT, .size = pairs, .end = at};
    return root;
}

bool chat_prompt(const ChatModel *m, const ChatPrompt *p, Arena *arena, Tokens *tokens, Error *error) {
    if (!m->template) return fail(error, ERROR_UNSUPPORTED, "the model '%s' has no chat template", m->name);
    const Json *variables = make_variables(m, p, arena, error);
    if (!variables) return false;
    Rendered rendered = {0};
    bool ok = template_render(m->template, variables, &rendered, error);
    if (!ok) fail_while(error, "The chat template refused the messages");
    ok = ok && tokenizer_encode_spans(m->tokenizer, rendered.spans, rendered.span_count, tokens, error);
    rendered_free(&rendered);
    return ok;
}
