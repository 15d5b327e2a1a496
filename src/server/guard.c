#include "server/guard.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/thread.h"

struct GuardEntry {
    GuardEntry *next, *previous;
    int fd;
    int64_t deadline_ns; /* 0: none */
};

struct Guard {
    Mutex mutex;
    Condition stop;
    bool stopping;
    Thread thread;
    GuardEntry *first;
};

static void *watch(void *argument) {
    enum { PERIOD_MS = 500 };
    Guard *guard = argument;
    mutex_lock(&guard->mutex);
    while (!guard->stopping) {
        condition_wait_ms(&guard->stop, &guard->mutex, PERIOD_MS);
        const int64_t now = clock_ns();
        for (GuardEntry *entry = guard->first; entry; entry = entry->next)
            if (entry->deadline_ns && now > entry->deadline_ns) {
                shutdown(entry->fd, SHUT_RDWR); /* its thread sees the end and cleans up */
                entry->deadline_ns = 0;
            }
    }
    mutex_unlock(&guard->mutex);
    return NULL;
}

Guard *guard_open(Error *error) {
    Guard *guard = calloc(1, sizeof *guard);
    if (!guard) {
        fail(error, ERROR_MEMORY, "out of memory");
        return NULL;
    }
    mutex_init(&guard->mutex);
    condition_init(&guard->stop);
    if (thread_start(&guard->thread, watch, guard, "guard", error)) return guard;
    free(guard);
    return NULL;
}

void guard_close(Guard *guard) {
    if (!guard) return;
    mutex_lock(&guard->mutex);
    guard->stopping = true;
    condition_signal(&guard->stop);
    mutex_unlock(&guard->mutex);
    thread_join(guard->thread);
    while (guard->first) guard_remove(guard, guard->first);
    condition_destroy(&guard->stop);
    mutex_destroy(&guard->mutex);
    free(guard);
}

GuardEntry *guard_add(Guard *guard, int fd) {
    GuardEntry *entry = calloc(1, sizeof *entry);
    if (!entry) return NULL;
    entry->fd = fd;
    entry->deadline_ns = clock_ns() + HEADER_DEADLINE_S * INT64_C(1000000000);
    mutex_lock(&guard->mutex);
    entry->next = guard->first;
    if (guard->first) guard->first->previous = entry;
    guard->first = entry;
    mutex_unlock(&guard->mutex);
    return entry;
}

void guard_remove(Guard *guard, GuardEntry *entry) {
    if (!entry) return;
    mutex_lock(&guard->mutex);
    if (entry->previous)
        entry->previous->next = entry->next;
    else
        guard->first = entry->next;
    if (entry->next) entry->next->previous = entry->previous;
    mutex_unlock(&guard->mutex);
    free(entry);
}

void guard_deadline(Guard *guard, GuardEntry *entry, int seconds) {
    if (!entry) return;
    mutex_lock(&guard->mutex);
    entry->deadline_ns = seconds ? clock_ns() + seconds * INT64_C(1000000000) : 0;
    mutex_unlock(&guard->mutex);
}
