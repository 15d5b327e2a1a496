#include "backend/cuda/runtime/copy.h"

#include <stdlib.h>
#include <string.h>

#include "base/cores.h"
#include "base/thread.h"

enum {
    HELPERS_MAX = 7, /* threads beside the caller; more do not read a file in the page cache faster */
    SLICE_BYTES = 256 << 10,
};

struct Copier {
    int count;
    Thread helpers[HELPERS_MAX];
    const uint8_t *from;
    uint8_t *to;
    size_t bytes, next; /* next: atomic, the begin of the first slice that no thread has taken */
    Mutex mutex;        /* protects the fields below */
    Condition begun, ended;
    uint64_t turn;
    int busy;
    bool closing;
};

static void copy_slices(Copier *c) {
    for (size_t at; (at = __atomic_fetch_add(&c->next, SLICE_BYTES, __ATOMIC_RELAXED)) < c->bytes;)
        memcpy(c->to + at, c->from + at, c->bytes - at < SLICE_BYTES ? c->bytes - at : SLICE_BYTES);
}

static void *help(void *argument) {
    Copier *c = argument;
    uint64_t seen = 0;
    mutex_lock(&c->mutex);
    for (;;) {
        while (c->turn == seen && !c->closing) condition_wait(&c->begun, &c->mutex);
        if (c->closing) break;
        seen = c->turn;
        mutex_unlock(&c->mutex);
        copy_slices(c);
        mutex_lock(&c->mutex);
        if (--c->busy == 0) condition_signal(&c->ended);
    }
    mutex_unlock(&c->mutex);
    return NULL;
}

Copier *copier_open(Error *error) {
    Copier *c = calloc(1, sizeof *c);
    if (!c) {
        fail(error, ERROR_MEMORY, "no memory to load weights");
        return NULL;
    }
    mutex_init(&c->mutex);
    condition_init(&c->begun);
    condition_init(&c->ended);
    const int wanted = cores_threads(HELPERS_MAX + 1) - 1; /* beside the caller */
    Error ignored;                                         /* fewer threads suffice */
    while (c->count < wanted && thread_start(&c->helpers[c->count], help, c, "apus-load", &ignored)) c->count++;
    return c;
}

void copier_copy(Copier *c, void *to, const void *from, size_t bytes) {
    c->from = from;
    c->to = to;
    c->bytes = bytes;
    c->next = 0;
    const bool alone = bytes <= SLICE_BYTES || !c->count;
    if (!alone) {
        mutex_lock(&c->mutex);
        c->busy = c->count;
        c->turn++;
        mutex_unlock(&c->mutex);
        condition_broadcast(&c->begun);
    }
    copy_slices(c);
    mutex_lock(&c->mutex);
    while (c->busy > 0) condition_wait(&c->ended, &c->mutex);
    mutex_unlock(&c->mutex);
}

void copier_close(Copier *c) {
    if (!c) return;
    mutex_lock(&c->mutex);
    c->closing = true;
    mutex_unlock(&c->mutex);
    condition_broadcast(&c->begun);
    for (int i = 0; i < c->count; i++) thread_join(c->helpers[i]);
    condition_destroy(&c->begun);
    condition_destroy(&c->ended);
    mutex_destroy(&c->mutex);
    free(c);
}
