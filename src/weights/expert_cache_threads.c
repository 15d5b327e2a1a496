/* Reading by threads, each with one call at a time. */
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "weights/expert_cache_io_internal.h"

enum {
    READERS_MAX = 8,
    HANGS = 10, /* times the silence that is borne; not for ever, as readers are few */
};

typedef struct Queue {
    ExpertCacheRead *first, *last;
} Queue;

typedef struct ThreadsIo {
    ExpertCacheIo io;
    Mutex mutex; /* over the following */
    Condition work, ready;
    Queue waiting, done;
    int under_way; /* submitted and not given back */
    bool stop;

    int thread_count;
    Thread threads[READERS_MAX];
} ThreadsIo;

static void push(Queue *queue, ExpertCacheRead *read) {
    read->next = NULL;
    if (queue->first)
        queue->last->next = read;
    else
        queue->first = read;
    queue->last = read;
}

static ExpertCacheRead *pop(Queue *queue) {
    ExpertCacheRead *read = queue->first;
    if (read) queue->first = read->next;
    return read;
}

static void read_all(ExpertCacheIo *io, ExpertCacheRead *read) {
    int hangs_ms = expert_cache_read_hangs(io) ? HANGS * io->faults.silence_ms : 0;
    while (hangs_ms-- > 0 && !__atomic_load_n(&io->stopping, __ATOMIC_RELAXED)) expert_cache_pause_ms(1);
    int64_t result;
    do {
        const ssize_t got = pread(io->files[read->file].fd, read->to + read->done, read->size - read->done,
            (off_t)(read->offset + read->done));
        result = got < 0 ? -errno : got;
    } while (!expert_cache_read_advance(io, read, result));
}

static void *reader(void *argument) {
    ThreadsIo *t = argument;
    mutex_lock(&t->mutex);
    while (!t->stop) {
        ExpertCacheRead *read = pop(&t->waiting);
        if (!read) {
            condition_wait(&t->work, &t->mutex);
            continue;
        }
        mutex_unlock(&t->mutex);
        read_all(&t->io, read);
        mutex_lock(&t->mutex);
        push(&t->done, read);
        condition_signal(&t->ready);
    }
    mutex_unlock(&t->mutex);
    return NULL;
}

static void threads_submit(ExpertCacheIo *io, ExpertCacheRead *read) {
    ThreadsIo *t = (ThreadsIo *)io;
    mutex_lock(&t->mutex);
    push(&t->waiting, read);
    t->under_way++;
    condition_signal(&t->work);
    mutex_unlock(&t->mutex);
}

static ExpertCacheRead *threads_wait(ExpertCacheIo *io, int timeout_ms) {
    ThreadsIo *t = (ThreadsIo *)io;
    mutex_lock(&t->mutex);
    bool time = timeout_ms > 0;
    while (time && t->under_way > 0 && !t->done.first) time = condition_wait_ms(&t->ready, &t->mutex, timeout_ms);
    ExpertCacheRead *read = pop(&t->done);
    t->under_way -= read != NULL;
    mutex_unlock(&t->mutex);
    return read;
}

static void threads_close(ExpertCacheIo *io) {
    ThreadsIo *t = (ThreadsIo *)io;
    mutex_lock(&t->mutex);
    t->stop = true;
    condition_broadcast(&t->work);
    mutex_unlock(&t->mutex);
    for (int i = 0; i < t->thread_count; i++) thread_join(t->threads[i]);
    condition_destroy(&t->work);
    condition_destroy(&t->ready);
    mutex_destroy(&t->mutex);
    free(t);
}

static const ExpertCacheIoOps threads_ops = {threads_submit, threads_wait, threads_close};

ExpertCacheIo *expert_cache_threads_open(int depth, Error *error) {
    ThreadsIo *t = calloc(1, sizeof *t);
    if (!t) {
        fail(error, ERROR_MEMORY, "no memory for readers of experts");
        return NULL;
    }
    t->io.ops = &threads_ops;
    t->io.way = "threads";
    mutex_init(&t->mutex);
    condition_init(&t->work);
    condition_init(&t->ready);
    while (t->thread_count < READERS_MAX && t->thread_count < depth) { /* fewer do as well */
        if (!thread_start(&t->threads[t->thread_count], reader, t, "apus-experts", t->thread_count ? NULL : error))
            break;
        t->thread_count++;
    }
    if (t->thread_count > 0) return &t->io;
    threads_close(&t->io);
    return NULL;
}
