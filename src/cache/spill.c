/* The queue of records to be written, and the thread that writes them. */
#include "cache/spill.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "base/thread.h"
#include "cache/spill_store.h"

/* One buffer: free, filled by a caller, or in the queue. The first of the queue is the record being written. */
typedef struct Waiting {
    struct Waiting *next; /* next in the queue or in the free list */
    SpillKey key;
    uint8_t *bytes; /* [record_bytes] */
    size_t size;
} Waiting;

struct Spill {
    SpillOptions options;
    char *directory;
    Thread thread;
    bool thread_runs;
    Waiting *buffers; /* [options.buffers] */
    uint8_t *memory;  /* [options.buffers][record_bytes] of all buffers */

    Mutex mutex; /* over all fields below */
    Condition changed;
    bool closing, read_warned;
    SpillStore store;
    Waiting *first, *last; /* the queue */
    Waiting *free_buffers; /* the one used last is the first, so that an idle store touches little memory */
    SpillStats stats;
};

SpillKey spill_key(SpillKey before, const void *bytes, size_t size) {
    uint8_t digest[SHA256_BYTES];
    Sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, &before, sizeof before);
    sha256_add(&sha, bytes, size);
    sha256_end(&sha, digest);
    SpillKey key;
    memcpy(&key, digest, sizeof key);
    return key;
}

static void warn(const Spill *spill, const char *what, const char *why) {
    char line[ERROR_TEXT_MAX];
    if (!spill->options.warn) return;
    snprintf(line, sizeof line, "%s: %s%s", spill->directory, what, why);
    spill->options.warn(spill->options.warn_context, line);
}

/* ---- the thread ---- */

static void push_free(Spill *spill, Waiting *buffer) {
    buffer->next = spill->free_buffers;
    spill->free_buffers = buffer;
}

static void take_first(Spill *spill) {
    Waiting *first = spill->first;
    spill->first = first->next;
    if (!spill->first) spill->last = NULL;
    push_free(spill, first);
    condition_broadcast(&spill->changed);
}

static void end_writing(Spill *spill, const Error *error) {
    if (!spill->stats.writes) return;
    spill->stats.writes = false;
    warn(spill, "nothing more is written there: ", error->text);
}

/* Called under the mutex, which is released while the disk is busy. */
static void write_first(Spill *spill) {
    const Waiting *first = spill->first;
    Error error = {0};
    SpillPlace place;
    SpillSegment *removed = NULL;
    bool ok = spill_store_prepare(&spill->store, first->key, first->size, &place, &removed, &error);
    mutex_unlock(&spill->mutex);
    spill_store_drop(&spill->store, removed);
    const bool written = ok && spill_store_write(&spill->store, &place, first->bytes, &error);
    mutex_lock(&spill->mutex);
    if (ok && !spill_store_commit(&spill->store, &place, written) && written)
        ok = fail(&error, ERROR_MEMORY, "no memory for the index");
    if (ok && written) {
        spill->stats.written++;
        spill->stats.written_bytes += first->size;
    } else {
        spill->stats.dropped++;
        end_writing(spill, &error);
    }
}

static void *write_behind(void *argument) {
    Spill *spill = argument;
    mutex_lock(&spill->mutex);
    for (;;) {
        while (!spill->first && !spill->closing) condition_wait(&spill->changed, &spill->mutex);
        if (!spill->first) break;
        if (spill->stats.writes)
            write_first(spill);
        else
            spill->stats.dropped++;
        take_first(spill);
    }
    mutex_unlock(&spill->mutex);
    return NULL;
}

/* ---- opening ---- */

static void free_memory(Spill *spill) {
    free(spill->directory);
    free(spill->buffers);
    free(spill->memory);
    free(spill);
}

static bool open_buffers(Spill *spill, const SpillOptions *options) {
    const size_t count = (size_t)options->buffers;
    spill->directory = strdup(options->directory);
    spill->buffers = calloc(count, sizeof *spill->buffers);
    spill->memory = malloc(count * options->record_bytes); /* the system gives a page when it is first written */
    if (!spill->directory || !spill->buffers || !spill->memory) return false;
    for (size_t i = 0; i < count; i++) {
        spill->buffers[i].bytes = spill->memory + i * options->record_bytes;
        push_free(spill, &spill->buffers[i]);
    }
    return true;
}

Spill *spill_open(const SpillOptions *options, Error *error) {
    CHECK(options->buffers > 0 && options->record_bytes > 0);
    Spill *spill = calloc(1, sizeof *spill);
    if (!spill || !open_buffers(spill, options)) {
        if (spill) free_memory(spill);
        fail(error, ERROR_MEMORY, "no memory for a disk cache");
        return NULL;
    }
    spill->options = *options;
    spill->stats.writes = true;
    spill->store = (SpillStore){.directory = -1, .lock = -1};
    mutex_init(&spill->mutex);
    condition_init(&spill->changed);
    if (spill_store_open(&spill->store, options->directory, options->bytes, error) &&
        thread_start(&spill->thread, write_behind, spill, "apus-spill", error)) {
        spill->thread_runs = true;
        char what[64];
        snprintf(what, sizeof what, "%llu damaged or foreign files ignored", (unsigned long long)spill->store.ignored);
        if (spill->store.ignored > 0) warn(spill, what, "");
        return spill;
    }
    spill_close(spill);
    return NULL;
}

void spill_close(Spill *spill) {
    if (!spill) return;
    mutex_lock(&spill->mutex);
    spill->closing = true;
    condition_broadcast(&spill->changed);
    mutex_unlock(&spill->mutex);
    if (spill->thread_runs) thread_join(spill->thread);
    spill_store_close(&spill->store);
    condition_destroy(&spill->changed);
    mutex_destroy(&spill->mutex);
    free_memory(spill);
}

void spill_flush(Spill *spill) {
    mutex_lock(&spill->mutex);
    while (spill->first) condition_wait(&spill->changed, &spill->mutex);
    mutex_unlock(&spill->mutex);
}

/* ---- use ---- */

/* Called under the mutex. NULL: the record is not in the queue. */
static const Waiting *find_waiting(const Spill *spill, SpillKey key) {
    const Waiting *waiting = spill->first;
    while (waiting && memcmp(&waiting->key, &key, sizeof key) != 0) waiting = waiting->next;
    return waiting;
}

void *spill_buffer(Spill *spill) {
    mutex_lock(&spill->mutex);
    Waiting *buffer = spill->stats.writes && !spill->closing ? spill->free_buffers : NULL;
    if (buffer)
        spill->free_buffers = buffer->next;
    else
        spill->stats.dropped++;
    mutex_unlock(&spill->mutex);
    return buffer ? buffer->bytes : NULL;
}

static Waiting *buffer_of(const Spill *spill, const void *bytes) {
    const size_t index = (size_t)((const uint8_t *)bytes - spill->memory) / spill->options.record_bytes;
    CHECK(index < (size_t)spill->options.buffers && spill->buffers[index].bytes == bytes);
    return &spill->buffers[index];
}

void spill_put(Spill *spill, SpillKey key, void *bytes, size_t size) {
    CHECK(size > 0 && size <= spill->options.record_bytes);
    Waiting *buffer = buffer_of(spill, bytes);
    mutex_lock(&spill->mutex);
    if (spill_store_find(&spill->store, key) || find_waiting(spill, key)) {
        push_free(spill, buffer);
    } else {
        buffer->next = NULL;
        buffer->key = key;
        buffer->size = size;
        if (spill->last)
            spill->last->next = buffer;
        else
            spill->first = buffer;
        spill->last = buffer;
        condition_broadcast(&spill->changed);
    }
    mutex_unlock(&spill->mutex);
}

void spill_cancel(Spill *spill, void *bytes) {
    mutex_lock(&spill->mutex);
    push_free(spill, buffer_of(spill, bytes));
    mutex_unlock(&spill->mutex);
}

size_t spill_find(Spill *spill, SpillKey key) {
    mutex_lock(&spill->mutex);
    const Waiting *waiting = find_waiting(spill, key);
    const SpillPlace *place = waiting ? NULL : spill_store_find(&spill->store, key);
    const size_t size = waiting ? waiting->size : place ? place->size : 0;
    mutex_unlock(&spill->mutex);
    return size;
}

bool spill_get(Spill *spill, SpillKey key, void *out, size_t size) {
    mutex_lock(&spill->mutex);
    const Waiting *waiting = find_waiting(spill, key);
    SpillPlace *place = waiting ? NULL : spill_store_find(&spill->store, key);
    bool ok = (waiting && waiting->size == size) || (place && place->size == size);
    if (ok && waiting) memcpy(out, waiting->bytes, size);
    if (ok && place && !spill_store_read(&spill->store, place, out)) {
        ok = false;
        spill->stats.damaged++;
        if (!spill->read_warned) warn(spill, "a damaged record is ignored, and any other will be", "");
        spill->read_warned = true;
    }
    spill->stats.read += ok;
    spill->stats.read_bytes += ok ? size : 0;
    mutex_unlock(&spill->mutex);
    return ok;
}

SpillStats spill_stats(Spill *spill) {
    mutex_lock(&spill->mutex);
    SpillStats stats = spill->stats;
    stats.records = spill->store.record_count;
    stats.bytes = spill->store.bytes;
    mutex_unlock(&spill->mutex);
    return stats;
}
