/* Requests of a step: lookup, reads, eviction. */
#include <string.h>

#include "base/clock.h"
#include "weights/expert_cache_internal.h"

enum {
    LOOK_MS = 20,      /* interval at which a waiting thread asks whether the step was cancelled */
    USE = 256,         /* use count per request of an expert */
    AGE_STEPS = 32,    /* requests per layer after which use counts are halved */
    HINT_WINDOW = 64,  /* prefetches per evaluation window */
    HINT_PAUSE = 4096, /* requests without prefetches after a useless window */
};
/* Part of the hints that must have been right. One that was not costs the time of a read, and sometimes another one for
 * what made room; one that was right displaced no more than its read would have done later. */
static const double HINTS_RIGHT = 0.6;

/* ---- the order of use ---- */

static void unlink_slot(ExpertCache *cache, int s) {
    const ExpertCacheSlot *slot = &cache->slots[s];
    if (slot->older == NONE)
        cache->oldest = slot->newer;
    else
        cache->slots[slot->older].newer = slot->newer;
    if (slot->newer == NONE)
        cache->newest = slot->older;
    else
        cache->slots[slot->newer].older = slot->older;
}

void expert_cache_link(ExpertCache *cache, int s) {
    ExpertCacheSlot *slot = &cache->slots[s];
    slot->older = cache->newest;
    slot->newer = NONE;
    if (cache->newest == NONE)
        cache->oldest = s;
    else
        cache->slots[cache->newest].newer = s;
    cache->newest = s;
}

void expert_cache_use(ExpertCache *cache, int s) {
    unlink_slot(cache, s);
    expert_cache_link(cache, s);
}

/* ---- reading ---- */

static uint8_t lane_bit(int micro_batch) { return (uint8_t)(1 << micro_batch); }

/* One more read under way, or one less. */
static void count_reading(ExpertCache *cache, int change, size_t bytes) {
    mutex_lock(&cache->mutex);
    const int64_t now = clock_ns();
    if (cache->reading == 0) cache->reading_since_ns = now;
    cache->reading += change;
    cache->stats.read_bytes += bytes;
    if (cache->reading == 0) cache->stats.read_s += (double)(now - cache->reading_since_ns) * 1e-9;
    mutex_unlock(&cache->mutex);
}

static uint8_t *slot_memory(const ExpertCache *cache, int s) { return cache->memory + (size_t)s * cache->slot_bytes; }

/* Assigns a slot to an expert and evicts the previous one. micro_batch −1: a prefetch. */
static void begin_reading(ExpertCache *cache, int micro_batch, int s, int expert) {
    ExpertCacheSlot *slot = &cache->slots[s];
    ExpertCacheExpert *e = &cache->experts[expert];
    if (slot->expert != NONE) {
        cache->experts[slot->expert].slot = NONE;
        cache->displaced[slot->expert] = micro_batch < 0;
        mutex_lock(&cache->mutex);
        cache->stats.evictions++;
        mutex_unlock(&cache->mutex);
    }
    e->slot = s;
    slot->expert = expert;
    slot->state = SLOT_LOADING;
    slot->wanted = micro_batch < 0 ? 0 : lane_bit(micro_batch);
    slot->guessed = slot->unused = micro_batch < 0;
    slot->error = 0;
    slot->request = cache->wants;
    slot->parts_left = e->part_count;
    for (int i = 0; i < e->part_count; i++) {
        const ExpertCachePart *part = &e->part[i];
        const uint64_t first = part->offset / EXPERT_CACHE_ALIGN * EXPERT_CACHE_ALIGN, end = part->offset + part->bytes;
        slot->reads[i] = (ExpertCacheRead){.file = part->file,
            .offset = first,
            .size = (size_t)((end + EXPERT_CACHE_ALIGN - 1) / EXPERT_CACHE_ALIGN * EXPERT_CACHE_ALIGN - first),
            .need = (size_t)(end - first),
            .to = slot_memory(cache, s) + part->at,
            .owner = s};
        count_reading(cache, 1, 0);
        expert_cache_io_submit(cache->io, &slot->reads[i]);
    }
}

static void note_failure(ExpertCache *cache, const ExpertCacheSlot *slot) {
    const char *path = cache->paths[slot->error_file];
    if (slot->error == EXPERT_CACHE_SHORT)
        fail(&cache->error, ERROR_IO, "%s became shorter while it was in use", path);
    else
        fail(&cache->error, ERROR_IO, "cannot read an expert from %s: %s", path, strerror(slot->error));
    cache->failed = true;
}

static void empty_slot(ExpertCache *cache, ExpertCacheSlot *slot, SlotState state) {
    if (slot->expert != NONE) cache->experts[slot->expert].slot = NONE;
    slot->expert = NONE;
    slot->state = state;
    slot->wanted = 0;
}

static void finish_read(ExpertCache *cache, const ExpertCacheRead *read) {
    ExpertCacheSlot *slot = &cache->slots[read->owner];
    if (slot->state == SLOT_LOST) {
        cache->lost--;
        if (--slot->parts_left == 0) slot->state = SLOT_EMPTY;
        return;
    }
    count_reading(cache, -1, read->size);
    cache->unchecked = true;
    if (read->error) {
        slot->error = read->error;
        slot->error_file = read->file;
    }
    if (--slot->parts_left > 0) return;
    slot->state = SLOT_READY;
    if (!slot->error) return;
    for (int i = 0; i < PROVIDER_MICRO_BATCHES; i++) {
        ExpertCacheLane *micro_batch = &cache->micro_batches[i];
        if (!(slot->wanted & lane_bit(i))) continue;
        if (slot->guessed || slot->request <= cache->step_first)
            micro_batch->queued++; /* an earlier step failed over it, or a hint: this one asks again */
        else
            note_failure(cache, slot);
    }
    empty_slot(cache, slot, SLOT_EMPTY);
}

static void finish_reads(ExpertCache *cache) {
    for (const ExpertCacheRead *read; (read = expert_cache_io_wait(cache->io, 0));) finish_read(cache, read);
}

/* The disk is silent: what is under way counts as lost, so that those who come next may ask again. */
static void lose_reads(ExpertCache *cache) {
    int lost = 0;
    const char *path = cache->paths[0];
    for (int s = 0; s < cache->slot_count; s++) {
        ExpertCacheSlot *slot = &cache->slots[s];
        if (slot->state != SLOT_LOADING) continue;
        path = cache->paths[slot->reads[0].file];
        lost += slot->parts_left;
        empty_slot(cache, slot, SLOT_LOST);
    }
    cache->lost += lost;
    count_reading(cache, -lost, 0);
    fail(&cache->error, ERROR_IO, "cannot read an expert from %s: no answer for %.1f s", path,
        (double)cache->silence_ms * 1e-3);
    cache->failed = true;
}

static void wait_for_read(ExpertCache *cache) {
    const int64_t start = clock_ns(), silent_ns = start + cache->silence_ms * INT64_C(1000000);
    const ExpertCacheRead *read = NULL;
    while (!read && !cache->failed) {
        if (cache->given_up && cache->given_up(cache->watcher)) {
            fail(&cache->error, ERROR_CANCELLED, "all requests of this step were cancelled");
            cache->failed = true;
        } else if (!(read = expert_cache_io_wait(cache->io, LOOK_MS)) && clock_ns() > silent_ns) {
            lose_reads(cache);
        }
    }
    if (read) finish_read(cache, read);
    mutex_lock(&cache->mutex);
    cache->stats.stall_s += (double)(clock_ns() - start) * 1e-9;
    mutex_unlock(&cache->mutex);
}

/* ---- what makes room ---- */

static bool is_free(const ExpertCacheSlot *slot) {
    return !slot->wanted && (slot->state == SLOT_EMPTY || slot->state == SLOT_READY);
}

/* If a micro-batch requests more experts than there are slots, its own experts are evicted in the order of their use
 * instead of the order of their arrival: the hit rate then does not depend on disk timing. */
static int oldest_free(const ExpertCache *cache, const ExpertCacheLane *micro_batch) {
    const bool crowded = micro_batch->wanted_count > cache->slot_count;
    for (int s = cache->oldest; s != NONE; s = cache->slots[s].newer) {
        if (is_free(&cache->slots[s])) return s;
        if (crowded && cache->slots[s].state != SLOT_LOST) return NONE;
    }
    return NONE;
}

/* Where the oldest would be wanted before all others: an empty slot, or of other layers than the step is at what was
 * wanted least often. Of several the newest: the oldest of those would again be wanted before all others. */
static int rarest_elsewhere(const ExpertCache *cache, const ExpertCacheLane *micro_batch) {
    int rarest = NONE;
    for (int s = cache->oldest; s != NONE; s = cache->slots[s].newer) {
        const ExpertCacheSlot *slot = &cache->slots[s];
        if (!is_free(slot)) continue;
        if (slot->state == SLOT_EMPTY) return s;
        if (slot->expert >= micro_batch->here && slot->expert < micro_batch->here_end) continue;
        if (rarest == NONE || cache->uses[slot->expert] <= cache->uses[cache->slots[rarest].expert]) rarest = s;
    }
    return rarest;
}

static int next_victim(const ExpertCache *cache, const ExpertCacheLane *micro_batch) {
    const int s = cache->slot_count < cache->cycle_now ? rarest_elsewhere(cache, micro_batch) : NONE;
    return s == NONE ? oldest_free(cache, micro_batch) : s;
}

/* What was wanted long ago counts less and less. */
static void age_uses(ExpertCache *cache) {
    if (cache->wants % ((uint64_t)AGE_STEPS * (uint64_t)cache->layer_count)) return;
    for (int e = 0; e < cache->expert_count; e++) cache->uses[e] /= 2;
}

/* Begins to read what is wanted and not there, as far as there are slots for it. */
static void start_queued(ExpertCache *cache, int l) {
    ExpertCacheLane *micro_batch = &cache->micro_batches[l];
    for (int i = micro_batch->given_first; micro_batch->queued > 0 && i < micro_batch->wanted_count; i++) {
        if (cache->experts[micro_batch->wanted[i]].slot != NONE) continue;
        const int s = next_victim(cache, micro_batch);
        if (s == NONE) break;
        begin_reading(cache, l, s, micro_batch->wanted[i]);
        expert_cache_use(cache, s);
        micro_batch->queued--;
    }
    finish_reads(cache);
}

/* ---- the source ---- */

/* A requested expert is in a slot, perhaps since a prefetch. */
static void use_found(ExpertCache *cache, int micro_batch, int s, uint64_t *prefetch_hits) {
    ExpertCacheSlot *slot = &cache->slots[s];
    slot->wanted |= lane_bit(micro_batch);
    *prefetch_hits += slot->unused;
    slot->unused = false;
    expert_cache_use(cache, s);
}

void expert_cache_request(ExpertProvider *source, int l, int layer, const int32_t *experts, int count) {
    ExpertCache *cache = expert_cache_of(source);
    ExpertCacheLane *micro_batch = &cache->micro_batches[l];
    CHECK(cache->memory && layer < cache->layer_count && micro_batch->given_first == micro_batch->wanted_count);
    uint64_t prefetch_hits = 0, prefetch_losses = 0;
    cache->hinted_count = 0; /* too late by now */
    cache->wants++;
    age_uses(cache);
    micro_batch->here = cache->layer_first[layer];
    micro_batch->here_end = layer + 1 < cache->layer_count ? cache->layer_first[layer + 1] : cache->expert_count;
    micro_batch->wanted_count = count;
    micro_batch->given_first = micro_batch->given_count = micro_batch->queued = 0;
    finish_reads(cache);
    expert_cache_trace_request(cache->trace, false, layer, experts, count);
    for (int i = 0; i < count; i++) {
        const int expert = micro_batch->wanted[i] = micro_batch->here + experts[i], s = cache->experts[expert].slot;
        prefetch_losses += s == NONE && cache->displaced[expert];
        cache->displaced[expert] = false;
        cache->uses[expert] += USE;
        cache->step_wanted += s == NONE || !cache->slots[s].wanted; /* by the other micro-batch */
        if (s == NONE)
            micro_batch->queued++;
        else
            use_found(cache, l, s, &prefetch_hits);
    }
    mutex_lock(&cache->mutex);
    cache->stats.misses += (uint64_t)micro_batch->queued;
    cache->stats.missing += micro_batch->queued > 0;
    cache->stats.hits += (uint64_t)(count - micro_batch->queued);
    cache->stats.prefetch_hits += prefetch_hits;
    cache->stats.prefetch_losses += prefetch_losses;
    mutex_unlock(&cache->mutex);
    if (!cache->failed) start_queued(cache, l); /* else this layer's are not used either */
}

/* Hints have to be worth it. */
static bool hints_pay(ExpertCache *cache) {
    if (cache->wants < cache->hint_pause) return false;
    const ExpertProviderStats *then = &cache->hint_window, *now = &cache->stats;
    const uint64_t prefetches = now->prefetches - then->prefetches;
    if (prefetches < HINT_WINDOW) return true;
    const double right = (double)(now->prefetch_hits - then->prefetch_hits);
    cache->hint_window = *now;
    if (right >= HINTS_RIGHT * (double)prefetches) return true;
    cache->hint_pause = cache->wants + HINT_PAUSE;
    return false;
}

/* Prefetch reads run only when no requested read is in flight: at once, or when the last requested read completes. A
 * layer with queued requests in a micro-batch has more requested reads to come. */
static void begin_hints(ExpertCache *cache) {
    if (cache->hinted_count == 0 || cache->failed || cache->reading > 0) return;
    for (int i = 0; i < PROVIDER_MICRO_BATCHES; i++)
        if (cache->micro_batches[i].queued > 0) return;
    int begun = 0;
    for (int i = 0; i < cache->hinted_count; i++) {
        const int s = cache->oldest, expert = cache->layer_first[cache->hinted_layer] + cache->hinted[i];
        if (!is_free(&cache->slots[s])) break;
        expert_cache_trace_request(cache->trace, true, cache->hinted_layer, &cache->hinted[i], 1);
        begin_reading(cache, -1, s, expert);
        expert_cache_use(cache, s);
        begun++;
    }
    cache->hinted_count = 0;
    finish_reads(cache);
    mutex_lock(&cache->mutex);
    cache->stats.prefetches += (uint64_t)begun;
    mutex_unlock(&cache->mutex);
}

/* Not where hardly anything stays. */
void expert_cache_prefetch(ExpertProvider *source, int layer, const int32_t *experts, int count) {
    ExpertCache *cache = expert_cache_of(source);
    const int here = cache->layer_first[layer];
    finish_reads(cache);
    cache->hinted_count = 0;
    if (cache->slot_count < cache->cycle_now || !hints_pay(cache)) return;
    cache->hinted_layer = layer;
    for (int i = 0; i < count && cache->hinted_count < PREFETCH_EXPERTS_MAX; i++)
        if (cache->experts[here + experts[i]].slot == NONE) cache->hinted[cache->hinted_count++] = experts[i];
    begin_hints(cache);
}

static const void *address(const ExpertCache *cache, const ExpertCacheExpert *e, const void *number) {
    if (!number) return NULL;
    const ExpertCachePart *part = &e->part[(uintptr_t)number - 1];
    return slot_memory(cache, e->slot) + part->at + part->offset % EXPERT_CACHE_ALIGN;
}

static Weight matrix_of(const ExpertCache *cache, const ExpertCacheExpert *e, int m) {
    Weight w = e->matrix[m];
    w.data = address(cache, e, w.data);
    w.scales = address(cache, e, w.scales);
    w.biases = address(cache, e, w.biases);
    return w;
}

static ExpertCacheSlot *slot_of(ExpertCache *cache, const ExpertCacheLane *micro_batch, int i) {
    const int s = cache->experts[micro_batch->wanted[i]].slot;
    return s == NONE ? NULL : &cache->slots[s];
}

static void give_up(ExpertCache *cache, int l) {
    ExpertCacheLane *micro_batch = &cache->micro_batches[l];
    for (int i = 0; i < micro_batch->given_count; i++)
        slot_of(cache, micro_batch, micro_batch->given_first + i)->wanted &= (uint8_t)~lane_bit(l);
    micro_batch->given_first += micro_batch->given_count;
    micro_batch->given_count = 0;
}

/* The step ends without what is still wanted. */
static void abandon(ExpertCache *cache, int l) {
    ExpertCacheLane *micro_batch = &cache->micro_batches[l];
    for (int i = micro_batch->given_first; i < micro_batch->wanted_count; i++) {
        ExpertCacheSlot *slot = slot_of(cache, micro_batch, i);
        if (slot) slot->wanted &= (uint8_t)~lane_bit(l);
    }
    micro_batch->given_first = micro_batch->wanted_count;
}

/* Those that are there come to the front of what is wanted. */
static int collect(ExpertCache *cache, ExpertCacheLane *micro_batch, int most, ProvidedExpert *out) {
    for (int i = micro_batch->given_first; i < micro_batch->wanted_count && micro_batch->given_count < most; i++) {
        const int expert = micro_batch->wanted[i];
        const ExpertCacheExpert *e = &cache->experts[expert];
        if (e->slot == NONE || cache->slots[e->slot].state != SLOT_READY) continue;
        const int place = micro_batch->given_first + micro_batch->given_count;
        micro_batch->wanted[i] = micro_batch->wanted[place];
        micro_batch->wanted[place] = expert;
        out[micro_batch->given_count++] = (ProvidedExpert){
            expert - micro_batch->here, matrix_of(cache, e, 0), matrix_of(cache, e, 1), matrix_of(cache, e, 2)};
    }
    return micro_batch->given_count;
}

int expert_cache_acquire(ExpertProvider *source, int l, int most, ProvidedExpert *out) {
    ExpertCache *cache = expert_cache_of(source);
    ExpertCacheLane *micro_batch = &cache->micro_batches[l];
    give_up(cache, l);
    while (!cache->failed && micro_batch->given_first < micro_batch->wanted_count) {
        start_queued(cache, l);
        if (cache->failed) break;
        if (collect(cache, micro_batch, most, out)) {
            begin_hints(cache);
            return micro_batch->given_count;
        }
        /* Not when the last one under way was an earlier step's that failed, and is to be asked for again. */
        if (cache->reading > 0 || micro_batch->queued == 0 || next_victim(cache, micro_batch) == NONE)
            wait_for_read(cache);
    }
    abandon(cache, l);
    return 0;
}

void expert_cache_watch(ExpertCache *cache, bool (*given_up)(void *context), void *context) {
    cache->given_up = given_up;
    cache->watcher = context;
}

/* What was read since the files were looked at may be of other files by now. */
static void forget_unchecked(ExpertCache *cache) {
    for (int s = 0; s < cache->slot_count; s++) {
        ExpertCacheSlot *slot = &cache->slots[s];
        if (slot->state == SLOT_READY && slot->request > cache->wants_checked) empty_slot(cache, slot, SLOT_EMPTY);
    }
}

static void check_files(ExpertCache *cache) {
    Error why = {0};
    if (expert_cache_io_check(cache->io, &why)) {
        cache->unchecked = false;
        if (cache->reading == 0) cache->wants_checked = cache->wants;
        return;
    }
    forget_unchecked(cache);
    if (!cache->failed) cache->error = why;
    cache->failed = true;
}

void expert_cache_begin(ExpertCache *cache) {
    mutex_lock(&cache->user);
    cache->step_first = cache->wants;
    const int cycle = cache->step_wanted > cache->cycle ? cache->step_wanted : cache->cycle;
    if (cycle != cache->cycle_now) expert_cache_trace_working_set(cache->trace, cycle);
    cache->cycle_now = cycle;
    cache->step_wanted = 0;
}

bool expert_cache_micro_batches_fit(const ExpertCache *cache, int rows) {
    return rows * cache->most_used <= cache->slot_count && cache->slot_count >= cache->cycle_now;
}

bool expert_cache_end(ExpertCache *cache, Error *error) {
    if (cache->unchecked) check_files(cache);
    const bool ok = !cache->failed;
    if (!ok && error) *error = cache->error;
    cache->failed = false;
    mutex_unlock(&cache->user);
    return ok;
}
