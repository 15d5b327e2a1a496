/* Progress of downloads and conversions on standard error: one line that is rewritten on a terminal, lines now and then
 * elsewhere. Ctrl-C stops a download; what was downloaded stays. Thread: main. */
#pragma once
#include "library/library.h"

/* A static object. */
const LibraryWatch *progress_on_terminal(void);
/* As GgufProgress; context: int, -1 at first. */
bool progress_conversion(void *context, uint64_t done_bytes, uint64_t total_bytes, const char *tensor);
