/* The messages of a request while an API adapter reads them: messages and their parts are appended in the request's
 * arena. Memory that ends is noted and reported by messages_end(); until then every function may be called. */
#pragma once
#include "chat/request.h"
#include "server/api/api.h"

enum { MESSAGES_MAX = 20000 };

typedef struct MessageBuilder {
    Arena *arena;
    /* Text parts at the beginning of a message that are empty are left out where another text follows. */
    bool skip_leading_empty;
    bool failed; /* no memory */
    ChatMessage *list;
    size_t count, capacity;
    ContentPart *parts; /* parts of the last message */
    size_t part_capacity;
    const char *media_hosts; /* ChatRequest.media_hosts */
    int fetches;             /* files fetched so far */
    ChatMessage spare;       /* what is written to after a failure */
} MessageBuilder;

/* A part type of an API; a table ends with name NULL. */
typedef struct PartType {
    const char *name; /* "text", "input_image" */
    ContentKind kind;
    const char *field; /* name of the member that holds the text, in text parts */
    /* Appends a part of another kind to the last message; NULL: such parts are refused. param: the part's path. */
    bool (*read)(MessageBuilder *builder, const Json *part, const char *param, ApiError *error);
} PartType;

/* Begins a message without parts; valid until the next one begins. */
ChatMessage *messages_begin(MessageBuilder *builder, const char *role);
/* These append a part to the last message. Texts are borrowed. */
void messages_add_text(MessageBuilder *builder, Slice text);
void messages_add_reasoning(MessageBuilder *builder, Slice text);
void messages_add_media(MessageBuilder *builder, ContentKind kind, const ChatMedia *media); /* IMAGE, AUDIO, VIDEO */
/* A call whose arguments are a text, which a model may have written as no JSON; "": {}. Sets call->object. */
NODISCARD bool messages_add_text_call(MessageBuilder *builder, ChatCall *call, ApiError *error);
/* A call whose arguments are JSON; NULL: {}. */
void messages_add_json_call(MessageBuilder *builder, Slice id, Slice name, const Json *arguments);
/* Appends content, a string or an array of parts, to the last message; an empty array is an empty text. Parts of other
 * kinds or types are refused by name. param: the content's path. */
NODISCARD bool messages_add_content(
    MessageBuilder *builder, const Json *content, const char *param, const PartType *types, ApiError *error);
/* The text of one part of these types. */
NODISCARD bool part_read_text(const Json *part, const char *param, const PartType *types, Slice *text, ApiError *error);
/* False: content of this type is refused. */
bool part_refuse(const char *param, Slice type, ApiError *error);
/* A text that must be there; param: the object's path. */
NODISCARD bool member_read_text(const Json *object, const char *name, const char *param, Slice *text, ApiError *error);

/* Gives the request its messages. System messages at the beginning are joined into one. Results of tools get the names
 * of the functions that were called. */
NODISCARD bool messages_end(MessageBuilder *builder, ChatRequest *request, ApiError *error);
