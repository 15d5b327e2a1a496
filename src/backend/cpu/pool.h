/* Threads that work together on one operation at a time. The caller is thread 0 of each run; the others spin for some
 * 50 µs after a run and then sleep in the kernel, so an idle process uses no CPU. Threads: pool_run from one thread at
 * a time. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct Pool Pool;
typedef void PoolTask(void *argument, int index, int count);

enum { POOL_THREADS_MAX = 256, POOL_SHARES = 2 };

/* threads 0: as many as base/cores.h says. */
NODISCARD Pool *pool_open(int threads, Error *error);
void pool_close(Pool *pool); /* NULL is fine */
int pool_threads(const Pool *pool);

/* Runs task(argument, index, count) on all threads and returns when every one is done. */
void pool_run(Pool *pool, PoolTask *task, void *argument);
/* Inside a task: returns when all threads have reached the barrier. */
void pool_barrier(Pool *pool, int index);

/* Distributes work in pieces: each thread has a contiguous range of 0…items−1 and, when done, takes pieces of other
 * threads' ranges. Set up before pool_run; slot < POOL_SHARES, one per phase of the task. */
void pool_share(Pool *pool, int slot, int64_t items);
/* Inside a task: the next at most grain items, fewer near the end of a range, so that the threads end together; false
 * when nothing is left. */
bool pool_next(Pool *pool, int slot, int index, int64_t grain, int64_t *first, int64_t *count);
