/* Judges JSON text (RFC 8259) of any depth without keeping it: for texts that a model has written. A key may appear
 * twice, numbers may have any size, and bytes beyond ASCII are not judged; else as strict as json_parse. Threads: any.
 */
#pragma once
#include "base/json.h"

typedef enum JsonVerdict {
    JSON_IS_NOT,   /* no JSON value begins like this */
    JSON_IS_CUT,   /* the text ends within a value, or before it */
    JSON_IS_WHOLE, /* a value, with any text behind it */
    JSON_NO_MEMORY,
} JsonVerdict;

/* Judges the value at the beginning of text, behind white space. Of WHOLE, *size is the number of bytes up to the end
 * of the value, and *type its type: INTEGER for a number without fraction and exponent, REAL for others. A number that
 * ends with the text is WHOLE. */
NODISCARD JsonVerdict json_check(Slice text, size_t *size, JsonType *type);
/* Whether the text is one object with nothing but white space around it. */
bool json_is_object(Slice text);
/* Appends a text of JSON without the white space outside of strings. */
void json_write_compact(Buffer *out, Slice text);
