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
    Condition earlier; /* than the guard sleeps, or stopping */
    bool stopping;
    int64_t wake_ns; /* when the guard looks next; INT64_MAX: not of itself */
    Thread thread;
    GuardEntry *first;
};

/* Ends what is over its time; gives the next deadline. */
static int64_t cut_off(Guard *guard, int64_t now) {
    int64_t next = INT64_MAX;
    for (GuardEntry *entry = guard->first; entry; entry = entry->next) {
        if (!entry->deadline_ns) continue;
        if (now >= entry->deadline_ns) {
            shutdown(entry->fd, SHUT_RDWR); /* its thread sees the end and cleans up */
            entry->deadline_ns = 0;
        } else if (entry->deadline_ns < next) {
            next = entry->deadline_ns;
        }
    }
    return next;
}

/* Deadlines mostly move away, so the guard sleeps to the earliest that it saw and then looks again. */
static void *watch(void *argument) {
    Guard *guard = argument;
    mutex_lock(&guard->mutex);
    while (!guard->stopping) {
        const int64_t now = clock_ns();
        guard->wake_ns = cut_off(guard, now);
        if (guard->wake_ns == INT64_MAX)
            condition_wait(&guard->earlier, &guard->mutex);
        else
            condition_wait_ms(&guard->earlier, &guard->mutex, (guard->wake_ns - now) / 1000000 + 1);
    }
    mutex_unlock(&guard->mutex);
    return NULL;
}

/* Under the mutex. */
static void set_deadline(Guard *guard, GuardEntry *entry, int seconds) {
    entry->deadline_ns = seconds ? clock_ns() + seconds * INT64_C(1000000000) : 0;
    if (entry->deadline_ns && entry->deadline_ns < guard->wake_ns) condition_signal(&guard->earlier);
}

Guard *guard_open(Error *error) {
    Guard *guard = calloc(1, sizeof *guard);
    if (!guard) {
        fail(error, ERROR_MEMORY, "no memory for the guard of connections");
        return NULL;
    }
    mutex_init(&guard->mutex);
    condition_init(&guard->earlier);
    if (thread_start(&guard->thread, watch, guard, "guard", error)) return guard;
    free(guard);
    return NULL;
}

void guard_close(Guard *guard) {
    if (!guard) return;
    mutex_lock(&guard->mutex);
    guard->stopping = true;
    condition_signal(&guard->earlier);
    mutex_unlock(&guard->mutex);
    thread_join(guard->thread);
    while (guard->first) guard_remove(guard, guard->first);
    condition_destroy(&guard->earlier);
    mutex_destroy(&guard->mutex);
    free(guard);
}

GuardEntry *guard_add(Guard *guard, int fd) {
    GuardEntry *entry = calloc(1, sizeof *entry);
    if (!entry) return NULL;
    entry->fd = fd;
    mutex_lock(&guard->mutex);
    entry->next = guard->first;
    if (guard->first) guard->first->previous = entry;
    guard->first = entry;
    set_deadline(guard, entry, HEADER_DEADLINE_S);
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
    set_deadline(guard, entry, seconds);
    mutex_unlock(&guard->mutex);
}
