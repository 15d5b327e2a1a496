/* Pages of keys and values: one pool of reserved address space per group of layers, a stack of freed page ids, a count
 * of owners per page. All groups share one budget. */
#include "model/kv_cache.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "model/model_internal.h"

enum {
    LAYER_ALIGN = 64,    /* every layer's part of a page starts on a cache line */
    HUGE_PAGE = 2 << 20, /* what memory is taken in and given back in: reading it is up to a third faster */
    PAGES_MAX = 1 << 22,
};

typedef struct KvGroup {
    int window;    /* 0: nothing ever leaves */
    size_t stride; /* bytes of a page: this group's layers, one after another */
    uint8_t *mapping;
    size_t mapped;
    uint8_t *base;  /* first multiple of HUGE_PAGE in it */
    int page_count; /* that fit the address space */
    int fresh;      /* ids from here on were never used */
    int free_count;
    int32_t *free;   /* [page_count] ids given back */
    int32_t *owners; /* [page_count] */
} KvGroup;

struct KvCache {
    size_t budget, used;
    int table_pages; /* entries of a sequence's table */
    int group_count;
    KvGroup group[KV_GROUPS_MAX];
};

static size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

static size_t layer_bytes(const Model *model, const Layer *layer) {
    const size_t bytes = model->backend->ops->kv_layer_bytes(model->backend, &layer->attention.op.kv.layout);
    return round_up(bytes, LAYER_ALIGN);
}

static size_t group_stride(const Model *model, int group) {
    size_t stride = 0;
    for (int i = 0; i < model->spec.layer_count; i++) {
        const Layer *layer = &model->spec.layers[i];
        stride += layer->attention.op.kv.group == group ? layer_bytes(model, layer) : 0;
    }
    return stride;
}

static int pages_of(int64_t tokens) { return (int)((tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS); }

static bool group_open(KvGroup *group, size_t budget, Error *error) {
    const size_t count = budget / group->stride;
    group->page_count = count < PAGES_MAX ? (int)count : PAGES_MAX;
    if (group->page_count == 0) {
        return fail(
            error, ERROR_LIMIT, "a KV cache of %zu bytes has no room for one page of %zu", budget, group->stride);
    }
    group->mapped = round_up((size_t)group->page_count * group->stride, HUGE_PAGE) + HUGE_PAGE;
    void *mapping =
        mmap(NULL, group->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) {
        group->mapped = 0;
        return fail(error, ERROR_MEMORY, "no address space for a KV cache of %zu bytes", budget);
    }
    group->mapping = mapping;
    group->base = group->mapping + -(uintptr_t)mapping % HUGE_PAGE;
#ifdef MADV_HUGEPAGE
    (void)madvise(group->base, group->mapped - HUGE_PAGE, MADV_HUGEPAGE); /* a wish */
#endif
    group->free = calloc((size_t)group->page_count, sizeof *group->free);
    group->owners = calloc((size_t)group->page_count, sizeof *group->owners);
    return (group->free && group->owners) || fail(error, ERROR_MEMORY, "no memory for the tables of the KV cache");
}

static void place_layers(Model *model, const KvCache *cache) {
    size_t offset[KV_GROUPS_MAX] = {0};
    for (int i = 0; i < model->spec.layer_count; i++) {
        Layer *layer = &model->spec.layers[i];
        KvLayer *kv = &layer->attention.op.kv;
        kv->base = cache->group[kv->group].base;
        kv->page_stride = cache->group[kv->group].stride;
        kv->layer_offset = offset[kv->group];
        offset[kv->group] += layer_bytes(model, layer);
    }
}

KvCache *kv_open(Model *model, size_t budget_bytes, Error *error) {
    KvCache *cache = calloc(1, sizeof *cache);
    if (!cache) {
        fail(error, ERROR_MEMORY, "no memory for a KV cache");
        return NULL;
    }
    cache->budget = budget_bytes;
    cache->table_pages = pages_of(model->context);
    for (int i = 0; i < model->spec.kv_group_count; i++) {
        KvGroup *group = &cache->group[cache->group_count++];
        group->window = model->spec.kv_window[i];
        group->stride = group_stride(model, i);
        if (!group_open(group, budget_bytes, error)) {
            kv_close(cache);
            return NULL;
        }
    }
    place_layers(model, cache);
    return cache;
}

void kv_close(KvCache *cache) {
    if (!cache) {
        return;
    }
    for (int i = 0; i < cache->group_count; i++) {
        KvGroup *group = &cache->group[i];
        if (group->mapped) {
            munmap(group->mapping, group->mapped);
        }
        free(group->free);
        free(group->owners);
    }
    free(cache);
}

size_t kv_bytes_used(const KvCache *cache) { return cache->used; }
size_t kv_bytes_total(const KvCache *cache) { return cache->budget; }

size_t kv_bytes_for(const Model *model, int tokens) {
    size_t bytes = 0;
    for (int i = 0; i < model->spec.kv_group_count; i++) {
        int64_t held = tokens;
        const int window = model->spec.kv_window[i];
        if (window) { /* the largest step is written before anything leaves; both ends may be partly used pages */
            const int64_t most = (int64_t)window + model->backend->rows_max + KV_PAGE_TOKENS;
            held = held < most ? held : most;
        }
        bytes += (size_t)pages_of(held) * group_stride(model, i);
    }
    return bytes;
}

/* ---- pages ---- */

static uint8_t *page_memory(const KvGroup *group, int32_t id) { return group->base + (size_t)id * group->stride; }

/* −1: the budget is spent. */
static int32_t page_take(KvCache *cache, KvGroup *group) {
    if (cache->used + group->stride > cache->budget || (group->free_count == 0 && group->fresh == group->page_count)) {
        return -1;
    }
    const int32_t id = group->free_count ? group->free[--group->free_count] : group->fresh++;
    group->owners[id] = 1;
    cache->used += group->stride;
    return id;
}

/* Gives the huge pages that hold nothing but free pages back to the system, of those that held this one: a part of one
 * would break it into small pages. */
static void give_back(KvGroup *group, int32_t id) {
    const size_t begin = (size_t)id * group->stride, end = begin + group->stride;
    for (size_t huge = begin / HUGE_PAGE * HUGE_PAGE; huge < end; huge += HUGE_PAGE) {
        const size_t last = (huge + HUGE_PAGE - 1) / group->stride;
        bool used = false;
        for (size_t page = huge / group->stride; page <= last && page < (size_t)group->fresh; page++)
            used |= group->owners[page] > 0;
        if (!used) (void)madvise(group->base + huge, HUGE_PAGE, MADV_DONTNEED);
    }
}

static void page_release(KvCache *cache, KvGroup *group, int32_t id) {
    if (id < 0) {
        return;
    }
    CHECK(group->owners[id] > 0);
    if (--group->owners[id] > 0) {
        return;
    }
    group->free[group->free_count++] = id;
    cache->used -= group->stride;
    give_back(group, id);
}

static void release_range(KvCache *cache, KvSequence *sequence, int g, int first, int end) {
    for (int page = first; page < end; page++) {
        page_release(cache, &cache->group[g], sequence->tables[g][page]);
        sequence->tables[g][page] = -1;
    }
}

/* ---- sequences ---- */

bool kv_sequence_open(KvCache *cache, KvSequence *sequence, Error *error) {
    const size_t entries = (size_t)cache->group_count * (size_t)cache->table_pages;
    *sequence = (KvSequence){.tables = calloc((size_t)cache->group_count, sizeof *sequence->tables)};
    int32_t *table = malloc(entries * sizeof *table);
    if (!sequence->tables || !table) {
        free(sequence->tables);
        free(table);
        *sequence = (KvSequence){0};
        return fail(error, ERROR_MEMORY, "no memory for a page table of %d pages", cache->table_pages);
    }
    memset(table, 0xff, entries * sizeof *table); /* −1 everywhere */
    for (int g = 0; g < cache->group_count; g++) {
        sequence->tables[g] = table + (size_t)g * (size_t)cache->table_pages;
    }
    return true;
}

void kv_sequence_close(KvCache *cache, KvSequence *sequence) {
    if (!sequence->tables) {
        return;
    }
    for (int g = 0; g < cache->group_count; g++) {
        release_range(cache, sequence, g, 0, pages_of(sequence->reserved));
    }
    free(sequence->tables[0]);
    free(sequence->tables);
    *sequence = (KvSequence){0};
}

static bool pool_full(const KvCache *cache, Error *error) {
    return fail(error, ERROR_LIMIT, "the KV cache is full: %zu of %zu bytes are in use", cache->used, cache->budget);
}

/* A page that others hold too must not be written: the sequence gets its own copy. */
static bool own_page(KvCache *cache, KvGroup *group, int32_t *entry, Error *error) {
    if (*entry < 0 || group->owners[*entry] == 1) {
        return true;
    }
    const int32_t copy = page_take(cache, group);
    if (copy < 0) {
        return pool_full(cache, error);
    }
    memcpy(page_memory(group, copy), page_memory(group, *entry), group->stride);
    page_release(cache, group, *entry);
    *entry = copy;
    return true;
}

bool kv_reserve(KvCache *cache, KvSequence *sequence, int tokens, Error *error) {
    CHECK(tokens >= 0);
    const int64_t end = (int64_t)sequence->length + tokens;
    if (end > (int64_t)cache->table_pages * KV_PAGE_TOKENS) {
        return fail(error, ERROR_LIMIT, "%lld tokens do not fit the context of %d", (long long)end,
            cache->table_pages * KV_PAGE_TOKENS);
    }
    const int before = pages_of(sequence->reserved), after = pages_of(end);
    const int filling = sequence->length / KV_PAGE_TOKENS;
    bool ok = true;
    for (int g = 0; ok && g < cache->group_count; g++) {
        if (tokens > 0 && filling < before) {
            ok = own_page(cache, &cache->group[g], &sequence->tables[g][filling], error);
        }
        for (int page = before; ok && page < after; page++) {
            sequence->tables[g][page] = page_take(cache, &cache->group[g]);
            ok = sequence->tables[g][page] >= 0 || pool_full(cache, error);
        }
    }
    if (!ok) {
        for (int g = 0; g < cache->group_count; g++) {
            release_range(cache, sequence, g, before, after);
        }
        return false;
    }
    sequence->reserved = after > before ? after * KV_PAGE_TOKENS : sequence->reserved;
    return true;
}

/* The first page that a token at this position, or a later one, can see. */
static int first_visible_page(const KvGroup *group, int position) {
    const int first = group->window && position >= group->window ? position - group->window + 1 : 0;
    return first / KV_PAGE_TOKENS;
}

void kv_advance(KvCache *cache, KvSequence *sequence, int tokens) {
    const int before = sequence->length;
    CHECK(tokens >= 0 && tokens <= sequence->reserved - before);
    sequence->length += tokens;
    for (int g = 0; g < cache->group_count; g++) {
        const KvGroup *group = &cache->group[g];
        release_range(
            cache, sequence, g, first_visible_page(group, before), first_visible_page(group, sequence->length));
    }
}

bool kv_truncate(KvCache *cache, KvSequence *sequence, int length) {
    CHECK(length >= 0 && length <= sequence->length);
    for (int g = 0; g < cache->group_count; g++) {
        const int first = first_visible_page(&cache->group[g], length);
        if (first * KV_PAGE_TOKENS < length && sequence->tables[g][first] < 0) {
            return false;
        }
    }
    for (int g = 0; g < cache->group_count; g++) {
        release_range(cache, sequence, g, pages_of(length), pages_of(sequence->reserved));
    }
    sequence->length = length;
    sequence->reserved = pages_of(length) * KV_PAGE_TOKENS;
    return true;
}

bool kv_fork(KvCache *cache, const KvSequence *from, KvSequence *to, Error *error) {
    CHECK(to->length == 0 && to->reserved == 0);
    const int pages = pages_of(from->length);
    const bool partial = from->length % KV_PAGE_TOKENS != 0;
    bool ok = true;
    for (int g = 0; g < cache->group_count; g++) {
        for (int page = 0; page < pages; page++) {
            const int32_t id = from->tables[g][page];
            to->tables[g][page] = id;
            cache->group[g].owners[id < 0 ? 0 : id] += id >= 0;
        }
    }
    to->length = from->length;
    to->reserved = pages * KV_PAGE_TOKENS;
    for (int g = 0; ok && partial && g < cache->group_count; g++) {
        ok = own_page(cache, &cache->group[g], &to->tables[g][pages - 1], error);
    }
    if (!ok) {
        for (int g = 0; g < cache->group_count; g++) {
            release_range(cache, to, g, 0, pages);
        }
        to->length = to->reserved = 0;
    }
    return ok;
}
