#include "cache/disk_tier.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cache/kv_page.h"

enum {
    QUEUE_BYTES = 128 << 20, /* of pages that wait for the disk; */
    BUFFERS_LEAST = 2,       /* more where a page is large */
    LAYOUT_VERSION = 5,      /* of the bytes of a page and of the keys */
};

struct DiskTier {
    Spill *spill;
    KvCache *kv;
    size_t page_bytes;
    void *page; /* [page_bytes] working memory */
};

/* ---- opening ---- */

static Spill *open_spill(const DiskTierOptions *options, size_t page_bytes, Error *error) {
    char directory[4096];
    const int version = LAYOUT_VERSION, buffers = (int)(QUEUE_BYTES / page_bytes);
    SpillKey name = spill_key((SpillKey){{0}}, &version, sizeof version);
    name = spill_key(name, options->identity.data, options->identity.size);
    snprintf(directory, sizeof directory, "%s/%016llx", options->directory, (unsigned long long)name.word[0]);
    const SpillOptions spill = {.directory = directory,
        .bytes = options->bytes,
        .record_bytes = page_bytes,
        .buffers = buffers > BUFFERS_LEAST ? buffers : BUFFERS_LEAST,
        .warn = options->warn};
    return spill_open(&spill, error);
}

DiskTier *disk_tier_open(const DiskTierOptions *options, KvCache *kv, Error *error) {
    const KvPlan *plan = kv_plan(kv);
    if (!kv_page_possible(plan)) {
        fail(error, ERROR_UNSUPPORTED, "this model remembers more than pages");
        return NULL;
    }
    DiskTier *tier = calloc(1, sizeof *tier);
    if (tier) *tier = (DiskTier){.kv = kv, .page_bytes = kv_page_bytes(plan)};
    if (tier) tier->page = malloc(tier->page_bytes);
    if (!tier || !tier->page)
        fail(error, ERROR_MEMORY, "no memory for a disk cache");
    else if ((tier->spill = open_spill(options, tier->page_bytes, error)))
        return tier;
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

/* The key of the page behind those that the sequence's running key stands for. */
static SpillKey next_key(const SequenceText *text, const KvSequence *sequence) {
    const int position = disk_tier_position(sequence);
    CHECK(text->first <= position);
    const SpillKey before = sequence->tail_pages ? sequence->tail_key : first_key(text);
    return spill_key(before, text->ids + (position - text->first), KV_PAGE_TOKENS * sizeof *text->ids);
}

static void add_page(KvSequence *sequence, SpillKey key) {
    sequence->tail_key = key;
    sequence->tail_pages++;
}

/* ---- pages ---- */

static void put_page(DiskTier *tier, SpillKey key, const KvSequence *sequence, int page) {
    if (spill_find(tier->spill, key)) return;
    void *buffer = spill_buffer(tier->spill);
    if (!buffer) return;
    if (kv_page_read(tier->kv, sequence, page, buffer))
        spill_put(tier->spill, key, buffer, tier->page_bytes);
    else
        spill_cancel(tier->spill, buffer);
}

void disk_tier_put(DiskTier *tier, const SequenceText *text, KvSequence *sequence, int end) {
    while (sequence->tail_pages < end / KV_PAGE_TOKENS) {
        const int page = sequence->tail_pages;
        const SpillKey key = next_key(text, sequence);
        if (page >= sequence->length / KV_PAGE_TOKENS) put_page(tier, key, sequence, page);
        add_page(sequence, key);
    }
}

bool disk_tier_find(DiskTier *tier, const SequenceText *text, int count, int64_t deadline_ns, KvSequence *sequence) {
    Error error;
    const int from = sequence->length / KV_PAGE_TOKENS;
    while (sequence->tail_pages < count / KV_PAGE_TOKENS) {
        const int page = sequence->tail_pages;
        if (page > from && clock_ns() >= deadline_ns) return true;
        const SpillKey key = next_key(text, sequence);
        if (page >= from &&
            (spill_find(tier->spill, key) != tier->page_bytes ||
                !spill_get(tier->spill, key, tier->page, tier->page_bytes) ||
                !kv_page_write(tier->kv, sequence, tier->page, &error)))
            return false;
        add_page(sequence, key);
    }
    return false;
}
