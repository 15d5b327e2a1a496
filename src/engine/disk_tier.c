#include "engine/disk_tier.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "cache/kv_page.h"
#include "engine/placement.h"

enum {
    QUEUE_BYTES = 128 << 20, /* of memory that waits for the disk */
    LAYOUT_VERSION = 4,      /* of the bytes of a page, and of what computes them alike */
};

struct DiskTier {
    Spill *spill;
    KvCache *kv;
    size_t page_bytes;
    void *page; /* working memory */
};

static void warn(void *context, const char *line) { log_warn("disk cache: %s", line); }

/* ---- which model ---- */

/* A model is its files' names, sizes and times: another file of a name is another model. Order does not matter. */
static bool add_files(const char *directory, SpillKey *key) {
    DIR *list = opendir(directory);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        char text[1024];
        struct stat status;
        if (entry->d_name[0] == '.' || fstatat(dirfd(list), entry->d_name, &status, 0) || !S_ISREG(status.st_mode))
            continue;
        const int size = snprintf(
            text, sizeof text, "%s %lld %lld", entry->d_name, (long long)status.st_size, (long long)status.st_mtime);
        const SpillKey one = spill_key((SpillKey){{0}}, text, (size_t)size);
        key->word[0] += one.word[0];
        key->word[1] += one.word[1];
    }
    if (list) closedir(list);
    return list;
}

/* Backends and precisions round differently, so what one has computed is not what another would have. */
static bool make_identity(const EngineOptions *options, const Runner *runner, SpillKey *key) {
    char text[256];
    const KvPlan *plan = runner_kv_plan(runner);
    *key = (SpillKey){{0}};
    if (!add_files(options->directory, key)) return false;
    const int size = snprintf(text, sizeof text, "%s %d %s %d %d", APUS_VERSION, LAYOUT_VERSION,
        runner_backend(runner)->ops->name, options->backend.precise, plan->layer_count);
    *key = spill_key(*key, text, (size_t)size);
    if (runner_upper(runner) != runner_backend(runner)) { /* what a layer reads hangs on who computed those below */
        const int there = placement_layers(options, plan->layer_count);
        const char *upper = runner_upper(runner)->ops->name;
        *key = spill_key(*key, upper, strlen(upper));
        *key = spill_key(*key, &there, sizeof there);
    }
    const int slices = options->backend.tensor_parallel; /* other sums */
    if (slices > 1) *key = spill_key(*key, &slices, sizeof slices);
    if (options->model.experts_used)
        *key = spill_key(*key, &options->model.experts_used, sizeof options->model.experts_used);
    for (int i = 0; i < plan->layer_count; i++)
        *key = spill_key(*key, &plan->layers[i].layout, sizeof plan->layers[i].layout);
    return true;
}

/* ---- opening ---- */

static Spill *open_spill(const EngineOptions *options, const SpillKey *identity, Error *error) {
    char directory[4096];
    snprintf(
        directory, sizeof directory, "%s/%016llx", options->cache_directory, (unsigned long long)identity->word[0]);
    const SpillOptions spill = {
        .directory = directory, .bytes = options->cache_disk_bytes, .queue_bytes = QUEUE_BYTES, .warn = warn};
    return spill_open(&spill, error);
}

DiskTier *disk_tier_open(const EngineOptions *options, const Runner *runner, KvCache *kv) {
    SpillKey identity;
    Error error = {0};
    const KvPlan *plan = runner_kv_plan(runner);
    DiskTier *tier = calloc(1, sizeof *tier);
    bool ok = tier || fail(&error, ERROR_MEMORY, "no memory for a disk cache");
    if (ok && !kv_page_possible(plan)) ok = fail(&error, ERROR_UNSUPPORTED, "this model remembers more than pages");
    if (ok && !make_identity(options, runner, &identity))
        ok = fail(&error, ERROR_IO, "%s: cannot list its files", options->directory);
    if (ok) {
        tier->kv = kv;
        tier->page_bytes = kv_page_bytes(plan);
        tier->page = malloc(tier->page_bytes);
        ok = tier->page || fail(&error, ERROR_MEMORY, "no memory for a disk cache");
    }
    if (ok) tier->spill = open_spill(options, &identity, &error);
    if (ok && tier->spill) return tier;
    log_warn("no disk cache: %s", error.text);
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

/* ---- pages ---- */

static SpillKey first_key(uint64_t salt, const KvFormat *format) {
    const KvFormat exact = {.k = KV_FULL}; /* whose lengths mean nothing */
    const SpillKey key = spill_key((SpillKey){{0}}, &salt, sizeof salt);
    return spill_key(key, format->k == KV_FULL ? &exact : format, sizeof *format);
}

static SpillKey next_key(SpillKey key, const int32_t *text, int page) {
    return spill_key(key, text + (size_t)page * KV_PAGE_TOKENS, KV_PAGE_TOKENS * sizeof *text);
}

static void keep_page(DiskTier *tier, SpillKey key, const KvSequence *sequence, int page) {
    if (!spill_room(tier->spill, tier->page_bytes) || spill_find(tier->spill, key)) return;
    void *bytes = malloc(tier->page_bytes);
    if (!bytes) return;
    if (kv_page_read(tier->kv, sequence, page, bytes))
        spill_put(tier->spill, key, bytes, tier->page_bytes);
    else
        free(bytes);
}

void disk_tier_spill(
    DiskTier *tier, uint64_t salt, const KvFormat *format, const int32_t *text, const KvSequence *sequence, int end) {
    SpillKey key = first_key(salt, format);
    for (int page = 0; page < end / KV_PAGE_TOKENS; page++) {
        key = next_key(key, text, page);
        if (page >= sequence->length / KV_PAGE_TOKENS) keep_page(tier, key, sequence, page);
    }
}

bool disk_tier_find(DiskTier *tier, uint64_t salt, const KvFormat *format, const int32_t *text, int count,
    int64_t deadline_ns, KvSequence *sequence) {
    Error error;
    SpillKey key = first_key(salt, format);
    const int from = sequence->length / KV_PAGE_TOKENS;
    for (int page = 0; page < count / KV_PAGE_TOKENS; page++) {
        if (page > from && clock_ns() >= deadline_ns) return true;
        key = next_key(key, text, page);
        if (page < from) continue;
        if (spill_find(tier->spill, key) != tier->page_bytes ||
            !spill_get(tier->spill, key, tier->page, tier->page_bytes) ||
            !kv_page_write(tier->kv, sequence, tier->page, &error))
            return false;
    }
    return false;
}
