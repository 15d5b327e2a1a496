/* Messages of a conversation as plain data. Roles are those of chat templates: "system", "user", "assistant" and
 * "tool", whose message is the result of one tool call. Threads: any. */
#pragma once
#include "base/arena.h"
#include "base/json.h"

typedef enum ContentKind {
    CONTENT_TEXT,
    CONTENT_REASONING, /* reasoning of an earlier answer */
    CONTENT_TOOL_CALL, /* call of an earlier answer */
    CONTENT_IMAGE,
    CONTENT_AUDIO,
    CONTENT_VIDEO,
    CONTENT_FILE, /* read as text by the API adapters */
} ContentKind;

typedef struct ChatCall {
    Slice id;           /* data NULL: none */
    Slice name;         /* name of the function */
    Slice arguments;    /* as text */
    const Json *object; /* the arguments; NULL: the text is not a JSON object */
} ChatCall;

/* An image, audio or a video as a file, with the names of the fields that it came from, for errors. */
typedef struct ChatMedia {
    Slice bytes;       /* the file */
    const char *part;  /* JSON path of the content part */
    const char *field; /* JSON path of the field with the bytes */
    Slice type;        /* type of the part: "image_url" */
    bool low_detail;
} ChatMedia;

typedef struct ContentPart {
    ContentKind kind;
    union {
        ChatMedia media; /* IMAGE, AUDIO, VIDEO */
        Slice text;      /* TEXT, REASONING; UTF-8 */
        ChatCall call;   /* TOOL_CALL */
    };
} ContentPart;

typedef struct ChatMessage {
    const char *role;
    Slice name;               /* name of the author, or of the function whose result this is; data NULL: none */
    Slice call_id;            /* id of the call, in a tool's result; data NULL: none */
    const ContentPart *parts; /* [part_count]; NULL with part_count 0 */
    size_t part_count;
} ChatMessage;

/* Initialisers of a message with one text part. */
#define CHAT_TEXT(content) .parts = &(ContentPart){.kind = CONTENT_TEXT, .text = content}, .part_count = 1

/* The text parts joined by line feeds, the reasoning parts joined by nothing. data NULL: there is no such part. Borrows
 * the only part's text, or allocates in the arena. Errors: memory, the arena's limit. */
NODISCARD bool message_text(const ChatMessage *message, Arena *arena, Slice *text, Error *error);
NODISCARD bool message_reasoning(const ChatMessage *message, Arena *arena, Slice *text, Error *error);
/* Bytes of message_text(). */
size_t message_text_bytes(const ChatMessage *message);
size_t message_call_count(const ChatMessage *message);
size_t message_media_count(const ChatMessage *message); /* images, audio and videos */
static inline bool content_is_media(ContentKind kind) {
    return kind == CONTENT_IMAGE || kind == CONTENT_AUDIO || kind == CONTENT_VIDEO;
}
