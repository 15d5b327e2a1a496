/* Shared by all engines of a process: the threads that compute, one step at a time, and the account of memory.
 * Threads: any. */
#pragma once
#include <stdatomic.h>

#include "base/thread.h"

typedef struct Resources Resources;

/* threads 0: one per core that this process may use. */
NODISCARD Resources *resources_open(int threads, Error *error);
void resources_close(Resources *resources); /* after all engines that use it; NULL is fine */
struct Pool *resources_pool(Resources *resources);

/* Enclose a step: waiting engines get their turns in the order of their calls. */
void resources_begin_step(Resources *resources);
void resources_end_step(Resources *resources);
/* True if another engine waits for the end of the current step. */
bool resources_others_wait(Resources *resources);

/* The largest memory of an engine, and the part of it taken so far; the rest is reserved. */
typedef struct MemoryAccount {
    size_t promised;
    atomic_size_t used;
    struct MemoryAccount *next;
} MemoryAccount;

void resources_enter(Resources *resources, MemoryAccount *account);
void resources_leave(Resources *resources, MemoryAccount *account); /* no effect on an account that never entered */
/* Bytes that are neither taken nor reserved. */
size_t resources_available(Resources *resources);
