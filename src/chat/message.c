#include "chat/message.h"

#include <string.h>

/* Bytes of the joined parts of one kind, and how many there are. */
static size_t measure(const ChatMessage *message, ContentKind kind, size_t between, size_t *count) {
    size_t bytes = 0;
    *count = 0;
    for (size_t i = 0; i < message->part_count; i++) {
        if (message->parts[i].kind != kind) continue;
        bytes += message->parts[i].text.size + (*count > 0 ? between : 0);
        ++*count;
    }
    return bytes;
}

static bool join(const ChatMessage *message, ContentKind kind, Slice between, Arena *arena, Slice *text, Error *error) {
    size_t count;
    const size_t bytes = measure(message, kind, between.size, &count);
    *text = (Slice){0};
    char *at = NULL;
    if (count > 1) {
        at = arena_alloc(arena, bytes, 1);
        if (!at) return fail(error, arena_failure(arena), "no memory for a message of %zu bytes", bytes);
        *text = (Slice){at, bytes};
    }
    bool first = true;
    for (size_t i = 0; i < message->part_count; i++) {
        const ContentPart *part = &message->parts[i];
        if (part->kind != kind) continue;
        if (count == 1) {
            *text = part->text.data ? part->text : SLICE("");
            return true;
        }
        if (!first && between.size > 0) at = (char *)memcpy(at, between.data, between.size) + between.size;
        if (part->text.size > 0) at = (char *)memcpy(at, part->text.data, part->text.size) + part->text.size;
        first = false;
    }
    return true;
}

bool message_text(const ChatMessage *message, Arena *arena, Slice *text, Error *error) {
    return join(message, CONTENT_TEXT, SLICE("\n"), arena, text, error);
}

bool message_reasoning(const ChatMessage *message, Arena *arena, Slice *text, Error *error) {
    return join(message, CONTENT_REASONING, SLICE(""), arena, text, error);
}

size_t message_text_bytes(const ChatMessage *message) {
    size_t count;
    return measure(message, CONTENT_TEXT, 1, &count);
}

size_t message_call_count(const ChatMessage *message) {
    size_t count = 0;
    for (size_t i = 0; i < message->part_count; i++) count += message->parts[i].kind == CONTENT_TOOL_CALL;
    return count;
}

size_t message_media_count(const ChatMessage *message) {
    size_t count = 0;
    for (size_t i = 0; i < message->part_count; i++) count += content_is_media(message->parts[i].kind);
    return count;
}
