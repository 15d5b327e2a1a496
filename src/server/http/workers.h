/* Threads for jobs that may wait: one each, started when they are needed and kept for a while. */
#pragma once
#include <stdbool.h>

#include "base/error.h"

typedef struct Workers Workers;
NODISCARD Workers *workers_open(int max, Error *error);
/* Has it run by another thread at once, if so many may still be given jobs afterwards. ERROR_BUSY: too many work;
 * ERROR_LIMIT: there can be no more threads. */
NODISCARD bool workers_give(Workers *workers, int spare, void (*run)(void *context), void *context, Error *error);
void workers_close(Workers *workers); /* waits for the end of all jobs */
