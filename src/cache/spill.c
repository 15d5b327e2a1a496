/* The queue of what is to be written, and its thread. */
#include "cache/spill.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/thread.h"
#include "cache/spill_store.h"

/* Waits, or is being written: then it is the first. */
typedef struct Waiting {
    struct Waiting *next;
    SpillKey key;
    void *bytes;
    size_t size;
} Waiting;

struct Spill {
    SpillOptions options;
    char *directory;
    Thread thread;
    bool thread_runs;

    Mutex mutex; /* over what follows */
    Condition changed;
    bool closing, read_warned;
    SpillStore store;
    Waiting *first, *last;
    size_t queued; /* bytes */
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

static void take_first(Spill *spill) {
    Waiting *first = spill->first;
    spill->first = first->next;
    if (!spill->first) spill->last = NULL;
    spill->queued -= first->size;
    free(first->bytes);
    free(first);
    condition_broadcast(&spill->changed);
}

static void end_writing(Spill *spill, const Error *error) {
    if (!spill->stats.writes) return;
    spill->stats.writes = false;
    warn(spill, "nothing more is written there: ", error->text);
}

/* Under the mutex, which is given up while the disk is busy. */
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

Spill *spill_open(const SpillOptions *options, Error *error) {
    Spill *spill = calloc(1, sizeof *spill);
    if (spill) spill->directory = strdup(options->directory);
    if (!spill || !spill->directory) {
        free(spill);
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
    free(spill->directory);
    free(spill);
}

void spill_flush(Spill *spill) {
    mutex_lock(&spill->mutex);
    while (spill->first) condition_wait(&spill->changed, &spill->mutex);
    mutex_unlock(&spill->mutex);
}

/* ---- use ---- */

/* Under the mutex. NULL: it does not wait. */
static const Waiting *find_waiting(const Spill *spill, SpillKey key) {
    const Waiting *waiting = spill->first;
    while (waiting && memcmp(&waiting->key, &key, sizeof key) != 0) waiting = waiting->next;
    return waiting;
}

static bool has_room(const Spill *spill, size_t size) {
    return spill->stats.writes && !spill->closing && size <= spill->options.queue_bytes - spill->queued;
}

bool spill_room(Spill *spill, size_t size) {
    mutex_lock(&spill->mutex);
    const bool room = has_room(spill, size);
    mutex_unlock(&spill->mutex);
    return room;
}

void spill_put(Spill *spill, SpillKey key, void *bytes, size_t size) {
    CHECK(size > 0);
    Waiting *waiting = malloc(sizeof *waiting);
    mutex_lock(&spill->mutex);
    const bool known = spill_store_find(&spill->store, key) || find_waiting(spill, key);
    const bool taken = waiting && !known && has_room(spill, size);
    if (taken) {
        *waiting = (Waiting){.key = key, .bytes = bytes, .size = size};
        if (spill->last)
            spill->last->next = waiting;
        else
            spill->first = waiting;
        spill->last = waiting;
        spill->queued += size;
        condition_broadcast(&spill->changed);
    } else if (!known) {
        spill->stats.dropped++;
    }
    mutex_unlock(&spill->mutex);
    if (taken) return;
    free(waiting);
    free(bytes);
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
