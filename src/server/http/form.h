/* Bodies of forms (multipart/form-data, RFC 7578). */
#pragma once
#include "base/arena.h"
#include "base/json.h"
#include "server/api/api.h"

enum {
    FORM_PARTS_MAX = 64,
    FORM_HEAD_MAX = 4096, /* bytes of a part's header lines */
};

/* The form as an object of texts, which are parts of the body, borrowed. type: the Content-Type with its boundary.
 * file: name of the part that may hold any bytes; the others are UTF-8. NULL with the error: it is no such form, a part
 * has no name, or a name occurs twice. */
const Json *form_object(Slice type, Slice body, const char *file, Arena *arena, ApiError *error);
