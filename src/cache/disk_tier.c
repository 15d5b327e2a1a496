#include "cache/disk_tier.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/math.h"
#include "cache/kv_page.h"

enum {
    QUEUE_BYTES = 128 << 20, /* bytes of pages that wait for the disk */
    BUFFERS_LEAST = 2,       /* buffers at least, with large records */
    LAYOUT_VERSION = 6,      /* version of the bytes of a page and of the keys */
};

struct DiskTier {
    Spill *spill;
    KvCache *kv;
    size_t page_bytes; /* bytes of a page's record */
    uint8_t *record;   /* working memory for one record */
    SpillKey *keys;    /* [pages of a context] working memory: those of a text */
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
    const size_t page = kv_page_bytes(kv_plan(kv)), state = kv_state_bytes_most(kv_plan(kv));
    const size_t record = page > state ? page : state;
    DiskTier *tier = calloc(1, sizeof *tier);
    if (tier) {
        *tier = (DiskTier){.kv = kv, .page_bytes = page, .record = malloc(record)};
        tier->keys = malloc(((size_t)kv_plan(kv)->context / KV_PAGE_TOKENS + 1) * sizeof *tier->keys);
    }
    if (!tier || !tier->record || !tier->keys) {
        fail(error, ERROR_MEMORY, "no memory for a disk cache");
    } else {
        tier->spill = open_spill(options, record, error);
        if (tier->spill) return tier;
    }
    disk_tier_close(tier);
    return NULL;
}

void disk_tier_close(DiskTier *tier) {
    if (!tier) return;
    spill_close(tier->spill);
    free(tier->record);
    free(tier->keys);
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

/* The key of the state at a length that lies so many positions, fewer than a page, behind these pages. */
static SpillKey state_key(const SequenceText *text, SpillKey key, int pages, int behind) {
    if (pages == 0) key = first_key(text);
    if (behind > 0)
        key = spill_key(key, text->ids + (pages * KV_PAGE_TOKENS - text->first), (size_t)behind * sizeof *text->ids);
    return spill_key(key, "state", sizeof "state");
}

/* Extends the running key over pages that the sequence has from elsewhere. */
static void catch_up(const SequenceText *text, KvSequence *sequence) {
    for (; sequence->tail_pages < sequence->length / KV_PAGE_TOKENS; sequence->tail_pages++)
        sequence->tail_key = next_key(text, sequence->tail_key, sequence->tail_pages);
}

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

void disk_tier_put_state(DiskTier *tier, const SequenceText *text, KvSequence *sequence) {
    const int length = sequence->length;
    const size_t bytes = length > 0 ? kv_state_bytes(kv_plan(tier->kv), length) : 0;
    if (bytes == 0) return;
    catch_up(text, sequence);
    const SpillKey key = state_key(text, sequence->tail_key, sequence->tail_pages, length % KV_PAGE_TOKENS);
    put(tier, key, bytes, read_state, sequence);
}

/* ---- reading ---- */

/* The furthest length behind the sequence's, up to `count`, which it can be continued to: the end of the last page,
 * with recurrent entries the last state whose pages are there. Its own length: none. keys[n]: behind n pages. */
static int furthest(const DiskTier *tier, const SequenceText *text, int count, const KvSequence *sequence) {
    int pages = sequence->tail_pages;
    tier->keys[pages] = sequence->tail_key;
    for (; pages < count / KV_PAGE_TOKENS; pages++) {
        tier->keys[pages + 1] = next_key(text, tier->keys[pages], pages);
        if (spill_find(tier->spill, tier->keys[pages + 1]) != tier->page_bytes) break;
    }
    const KvPlan *plan = kv_plan(tier->kv);
    int length = pages * KV_PAGE_TOKENS;
    if (kv_state_bytes(plan, KV_PAGE_TOKENS) == 0) return max_int(length, sequence->length);
    for (length = min_int(count, length + KV_PAGE_TOKENS - 1); length > sequence->length; length--) {
        const int full = length / KV_PAGE_TOKENS;
        const SpillKey key = state_key(text, tier->keys[full], full, length % KV_PAGE_TOKENS);
        if (spill_find(tier->spill, key) == kv_state_bytes(plan, length)) break;
    }
    return length;
}

/* Reads a record: the next page or, behind the last one, the state. Ends the restoring with the last record. ERROR_IO:
 * the record was damaged or is gone, and will not be found again. */
static bool restore_record(DiskTier *tier, const SequenceText *text, KvSequence *sequence, Error *error) {
    const int pages = sequence->tail_pages, length = sequence->restoring, last = length / KV_PAGE_TOKENS;
    const size_t state = kv_state_bytes(kv_plan(tier->kv), length);
    const bool page = pages < last;
    const SpillKey key = page ? next_key(text, sequence->tail_key, pages)
                              : state_key(text, sequence->tail_key, pages, length % KV_PAGE_TOKENS);
    if (!spill_get(tier->spill, key, tier->record, page ? tier->page_bytes : state))
        return fail(error, ERROR_IO, "a record of a disk cache is lost");
    if (!(page ? kv_page_write(tier->kv, sequence, tier->record, error)
               : kv_state_write(tier->kv, sequence, length, tier->record, error)))
        return false;
    if (page) sequence->tail_key = key;
    sequence->tail_pages += page;
    if (!page || (!state && pages + 1 == last)) sequence->restoring = 0;
    return true;
}

bool disk_tier_find(DiskTier *tier, const SequenceText *text, int count, int64_t deadline_ns, KvSequence *sequence) {
    catch_up(text, sequence);
    if (!sequence->restoring) {
        const int length = furthest(tier, text, count, sequence);
        if (length > sequence->length) sequence->restoring = length;
    }
    while (sequence->restoring) {
        Error error = {0};
        if (!restore_record(tier, text, sequence, &error)) {
            const bool states = kv_state_bytes(kv_plan(tier->kv), sequence->restoring) > 0;
            sequence->restoring = 0;
            if (states) CHECK(kv_truncate(tier->kv, sequence, 0));
            return states && error.code == ERROR_IO; /* there may be an earlier state */
        }
        if (sequence->restoring && clock_ns() >= deadline_ns) return true;
    }
    return false;
}
