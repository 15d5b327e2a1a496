/* Threads for jobs that may block: one thread per job, started on demand and kept for a while. */
#pragma once
#include <stdbool.h>

#include "base/error.h"

typedef struct Workers Workers;
NODISCARD Workers *workers_open(int max, Error *error);
/* Starts a job on another thread if at least `spare` threads stay available afterwards. ERROR_BUSY: too many jobs run;
 * ERROR_LIMIT: no more threads can be created. */
NODISCARD bool workers_give(Workers *workers, int spare, void (*run)(void *context), void *context, Error *error);
void workers_close(Workers *workers); /* waits for the end of all jobs */
