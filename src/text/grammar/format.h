/* The formats of JSON Schema as regular expressions. Each is of RFC texts that every validator takes: of what only some
 * take (leap seconds, lower-case letters in times, the year 0) nothing. Internal to text/grammar. */
#pragma once
#include "base/slice.h"

typedef enum FormatKind {
    FORMAT_UNKNOWN, /* not of the standard: says nothing of a value */
    FORMAT_KNOWN,
    FORMAT_REFUSED, /* a standard format that is not supported */
} FormatKind;
FormatKind format_pattern(Slice name, const char **pattern);
