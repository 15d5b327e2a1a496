/* The formats of JSON Schema as regular expressions. Each matches texts that every validator accepts, so none with leap
 * seconds, lower-case letters in times or the year 0. Internal to text/grammar. */
#pragma once
#include "base/slice.h"

typedef enum FormatKind {
    FORMAT_UNKNOWN, /* not in the standard: no constraint */
    FORMAT_KNOWN,
    FORMAT_REFUSED, /* a standard format that is not supported */
} FormatKind;
FormatKind format_pattern(Slice name, const char **pattern);
