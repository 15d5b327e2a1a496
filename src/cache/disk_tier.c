#include "cache/disk_tier.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cache/kv_page.h"

enum {
    QUEUE_BYTES = 128 << 20, /* bytes of pages that wait for the disk */
    BUFFERS_LEAST = 2,       /* buffers at least, with large records */
    LAYOUT_VERSION = 5,      /* version of the bytes of a page and of the keys */
};

struct DiskTier {
    Spill *spill;
    KvCache *kv;
    size_t page_bytes, state_bytes; /* bytes of a record of either kind */
    uint8_t *page, *state;          /* working memory, one record of each */
};

/* ---- opening ---- */

static Spill *open_spill(const DiskTierOptions *options, size_t record_bytes, Error *error) {
    char directory[4096];
    const int version = LAYOUT_VERSION, buffers = (int)(QUEUE_BYTES / record_bytes);
    SpillKey name = spill_key((SpillKey){{0}}, &version, sizeof version);
    name = spill_key(name, options->identity.data, options->identity.size);
    snprintf(directory, sizeof directory, "%s/%016llx", options->directory, (unsigned long long)name.word[0]);
    const SpillOptions spill = {.directory = directory,
        .bytes = options->bytes,
        .record_bytes = record_bytes,
        .buffers = buffers > BUFFERS_LEAST ? buffers : BUFFERS_LEAST,
        .warn = options->warn};
    return spill_open(&spill, error);
}

DiskTier *disk_tier_open(const DiskTierOptions *options, KvCache *kv, Error *error) {
    const size_t page = kv_page_bytes(kv_plan(kv)), state = kv_state_bytes(kv_plan(kv));
    DiskTier *tier = calloc(1, sizeof *tier);
    if (tier) *tier = (DiskTier){.kv = kv, .page_bytes = page, .state_bytes = state, .page = malloc(page + state)};
    if (!tier || !tier->page) {
        fail(error, ERROR_MEMORY, "no memory for a disk cache");
    } else {
        tier->state = tier->page + page;
        tier->spill = open_spill(options, page > state ? page : state, error);
        if (tier->spill) return tier;
    }
    disk_tier_close(tier);
    return NULL;
}

void disk_tier_close(DiskTier *tier) {
    if (!tier) return;
    spill_close(tier->spill);
    free(tier->page);
    free(tier);
}

SpillStats disk_tier_stats(const DiskTier *tier) { return tier ? spill_stats(tier->spill) : (SpillStats){0}; }

/* ---- keys ---- */

int disk_tier_position(const KvSequence *sequence) { return sequence->tail_pages * KV_PAGE_TOKENS; }

static SpillKey first_key(const SequenceText *text) {
    const KvFormat full = {.k = KV_FULL}; /* whose lengths do not matter */
    const SpillKey key = spill_key((SpillKey){{0}}, &text->salt, sizeof text->salt);
    return spill_key(key, text->format->k == KV_FULL ? &full : text->format, sizeof full);
}

/* The key of the page behind those that a running key of so many pages stands for. */
static SpillKey next_key(const SequenceText *text, SpillKey key, int pages) {
    const int position = pages * KV_PAGE_TOKENS;
    CHECK(text->first <= position);
    if (pages == 0) key = first_key(text);
    return spill_key(key, text->ids + (position - text->first), KV_PAGE_TOKENS * sizeof *text->ids);
}

/* The key of the state at the end of a page. */
static SpillKey state_key(SpillKey page) { return spill_key(page, "state", sizeof "state"); }

/* ---- writing ---- */

static void put(DiskTier *tier, SpillKey key, size_t size, bool (*read)(const DiskTier *, const KvSequence *, void *),
    const KvSequence *sequence) {
    if (spill_find(tier->spill, key)) return;
    void *buffer = spill_buffer(tier->spill);
    if (!buffer) return;
    if (read(tier, sequence, buffer))
        spill_put(tier->spill, key, buffer, size);
    else
        spill_cancel(tier->spill, buffer);
}

/* The page behind the running key. */
static bool read_page(const DiskTier *tier, const KvSequence *sequence, void *out) {
    return kv_page_read(tier->kv, sequence, sequence->tail_pages, out);
}

static bool read_state(const DiskTier *tier, const KvSequence *sequence, void *out) {
    return kv_state_read(tier->kv, sequence, out);
}

void disk_tier_put(DiskTier *tier, const SequenceText *text, KvSequence *sequence, int end) {
    while (sequence->tail_pages < end / KV_PAGE_TOKENS) {
        const SpillKey key = next_key(text, sequence->tail_key, sequence->tail_pages);
        if (sequence->tail_pages >= sequence->length / KV_PAGE_TOKENS)
            put(tier, key, tier->page_bytes, read_page, sequence);
        sequence->tail_key = key;
        sequence->tail_pages++;
    }
}

void disk_tier_put_state(DiskTier *tier, const KvSequence *sequence) {
    const bool whole = sequence->length > 0 && sequence->length == disk_tier_position(sequence);
    if (whole && tier->state_bytes) put(tier, state_key(sequence->tail_key), tier->state_bytes, read_state, sequence);
}

/* ---- reading ---- */

/* Pages up to the next one from which a sequence can go on: the next page, with recurrent entries the next one that has
 * its state. 0: the pages that are there do not reach one. */
static int next_stop(const DiskTier *tier, const SequenceText *text, int count, const KvSequence *sequence) {
    SpillKey key = sequence->tail_key;
    for (int pages = sequence->tail_pages; pages < count / KV_PAGE_TOKENS; pages++) {
        key = next_key(text, key, pages);
        if (spill_find(tier->spill, key) != tier->page_bytes) return 0;
        if (!tier->state_bytes || spill_find(tier->spill, state_key(key)) == tier->state_bytes) return pages + 1;
    }
    return 0;
}

static bool get_page(DiskTier *tier, const SequenceText *text, int stop, KvSequence *sequence) {
    Error error;
    const SpillKey key = next_key(text, sequence->tail_key, sequence->tail_pages);
    const bool state = tier->state_bytes && sequence->tail_pages + 1 == stop;
    if (!spill_get(tier->spill, key, tier->page, tier->page_bytes) ||
        (state && !spill_get(tier->spill, state_key(key), tier->state, tier->state_bytes)) ||
        !kv_page_write(tier->kv, sequence, tier->page, state ? tier->state : NULL, &error))
        return false;
    sequence->tail_key = key;
    sequence->tail_pages++;
    return true;
}

/* False: the sequence is as it was or, where its recurrent pages were lost on the way, empty. */
static bool get_pages(DiskTier *tier, const SequenceText *text, int stop, KvSequence *sequence) {
    const int length = sequence->length;
    while (sequence->tail_pages < stop) {
        if (get_page(tier, text, stop, sequence)) continue;
        if (sequence->length > length && !kv_truncate(tier->kv, sequence, length))
            CHECK(kv_truncate(tier->kv, sequence, 0));
        return false;
    }
    return true;
}

bool disk_tier_find(DiskTier *tier, const SequenceText *text, int count, int64_t deadline_ns, KvSequence *sequence) {
    while (sequence->tail_pages < sequence->length / KV_PAGE_TOKENS) { /* pages of the prefix cache */
        sequence->tail_key = next_key(text, sequence->tail_key, sequence->tail_pages);
        sequence->tail_pages++;
    }
    int stop = next_stop(tier, text, count, sequence);
    while (stop > 0 && get_pages(tier, text, stop, sequence)) {
        stop = next_stop(tier, text, count, sequence);
        if (stop > 0 && clock_ns() >= deadline_ns) return true;
    }
    return false;
}
