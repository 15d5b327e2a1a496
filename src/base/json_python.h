/* JSON as Python's json module writes it, in the files of models: the reader of json.h, for which the words Infinity,
 * -Infinity and NaN are numbers. They are JSON_LONG, written again as they were; json_number() of them is not finite.
 */
#pragma once
#include "base/json.h"

/* As json_parse(). */
NODISCARD const Json *json_parse_python(Arena *arena, Slice text, Error *error);
