/* Every field of every request, as rows of tables: requests are read by them, docs/api shows them, and a test walks
 * them to prove that nothing is ignored. Fields of chat/completions and completions go into an ApiRequest; those of the
 * other doors are checked, and copied into the chat completion that the door writes where the chat has the same. */
#pragma once
#include "server/api/params.h"

typedef enum Adapter {
    DOOR_CHAT = 1 << 0, /* /v1/chat/completions */
    DOOR_TEXT = 1 << 1, /* /v1/completions */
    DOOR_RESPONSES = 1 << 2,
    DOOR_MESSAGES = 1 << 3,
    DOOR_OLLAMA_CHAT = 1 << 4, /* /api/chat */
    DOOR_GENERATE = 1 << 5,    /* /api/generate */
    DOOR_TOKENIZE = 1 << 6,
    DOOR_DETOKENIZE = 1 << 7,
    DOOR_EMBEDDINGS = 1 << 8,
    DOOR_OLLAMA_EMBED = 1 << 9, /* /api/embed */
} Adapter;

typedef enum FieldStatus {
    FIELD_HONOURED,
    FIELD_EXTENSION, /* honoured, and not of OpenAI's schema */
    FIELD_ACCEPTED,  /* checked; what it asks for cannot change the answer */
    FIELD_NEUTRAL,   /* only the values that ask for what happens anyway */
    FIELD_REFUSED,   /* known, and not built */
} FieldStatus;

typedef enum FieldType {
    FIELD_NUMBER,  /* float */
    FIELD_INTEGER, /* int */
    FIELD_LONG,    /* int64_t */
    FIELD_BOOL,    /* bool */
    FIELD_TEXT,    /* Slice; of at most max characters, 0: any number */
    FIELD_ARRAY,   /* const Json *; of min to max items, 0: any number */
    FIELD_OBJECT,  /* const Json * */
    FIELD_ANY,     /* const Json *; its reader says what it may be */
} FieldType;

typedef bool (*FieldReader)(ApiRequest *request, const Json *value, const char *name, ApiError *error);

enum { FIELD_NOWHERE = -1 };

typedef struct Field {
    const char *name; /* of a member of an object: "options.seed" */
    unsigned adapters;
    FieldStatus status;
    FieldType type;
    int at; /* byte of ApiRequest where its value is kept, or FIELD_NOWHERE */
    double min, max;
    FieldReader read;     /* called once type and range are right; NULL: there is nothing more to it */
    const char *form;     /* what it may be; NULL: type and range say it */
    const char *standing; /* its default */
    const char *what;
} Field;

typedef struct AdapterField {
    Field field;
    const char *as; /* the chat's field that is the same; NULL: what it means is the door's to write */
} AdapterField;

const Field *fields_all(size_t *count);                /* of chat/completions and completions */
const AdapterField *adapter_fields_all(size_t *count); /* of the other doors */
/* Reads every field of a body; null is absent. Unknown ones are errors. */
NODISCARD bool fields_read(ApiRequest *request, Adapter adapter, const Json *body, ApiError *error);
/* Checks every field of another door's body, and the members of those whose members have rows; appends
 * ,"as":value of those that the chat has, too. chat: NULL where none is written. */
NODISCARD bool fields_check(Adapter adapter, const Json *body, Buffer *chat, ApiError *error);

/* A table of fields in the documents. Every field with these `doors` is a row of one table. */
typedef struct FieldTable {
    const char *document; /* path in the repository */
    const char *routes;   /* paths of the API, as the marker before the table names them */
    unsigned adapters;
} FieldTable;

const FieldTable *field_tables(size_t *count);
/* Appends a marker line (an HTML comment) and the table as Markdown. tools/write_docs.py copies both to the document.
 */
void field_table_write(const FieldTable *table, Buffer *out);
