#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/log.h"
#include "weights/bank_internal.h"

enum {
    HUGE_PAGE = 2 << 20,
    TOUCH_BYTES = 32 << 20,
    DEPTH = 32,      /* reads under way: some drives need as many, and none is slower */
    CLOSE_MS = 5000, /* that reads are waited for at the end */
};

/* ---- where experts lie ---- */

static bool add_part(ExpertBank *bank, const Checkpoint *c, BankExpert *e, const void **address, size_t bytes,
    size_t *at, Error *error) {
    if (!*address) return true;
    const uintptr_t from = (uintptr_t)*address;
    for (int f = 0; f < c->file_count; f++) {
        const uintptr_t start = (uintptr_t)c->files[f].data;
        if (from < start || from - start > c->files[f].size || bytes > c->files[f].size - (from - start)) continue;
        const uint64_t offset = from - start, first = offset / BANK_ALIGN * BANK_ALIGN;
        const uint64_t end = (offset + bytes + BANK_ALIGN - 1) / BANK_ALIGN * BANK_ALIGN;
        e->part[e->part_count++] = (BankPart){.offset = offset, .bytes = bytes, .at = *at, .file = f};
        *at += (size_t)(end - first);
        *address = (const void *)(uintptr_t)e->part_count;
        return true;
    }
    return fail(error, ERROR_FORMAT, "an expert's matrix lies in no file");
}

static bool add_expert(
    ExpertBank *bank, const Checkpoint *c, const BankLayer *layer, int i, BankExpert *e, Error *error) {
    size_t at = 0;
    e->slot = NONE;
    for (int m = 0; m < BANK_MATRICES; m++) {
        Weight *w = &e->matrix[m];
        *w = layer->matrices[m][i];
        const size_t rows = (size_t)w->rows;
        if (!add_part(bank, c, e, &w->data, weight_row_bytes(w) * rows, &at, error) ||
            !add_part(bank, c, e, &w->scales, weight_scale_bytes(w) * rows, &at, error) ||
            !add_part(bank, c, e, &w->biases, weight_scale_bytes(w) * rows, &at, error))
            return false;
    }
    if (at > bank->slot_bytes) bank->slot_bytes = at;
    return true;
}

static bool add_layers(ExpertBank *bank, const Checkpoint *c, const BankLayer *layers, int layer_count, Error *error) {
    for (int l = 0; l < layer_count; l++) bank->expert_count += layers[l].count;
    bank->layer_count = layer_count;
    bank->layer_first = arena_alloc(&bank->arena, (size_t)layer_count, sizeof *bank->layer_first);
    bank->experts = arena_alloc(&bank->arena, (size_t)bank->expert_count, sizeof *bank->experts);
    bank->displaced = arena_alloc(&bank->arena, (size_t)bank->expert_count, sizeof *bank->displaced);
    bank->uses = arena_alloc(&bank->arena, (size_t)bank->expert_count, sizeof *bank->uses);
    bool ok = bank->layer_first && bank->experts && bank->displaced && bank->uses;
    for (int i = 0; ok && i < SOURCE_LANES; i++)
        ok = (bank->lanes[i].wanted = arena_alloc(&bank->arena, (size_t)bank->expert_count, sizeof(int))) != NULL;
    if (!ok) return fail(error, ERROR_MEMORY, "no memory for a table of experts");
    int first = 0;
    for (int l = 0; l < layer_count; l++) {
        bank->layer_first[l] = first;
        bank->cycle += layers[l].used;
        bank->most_used = layers[l].used > bank->most_used ? layers[l].used : bank->most_used;
        for (int i = 0; i < layers[l].count; i++)
            if (!add_expert(bank, c, &layers[l], i, &bank->experts[first + i], error)) return false;
        first += layers[l].count;
    }
    bank->cycle_now = bank->cycle;
    return true;
}

static bool open_files(ExpertBank *bank, const Checkpoint *c, const BankOptions *options, Error *error) {
    bank->paths = arena_alloc(&bank->arena, (size_t)c->file_count, sizeof *bank->paths);
    bool ok = bank->paths;
    for (int f = 0; ok && f < c->file_count; f++)
        ok = (bank->paths[f] = arena_copy(&bank->arena, slice_of(c->paths[f]))) != NULL;
    if (!ok) return fail(error, ERROR_MEMORY, "no memory for a table of experts");
    const int depth = options->depth > 0 ? options->depth : DEPTH;
    bank->io = bank_io_open(options->io, bank->paths, c->file_count, depth, options->faults, error);
    if (!bank->io) return false;
    if ((options->buffered || options->cached) && !bank_io_buffer(bank->io, options->cached))
        return fail(error, ERROR_IO, "cannot read experts through the page cache");
    for (int f = 0; f < c->file_count; f++)
        if (bank_io_size(bank->io, f) != c->files[f].size)
            return fail(error, ERROR_IO, "%s has %zu bytes by now, and had %zu", bank->paths[f],
                bank_io_size(bank->io, f), c->files[f].size);
    /* What was read to load the model, and around it, is in memory of its own by now: it is not held twice. */
    for (int f = 0; f < c->file_count; f++)
        (void)madvise((void *)(uintptr_t)c->files[f].data, c->files[f].size, MADV_DONTNEED);
    bank_io_forget(bank->io);
    return true;
}

static SourceStats stats_of(ExpertSource *source) {
    ExpertBank *bank = bank_of(source);
    mutex_lock(&bank->mutex);
    SourceStats stats = bank->stats;
    mutex_unlock(&bank->mutex);
    stats.slots = bank->slot_count;
    stats.experts = bank->expert_count;
    stats.bytes = bank->memory_bytes;
    stats.io = bank_io_name(bank->io);
    return stats;
}

ExpertBank *bank_open(
    const Checkpoint *checkpoint, const BankLayer *layers, int layer_count, const BankOptions *options, Error *error) {
    ExpertBank *bank = calloc(1, sizeof *bank);
    if (!bank) {
        fail(error, ERROR_MEMORY, "no memory for a table of experts");
        return NULL;
    }
    bank->source = (ExpertSource){bank_want, bank_take, bank_hint, stats_of};
    const int silence_ms = options->faults ? options->faults->silence_ms : 0;
    bank->silence_ms = silence_ms ? silence_ms : BANK_SILENCE_MS;
    bank->oldest = bank->newest = NONE;
    mutex_init(&bank->user);
    mutex_init(&bank->mutex);
    if (add_layers(bank, checkpoint, layers, layer_count, error) && open_files(bank, checkpoint, options, error) &&
        (!options->trace || (bank->trace = bank_trace_open(options->trace, error))))
        return bank;
    bank_close(bank);
    return NULL;
}

ExpertSource *bank_source(ExpertBank *bank) { return &bank->source; }
uint64_t bank_bytes(const ExpertBank *bank) { return (uint64_t)bank->slot_bytes * (uint64_t)bank->expert_count; }
uint64_t bank_cycle_bytes(const ExpertBank *bank) { return (uint64_t)bank->slot_bytes * (uint64_t)bank->cycle; }
uint64_t bank_floor_bytes(const ExpertBank *bank) { return (uint64_t)bank->slot_bytes * (uint64_t)bank->most_used; }

/* ---- the cache's memory ---- */

/* Takes the pages from the system ahead of the reads, which would take them one by one in the kernel's own way, three
 * times slower. */
static void *touch(void *argument) {
    ExpertBank *bank = argument;
#ifdef MADV_POPULATE_WRITE
    for (size_t at = 0; at < bank->memory_bytes; at += TOUCH_BYTES) {
        const size_t left = bank->memory_bytes - at;
        mutex_lock(&bank->mutex);
        const bool stop = bank->stop;
        mutex_unlock(&bank->mutex);
        if (stop || madvise(bank->memory + at, left < TOUCH_BYTES ? left : TOUCH_BYTES, MADV_POPULATE_WRITE)) break;
    }
#endif
    return NULL;
}

bool bank_allocate(ExpertBank *bank, uint64_t bytes, Error *error) {
    CHECK(!bank->memory);
    uint64_t count = bytes / bank->slot_bytes;
    if (count > (uint64_t)bank->expert_count) count = (uint64_t)bank->expert_count;
    if (count < (uint64_t)bank->most_used)
        return fail(error, ERROR_MEMORY,
            "%.3f GB for experts is less than the %.3f GB that one layer takes for a token", (double)bytes * 1e-9,
            (double)bank_floor_bytes(bank) * 1e-9);
    bank->slots = calloc(count, sizeof *bank->slots);
    const size_t size = (size_t)count * bank->slot_bytes, room = size + HUGE_PAGE;
    uint8_t *start = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start != MAP_FAILED) {
        const size_t before = -(uintptr_t)start % HUGE_PAGE;
        if (before) munmap(start, before);
        if (before < HUGE_PAGE) munmap(start + before + size, HUGE_PAGE - before);
        bank->memory = start + before;
        bank->memory_bytes = size;
    }
    if (!bank->slots || !bank->memory) return fail(error, ERROR_MEMORY, "no memory for %zu bytes of experts", size);
#ifdef MADV_HUGEPAGE
    (void)madvise(bank->memory, size, MADV_HUGEPAGE); /* a wish */
#endif
    bank->slot_count = (int)count;
    for (int s = 0; s < bank->slot_count; s++) {
        bank->slots[s].expert = NONE;
        bank_link(bank, s);
    }
    bank_trace_begin(
        bank->trace, bank->slot_count, bank->cycle, bank->layer_first, bank->layer_count, bank->expert_count);
    bank->touching = thread_start(&bank->toucher, touch, bank, "apus-experts", NULL); /* it is a help only */
    return true;
}

/* Reads of a step that failed still write into the memory. False: they do not come back. */
static bool drain(ExpertBank *bank) {
    int under_way = bank->reading + bank->lost;
    if (under_way == 0) return true;
    const int64_t end_ns = clock_ns() + CLOSE_MS * INT64_C(1000000);
    bank_io_stop(bank->io);
    while (under_way > 0 && clock_ns() < end_ns) under_way -= bank_io_wait(bank->io, CLOSE_MS) != NULL;
    return under_way == 0;
}

void bank_close(ExpertBank *bank) {
    if (!bank) return;
    mutex_lock(&bank->mutex);
    bank->stop = true;
    mutex_unlock(&bank->mutex);
    if (bank->touching) thread_join(bank->toucher);
    bank_trace_close(bank->trace, bank->stats.hits, bank->stats.misses, bank->stats.evictions);
    if (!drain(bank)) { /* the disk may yet write where they are to go */
        log_error("experts: reads do not come back, and their memory is left to them");
        return;
    }
    bank_io_close(bank->io);
    if (bank->memory) munmap(bank->memory, bank->memory_bytes);
    free(bank->slots);
    mutex_destroy(&bank->user);
    mutex_destroy(&bank->mutex);
    arena_free(&bank->arena);
    free(bank);
}
