/* Every field of every request, as rows of tables: requests are read by them, docs/api shows them, and a test walks
 * them to prove that no field is ignored. */
#pragma once
#include <stddef.h>

#include "chat/request.h"
#include "server/api/api.h"

typedef enum Api {
    API_CHAT = 1 << 0,        /* /v1/chat/completions */
    API_COMPLETIONS = 1 << 1, /* /v1/completions */
    API_RESPONSES = 1 << 2,
    API_MESSAGES = 1 << 3,
    API_OLLAMA_CHAT = 1 << 4,     /* /api/chat */
    API_OLLAMA_GENERATE = 1 << 5, /* /api/generate */
    API_TOKENIZE = 1 << 6,
    API_DETOKENIZE = 1 << 7,
    API_EMBEDDINGS = 1 << 8,
    API_OLLAMA_EMBED = 1 << 9, /* /api/embed */
    API_RERANK = 1 << 10,
    API_TRANSCRIPTION = 1 << 11, /* /v1/audio/transcriptions */
    API_TRANSLATION = 1 << 12,   /* /v1/audio/translations */
} Api;

typedef enum FieldStatus {
    FIELD_HONOURED,
    FIELD_EXTENSION, /* honoured, but not in OpenAI's schema */
    FIELD_ACCEPTED,  /* checked; cannot change the answer */
    FIELD_NEUTRAL,   /* only values that change nothing are permitted */
    FIELD_REFUSED,   /* known, not supported */
} FieldStatus;

typedef enum FieldType {
    FIELD_NUMBER,  /* float */
    FIELD_INTEGER, /* int */
    FIELD_BOOL,    /* bool */
    FIELD_TEXT,    /* Slice; at most max characters; max 0: no limit */
    FIELD_ARRAY,   /* const Json *; min to max items; max 0: no limit */
    FIELD_OBJECT,  /* const Json * */
    FIELD_ANY,     /* const Json *; checked by the field's reader */
} FieldType;

typedef bool (*FieldReader)(ChatRequest *request, const Json *value, const char *name, ApiError *error);

/* Field.at: the place of a member of ChatRequest. */
#define AT(member) ((int)offsetof(ChatRequest, member))
enum { NOWHERE = -1, MANY = INT32_MAX };

typedef struct Field {
    const char *name; /* the path of a member of an object: "options.seed" */
    unsigned apis;
    FieldStatus status;
    FieldType type;
    int at; /* AT() of the member that gets the value; or NOWHERE */
    double min, max;
    FieldReader read;     /* called after type and range were checked; NULL: nothing else is to be done */
    const char *form;     /* permitted values, for documents; NULL: type and range say it */
    const char *standing; /* default, for documents; NULL: none, or the column does not exist */
    const char *what;     /* meaning, for documents */
} Field;

const Field *fields_all(size_t *count);         /* fields of Chat Completions and Completions */
const Field *adapter_fields_all(size_t *count); /* fields of the other APIs */
/* Reads every field of a body into the request; null is absent, unknown fields are errors. A field whose name has a dot
 * is a member of an object. request: NULL for APIs whose rows are only checked. */
NODISCARD bool fields_read(ChatRequest *request, Api api, const Json *body, ApiError *error);

/* Notes the path of what is ignored, for the response's header x-ignored-params, if it can stand there. */
void fields_note_ignored(ChatRequest *request, const char *path);

/* A table of fields in the documents: all fields with exactly these `apis`. */
typedef struct FieldTable {
    const char *document; /* path in the repository */
    const char *routes;   /* paths of the API, as the marker before the table names them */
    unsigned apis;
    unsigned objects; /* API whose objects inside requests are shown behind the fields; 0: none */
} FieldTable;

const FieldTable *field_tables(size_t *count);
/* These append a marker line (an HTML comment) and a table as Markdown. tools/write_docs.py copies both to the
 * document. member_table_write: the rows of object_members.h; without any, nothing. */
void field_table_write(const FieldTable *table, Buffer *out);
void member_table_write(const FieldTable *table, Buffer *out);
