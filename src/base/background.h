/* Work that answers under way must not feel: a thread of its own with low priority, which takes what the others leave.
 */
#pragma once

/* Runs it on such a thread and returns when it has ended; on the calling thread, if none can be started. Without effect
 * on priorities where the system has none for threads. */
void background_run(void (*run)(void *context), void *context, const char *name);
