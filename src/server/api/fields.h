/* Every field of every request, as rows of tables: requests are read by them, docs/api shows them, and a test walks
 * them to prove that no field is ignored. */
#pragma once
#include <stddef.h>

#include "chat/request.h"
#include "server/api/api.h"

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
    FIELD_BOOL,    /* bool */
    FIELD_TEXT,    /* Slice; of at most max characters, 0: any number */
    FIELD_ARRAY,   /* const Json *; of min to max items, 0: any number */
    FIELD_OBJECT,  /* const Json * */
    FIELD_ANY,     /* const Json *; its reader says what it may be */
} FieldType;

typedef bool (*FieldReader)(ChatRequest *request, const Json *value, const char *name, ApiError *error);

/* Field.at: the place of a member of ChatRequest. */
#define AT(member) ((int)offsetof(ChatRequest, member))
enum { NOWHERE = -1, MANY = INT32_MAX };

typedef struct Field {
    const char *name; /* the path of a member of an object: "options.seed" */
    unsigned adapters;
    FieldStatus status;
    FieldType type;
    int at; /* AT() of the member that gets the value; or NOWHERE */
    double min, max;
    FieldReader read;     /* called after type and range were checked; NULL: nothing else is to be done */
    const char *form;     /* permitted values, for documents; NULL: type and range say it */
    const char *standing; /* default, for documents; NULL: none, or the column does not exist */
    const char *what;     /* meaning, for documents */
} Field;

const Field *fields_all(size_t *count);         /* of Chat Completions and Completions */
const Field *adapter_fields_all(size_t *count); /* of the other APIs */
/* Reads every field of a body into the request; null is absent, unknown fields are errors. A field whose name has a dot
 * is a member of an object. request: NULL for APIs whose rows are only checked. */
NODISCARD bool fields_read(ChatRequest *request, Adapter adapter, const Json *body, ApiError *error);

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
