/* Suggestions for misspelt names. Thread: any. */
#pragma once
#include "base/slice.h"

/* The candidate nearest to `wrong` by edit distance; NULL: none is near. name_at gives candidate i, NULL behind the
 * last. The result is borrowed from name_at. */
const char *nearest_name(Slice wrong, const char *(*name_at)(const void *names, int i), const void *names);
