/* Every field of the two request objects, in one table: requests are read by it, docs/api.md shows it, and a test walks
 * it to prove that nothing is ignored. */
#pragma once
#include "server/params.h"

typedef enum Door { DOOR_CHAT = 1, DOOR_TEXT = 2 } Door; /* /v1/chat/completions, /v1/completions */

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
    const char *name;
    unsigned doors;
    FieldStatus status;
    FieldType type;
    int at; /* byte of ApiRequest where its value is kept, or FIELD_NOWHERE */
    double min, max;
    FieldReader read;     /* called once type and range are right; NULL: there is nothing more to it */
    const char *form;     /* what it may be; NULL: type and range say it */
    const char *standing; /* its default */
    const char *what;
} Field;

const Field *fields_all(size_t *count);
/* Reads every field of a body; null is absent. Unknown ones are errors. */
NODISCARD bool fields_read(ApiRequest *request, Door door, const Json *body, ApiError *error);
/* The table as Markdown. */
void fields_write(Buffer *out);
