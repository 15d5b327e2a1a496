#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/log.h"
#include "weights/expert_cache_internal.h"

enum {
    HUGE_PAGE = 2 << 20,
    TOUCH_BYTES = 32 << 20,
    DEPTH = 32,      /* reads under way: some drives need as many, and none is slower */
    CLOSE_MS = 5000, /* that reads are waited for at the end */
};

/* ---- where experts lie ---- */

static bool add_part(ExpertCache *cache, const Checkpoint *c, ExpertCacheExpert *e, const void **address, size_t bytes,
    size_t *at, Error *error) {
    if (!*address) return true;
    const uintptr_t from = (uintptr_t)*address;
    for (int f = 0; f < c->file_count; f++) {
        const uintptr_t start = (uintptr_t)c->files[f].data;
        if (from < start || from - start > c->files[f].size || bytes > c->files[f].size - (from - start)) continue;
        const uint64_t offset = from - start, first = offset / EXPERT_CACHE_ALIGN * EXPERT_CACHE_ALIGN;
        const uint64_t end = (offset + bytes + EXPERT_CACHE_ALIGN - 1) / EXPERT_CACHE_ALIGN * EXPERT_CACHE_ALIGN;
        e->part[e->part_count++] = (ExpertCachePart){.offset = offset, .bytes = bytes, .at = *at, .file = f};
        *at += (size_t)(end - first);
        *address = (const void *)(uintptr_t)e->part_count;
        return true;
    }
    return fail(error, ERROR_FORMAT,
        "an expert's matrix lies in no file as it is used (transposed or unpacked), and cannot be streamed");
}

static bool add_expert(
    ExpertCache *cache, const Checkpoint *c, const ExpertCacheLayer *layer, int i, ExpertCacheExpert *e, Error *error) {
    size_t at = 0;
    e->slot = NONE;
    for (int m = 0; m < EXPERT_CACHE_MATRICES; m++) {
        Weight *w = &e->matrix[m];
        if (m > 0 && layer->matrices[m] == layer->matrices[m - 1]) {
            *w = e->matrix[m - 1]; /* the same parts */
            continue;
        }
        *w = layer->matrices[m][i];
        const size_t rows = (size_t)w->rows;
        if (!add_part(cache, c, e, &w->data, weight_row_bytes(w) * rows, &at, error) ||
            !add_part(cache, c, e, &w->scales, weight_scale_bytes(w) * rows, &at, error) ||
            !add_part(cache, c, e, &w->biases, weight_scale_bytes(w) * rows, &at, error))
            return false;
    }
    if (at > cache->slot_bytes) cache->slot_bytes = at;
    return true;
}

static bool add_layers(
    ExpertCache *cache, const Checkpoint *c, const ExpertCacheLayer *layers, int layer_count, Error *error) {
    for (int l = 0; l < layer_count; l++) cache->expert_count += layers[l].count;
    cache->layer_count = layer_count;
    cache->layer_first = arena_alloc(&cache->arena, (size_t)layer_count, sizeof *cache->layer_first);
    cache->experts = arena_alloc(&cache->arena, (size_t)cache->expert_count, sizeof *cache->experts);
    cache->displaced = arena_alloc(&cache->arena, (size_t)cache->expert_count, sizeof *cache->displaced);
    cache->uses = arena_alloc(&cache->arena, (size_t)cache->expert_count, sizeof *cache->uses);
    bool ok = cache->layer_first && cache->experts && cache->displaced && cache->uses;
    for (int i = 0; ok && i < PROVIDER_MICRO_BATCHES; i++)
        ok = (cache->micro_batches[i].wanted = arena_alloc(&cache->arena, (size_t)cache->expert_count, sizeof(int))) !=
            NULL;
    if (!ok) return fail(error, ERROR_MEMORY, "no memory for a table of experts");
    int first = 0;
    for (int l = 0; l < layer_count; l++) {
        cache->layer_first[l] = first;
        cache->cycle += layers[l].top_k;
        cache->most_used = layers[l].top_k > cache->most_used ? layers[l].top_k : cache->most_used;
        for (int i = 0; i < layers[l].count; i++)
            if (!add_expert(cache, c, &layers[l], i, &cache->experts[first + i], error)) return false;
        first += layers[l].count;
    }
    cache->cycle_now = cache->cycle;
    return true;
}

static bool open_files(ExpertCache *cache, const Checkpoint *c, const ExpertCacheOptions *options, Error *error) {
    const bool keep = options->io == EXPERT_CACHE_IO_PAGE_CACHE;
    cache->silence_ms = options->faults.silence_ms ? options->faults.silence_ms : EXPERT_CACHE_SILENCE_MS;
    cache->paths = arena_alloc(&cache->arena, (size_t)c->file_count, sizeof *cache->paths);
    bool ok = cache->paths;
    for (int f = 0; ok && f < c->file_count; f++)
        ok = (cache->paths[f] = arena_copy(&cache->arena, slice_of(c->paths[f]))) != NULL;
    if (!ok) return fail(error, ERROR_MEMORY, "no memory for a table of experts");
    const int depth = options->depth > 0 ? options->depth : DEPTH;
    cache->io = expert_cache_io_open(options->io, cache->paths, c->file_count, depth, &options->faults, error);
    if (!cache->io) return false;
    if ((options->buffered || keep) && !expert_cache_io_buffer(cache->io, keep))
        return fail(error, ERROR_IO, "cannot read experts through the page cache");
    for (int f = 0; f < c->file_count; f++)
        if (expert_cache_io_size(cache->io, f) != c->files[f].size)
            return fail(error, ERROR_IO, "%s has %zu bytes by now, and had %zu", cache->paths[f],
                expert_cache_io_size(cache->io, f), c->files[f].size);
    /* What was read to load the model, and around it, is in memory of its own by now: it is not held twice. */
    for (int f = 0; f < c->file_count; f++)
        (void)madvise((void *)(uintptr_t)c->files[f].data, c->files[f].size, MADV_DONTNEED);
    expert_cache_io_forget(cache->io);
    return true;
}

static ExpertProviderStats stats_of(ExpertProvider *source) {
    ExpertCache *cache = expert_cache_of(source);
    mutex_lock(&cache->mutex);
    ExpertProviderStats stats = cache->stats;
    mutex_unlock(&cache->mutex);
    stats.slots = cache->slot_count;
    stats.experts = cache->expert_count;
    stats.bytes = cache->memory_bytes;
    stats.io = expert_cache_io_name(cache->io);
    return stats;
}

ExpertCache *expert_cache_open(const Checkpoint *checkpoint, const ExpertCacheLayer *layers, int layer_count,
    const ExpertCacheOptions *options, Error *error) {
    ExpertCache *cache = calloc(1, sizeof *cache);
    if (!cache) {
        fail(error, ERROR_MEMORY, "no memory for a table of experts");
        return NULL;
    }
    cache->source = (ExpertProvider){expert_cache_request, expert_cache_acquire, expert_cache_prefetch, stats_of};
    cache->oldest = cache->newest = NONE;
    mutex_init(&cache->user);
    mutex_init(&cache->mutex);
    if (add_layers(cache, checkpoint, layers, layer_count, error) && open_files(cache, checkpoint, options, error) &&
        (!options->trace || (cache->trace = expert_cache_trace_open(options->trace, error))))
        return cache;
    expert_cache_close(cache);
    return NULL;
}

ExpertProvider *expert_cache_source(ExpertCache *cache) { return &cache->source; }
uint64_t expert_cache_bytes(const ExpertCache *cache) {
    return (uint64_t)cache->slot_bytes * (uint64_t)cache->expert_count;
}
uint64_t expert_cache_working_set_bytes(const ExpertCache *cache) {
    return (uint64_t)cache->slot_bytes * (uint64_t)cache->cycle;
}
uint64_t expert_cache_floor_bytes(const ExpertCache *cache) {
    return (uint64_t)cache->slot_bytes * (uint64_t)cache->most_used;
}

/* ---- the cache's memory ---- */

/* Takes the pages from the system ahead of the reads, which would take them one by one in the kernel's own way, three
 * times slower. */
static void *touch(void *argument) {
#ifdef MADV_POPULATE_WRITE
    ExpertCache *cache = argument;
    for (size_t at = 0; at < cache->memory_bytes; at += TOUCH_BYTES) {
        const size_t left = cache->memory_bytes - at;
        mutex_lock(&cache->mutex);
        const bool stop = cache->stop;
        mutex_unlock(&cache->mutex);
        if (stop || madvise(cache->memory + at, left < TOUCH_BYTES ? left : TOUCH_BYTES, MADV_POPULATE_WRITE)) break;
    }
#endif
    return NULL;
}

bool expert_cache_allocate(ExpertCache *cache, uint64_t bytes, Error *error) {
    CHECK(!cache->memory);
    uint64_t count = bytes / cache->slot_bytes;
    if (count > (uint64_t)cache->expert_count) count = (uint64_t)cache->expert_count;
    if (count < (uint64_t)cache->most_used)
        return fail(error, ERROR_MEMORY,
            "%.3f GB for experts is less than the %.3f GB that one layer takes for a token", (double)bytes * 1e-9,
            (double)expert_cache_floor_bytes(cache) * 1e-9);
    cache->slots = calloc(count, sizeof *cache->slots);
    const size_t size = (size_t)count * cache->slot_bytes, room = size + HUGE_PAGE;
    uint8_t *start = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start != MAP_FAILED) {
        const size_t before = -(uintptr_t)start % HUGE_PAGE;
        if (before) munmap(start, before);
        if (before < HUGE_PAGE) munmap(start + before + size, HUGE_PAGE - before);
        cache->memory = start + before;
        cache->memory_bytes = size;
    }
    if (!cache->slots || !cache->memory) return fail(error, ERROR_MEMORY, "no memory for %zu bytes of experts", size);
#ifdef MADV_HUGEPAGE
    (void)madvise(cache->memory, size, MADV_HUGEPAGE); /* a wish */
#endif
    cache->slot_count = (int)count;
    for (int s = 0; s < cache->slot_count; s++) {
        cache->slots[s].expert = NONE;
        expert_cache_link(cache, s);
    }
    expert_cache_trace_begin(
        cache->trace, cache->slot_count, cache->cycle, cache->layer_first, cache->layer_count, cache->expert_count);
    cache->touching = thread_start(&cache->toucher, touch, cache, "apus-experts", NULL); /* it is a help only */
    return true;
}

/* Reads of a step that failed still write into the memory. False: they do not come back. */
static bool drain(ExpertCache *cache) {
    int under_way = cache->reading + cache->lost;
    if (under_way == 0) return true;
    const int64_t end_ns = clock_ns() + CLOSE_MS * INT64_C(1000000);
    expert_cache_io_stop(cache->io);
    while (under_way > 0 && clock_ns() < end_ns) under_way -= expert_cache_io_wait(cache->io, CLOSE_MS) != NULL;
    return under_way == 0;
}

void expert_cache_close(ExpertCache *cache) {
    if (!cache) return;
    mutex_lock(&cache->mutex);
    cache->stop = true;
    mutex_unlock(&cache->mutex);
    if (cache->touching) thread_join(cache->toucher);
    expert_cache_trace_close(cache->trace, cache->stats.hits, cache->stats.misses, cache->stats.evictions);
    if (!drain(cache)) { /* the disk may yet write where they are to go */
        log_error("experts: reads do not come back, and their memory is left to them");
        return;
    }
    expert_cache_io_close(cache->io);
    if (cache->memory) munmap(cache->memory, cache->memory_bytes);
    free(cache->slots);
    mutex_destroy(&cache->user);
    mutex_destroy(&cache->mutex);
    arena_free(&cache->arena);
    free(cache);
}
