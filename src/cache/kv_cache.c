#include "cache/kv_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/math.h"
#include "cache/kv_internal.h"

enum {
    RECURRENT_WINDOW = 2, /* a row reads the state behind the position before it */
    STEP_PAGE_SETS = 2,   /* page sets of a recurrent group during a step: pages before it and pages behind it */
};

/* ---- the plan ---- */

/* The group of an entry with these properties, a new one if there is none; −1: there are too many. */
static int find_group(KvPlan *plan, const CacheSpec *spec, bool quantised, Backend *backend) {
    const bool recurrent = spec->page_tokens > 0;
    const int page_tokens = recurrent ? spec->page_tokens : KV_PAGE_TOKENS, rewind = recurrent ? spec->rewind : 0;
    const int window = recurrent ? RECURRENT_WINDOW : spec->window;
    CHECK(KV_PAGE_TOKENS % page_tokens == 0 && KV_PAGE_TOKENS / page_tokens <= KV_GROUP_PAGES_MAX && rewind >= 0);
    for (int g = 0; g < plan->group_count; g++)
        if (plan->group[g].page_tokens == page_tokens && plan->group[g].window == window &&
            plan->group[g].rewind == rewind && plan->group[g].recurrent == recurrent &&
            plan->group[g].quantised == quantised && plan->group[g].backend == backend)
            return g;
    if (plan->group_count == KV_GROUPS_MAX) return -1;
    plan->group[plan->group_count].page_tokens = page_tokens;
    plan->group[plan->group_count].window = window;
    plan->group[plan->group_count].rewind = rewind;
    plan->group[plan->group_count].recurrent = recurrent;
    plan->group[plan->group_count].quantised = quantised;
    plan->group[plan->group_count].backend = backend;
    return plan->group_count++;
}

/* A sequence has one form in all entries: where one backend cannot quantise, none does. Full-precision pages of all
 * then live equally long, and what a device holds is its entries' part. */
static bool can_quantise(const KvPlan *plan, const KvLayout *layout, Backend *const *backends) {
    bool can = true;
    for (int i = 0; can && i < plan->entry_count; i++)
        can = (i > 0 && backends[i] == backends[i - 1]) ||
            backends[i]->ops->kv_quant_bytes(backends[i], layout, KV_Q4, false) > 0;
    return can;
}

static bool plan_entry(KvPlan *plan, int i, const CacheSpec *spec, Backend *const *backends, Error *error) {
    KvLayer *entry = &plan->entries[i];
    Backend *backend = backends[i];
    bool quantised = false;
    size_t bytes;
    CHECK((spec->kv_heads > 0) != (spec->row_bytes > 0));
    if (spec->row_bytes > 0) {
        entry->layout =
            (KvLayout){.dtype = DTYPE_F32, .anchor_bytes = spec->anchor_bytes, .row_bytes = spec->row_bytes};
        bytes = kv_canonical_bytes(&entry->layout, spec->page_tokens ? spec->page_tokens : KV_PAGE_TOKENS);
    } else {
        entry->layout = (KvLayout){.kv_heads = spec->kv_heads,
            .head_dim = spec->head_dim,
            .value_dim = spec->value_dim,
            .latent = spec->latent,
            .dtype = backend->exact   ? DTYPE_F32
                : backend->bf16_pages ? DTYPE_BF16
                                      : DTYPE_F16};
        entry->k_bias = spec->k_bias;
        entry->rope = spec->rope;
        bytes = backend->ops->kv_layer_bytes(backend, &entry->layout);
        quantised = spec->window == 0 && !spec->exact && can_quantise(plan, &entry->layout, backends);
    }
    const int g = find_group(plan, spec, quantised, backend);
    if (g < 0)
        return fail(error, ERROR_UNSUPPORTED, "config.json: more than %d kinds of attention window", KV_GROUPS_MAX);
    plan->layers[i] = spec->layer;
    entry->index = i;
    entry->group = g;
    entry->page_tokens = plan->group[g].page_tokens;
    entry->layer_offset = plan->group[g].page_bytes;
    plan->group[g].page_bytes += (bytes + KV_ENTRY_ALIGN - 1) / KV_ENTRY_ALIGN * KV_ENTRY_ALIGN;
    if (plan->group[g].recurrent) plan->group[g].snapshot_bytes += kv_snapshot_entry_bytes(&entry->layout);
    return true;
}

bool kv_plan_make(
    KvPlan *plan, const CacheSpec *specs, Backend *const *backends, int entry_count, int context, Error *error) {
    const size_t count = (size_t)entry_count;
    *plan = (KvPlan){.context = context, .entry_count = entry_count};
    plan->entries = calloc(count + 1, sizeof *plan->entries);
    plan->layers = calloc(count + 1, sizeof *plan->layers);
    bool ok = (plan->entries && plan->layers) || fail(error, ERROR_MEMORY, "no memory for the plan of a KV cache");
    for (int i = 0; ok && i < entry_count; i++) {
        plan->rows_max = backends[i]->rows_max > plan->rows_max ? backends[i]->rows_max : plan->rows_max;
        ok = plan_entry(plan, i, &specs[i], backends, error);
    }
    for (int i = 0; ok && i < entry_count; i++)
        plan->entries[i].page_stride = plan->group[plan->entries[i].group].page_bytes;
    if (!ok) kv_plan_free(plan);
    return ok;
}

void kv_plan_free(KvPlan *plan) {
    free(plan->entries);
    free(plan->layers);
    *plan = (KvPlan){0};
}

/* The first page that a sequence of this length keeps. */
static int first_kept(const KvPlan *plan, int group, int length) {
    const int rewind = plan->group[group].rewind;
    return kv_first_page(plan, group, length > rewind ? length - rewind : 0);
}

/* The larger of two moments: the first step with quantised pages, when every full-precision page is still there, and
 * the end. */
static size_t quantised_bytes_for(const KvPlan *plan, const KvFormat *format, int g, int tokens) {
    const int64_t step = format->hot + KV_PAGE_TOKENS;
    const int64_t first = min_i64(tokens, format->after + step);
    const int64_t last = min_i64(tokens, format->sink + format->hot + KV_PAGE_TOKENS + step);
    const size_t page = plan->group[g].page_bytes;
    const size_t begin = (size_t)kv_pages(first) * page + kv_quant_bytes_for(plan, format, g, (int)first);
    const size_t end = (size_t)kv_pages(last) * page + kv_quant_bytes_for(plan, format, g, tokens);
    return begin > end ? begin : end;
}

static size_t group_bytes_for(const KvPlan *plan, const KvFormat *format, int g, int tokens) {
    const int window = plan->group[g].window, page_tokens = plan->group[g].page_tokens;
    int64_t held = tokens;
    if (plan->group[g].recurrent) {
        const int kept = 1 + (plan->group[g].rewind + page_tokens - 1) / page_tokens;
        held = min_i64(held, (int64_t)STEP_PAGE_SETS * kept * page_tokens);
    } else if (window) { /* the largest step is written before anything is freed; both ends may be partly used pages */
        held = min_i64(held, (int64_t)window + plan->rows_max + KV_PAGE_TOKENS);
    }
    const bool quantised = format && format->k != KV_FULL && plan->group[g].quantised;
    if (quantised && tokens > format->after) return quantised_bytes_for(plan, format, g, tokens);
    return (size_t)kv_group_pages(plan, g, held) * plan->group[g].page_bytes;
}

size_t kv_bytes_for(const KvPlan *plan, const KvFormat *format, int tokens) {
    size_t bytes = 0;
    for (int g = 0; g < plan->group_count; g++) bytes += group_bytes_for(plan, format, g, tokens);
    return bytes;
}

/* ---- the cache ---- */

/* Bytes of a group's pages for KV_PAGE_TOKENS positions. */
static size_t unit_bytes(const KvPlan *plan, int g) {
    return plan->group[g].page_bytes * (size_t)(KV_PAGE_TOKENS / plan->group[g].page_tokens);
}

/* Whether wherever a page of group g is in use, so is one of `other` for the same positions: full-precision pages
 * without a window are, and pages with the same window and size. */
static bool comes_with(const KvPlan *plan, int g, int other) {
    if (other == g) return true;
    const bool same = plan->group[other].window == plan->group[g].window &&
        plan->group[other].rewind == plan->group[g].rewind &&
        plan->group[other].page_tokens == plan->group[g].page_tokens;
    return !plan->group[other].quantised && (plan->group[other].window == 0 || same);
}

/* Bytes of a budget that pages of a group can take. The last unit may be there in part. */
static size_t group_part(const KvPlan *plan, int g, size_t budget) {
    size_t together = 0;
    for (int i = 0; i < plan->group_count; i++)
        if (comes_with(plan, g, i)) together += unit_bytes(plan, i);
    const size_t unit = unit_bytes(plan, g);
    return (budget < together ? 1 : budget / together) * unit + (unit - plan->group[g].page_bytes);
}

size_t kv_taken_bytes(const KvPlan *plan, const Backend *backend, size_t budget) {
    size_t bytes = 0, more;
    for (int g = 0; g < plan->group_count; g++) {
        if (plan->group[g].backend != backend) continue;
        more = group_part(plan, g, budget);
        bytes = bytes > SIZE_MAX - more ? SIZE_MAX : bytes + more;
    }
    return backend->ops->commit && bytes > budget ? budget : bytes;
}

/* All recurrent groups have as many snapshots. */
static bool open_snapshots(KvCache *cache, size_t budget, Error *error) {
    const KvPlan *plan = cache->plan;
    const size_t together = kv_snapshot_bytes(plan);
    cache->first_quant_kind = plan->group_count;
    for (int g = 0; g < plan->group_count; g++) {
        const size_t bytes = plan->group[g].snapshot_bytes;
        cache->snapshot_kinds[g] = -1;
        if (!plan->group[g].recurrent) continue;
        const size_t most = (budget < together ? 1 : budget / together) * bytes;
        cache->snapshot_kinds[g] = page_pool_add(cache->pool, plan->group[g].backend, bytes, most, error);
        if (cache->snapshot_kinds[g] < 0) return false;
        cache->first_quant_kind++;
    }
    return true;
}

static bool open_groups(KvCache *cache, size_t budget, Error *error) {
    const KvPlan *plan = cache->plan;
    cache->pool = page_pool_open(budget, error);
    if (!cache->pool) return false;
    for (int g = 0; g < plan->group_count; g++)
        if (page_pool_add(cache->pool, plan->group[g].backend, plan->group[g].page_bytes, group_part(plan, g, budget),
                error) != g)
            return false;
    if (!open_snapshots(cache, budget, error)) return false;
    const size_t count = (size_t)plan->entry_count + 1; /* never no bytes */
    cache->entries = malloc(count * sizeof *cache->entries);
    cache->encode = calloc(count, sizeof *cache->encode);
    cache->calibration = calloc(count, sizeof *cache->calibration);
    cache->k_kinds = calloc(count, sizeof *cache->k_kinds);
    cache->v_kinds = calloc(count, sizeof *cache->v_kinds);
    if (!cache->entries || !cache->encode || !cache->calibration || !cache->k_kinds || !cache->v_kinds)
        return fail(error, ERROR_MEMORY, "no memory for a KV cache");
    memcpy(cache->entries, plan->entries, (size_t)plan->entry_count * sizeof *cache->entries);
    for (int i = 0; i < plan->entry_count; i++)
        cache->entries[i].base = page_pool_base(cache->pool, cache->entries[i].group);
    return true;
}

KvCache *kv_open(const KvPlan *plan, size_t budget_bytes, Error *error) {
    KvCache *cache = calloc(1, sizeof *cache);
    if (!cache) {
        fail(error, ERROR_MEMORY, "no memory for a KV cache");
        return NULL;
    }
    cache->plan = plan;
    cache->table_pages = kv_pages(plan->context);
    if (open_groups(cache, budget_bytes, error)) return cache;
    kv_close(cache);
    return NULL;
}

void kv_close(KvCache *cache) {
    if (!cache) return;
    page_pool_close(cache->pool);
    free(cache->entries);
    free(cache->encode);
    free(cache->calibration);
    free(cache->k_kinds);
    free(cache->v_kinds);
    free(cache);
}

const KvPlan *kv_plan(const KvCache *cache) { return cache->plan; }
const KvLayer *kv_entries(const KvCache *cache) { return cache->entries; }
size_t kv_bytes_used(const KvCache *cache) { return page_pool_used(cache->pool); }
size_t kv_bytes_total(const KvCache *cache) { return page_pool_budget(cache->pool); }

/* ---- sequences ---- */

static bool open_tables(KvCache *cache, KvSequence *sequence, Error *error) {
    const KvPlan *plan = cache->plan;
    const size_t groups = (size_t)plan->group_count;
    const int tokens = cache->table_pages * KV_PAGE_TOKENS;
    size_t entries = 0;
    for (int g = 0; g < plan->group_count; g++) entries += (size_t)kv_group_pages(plan, g, tokens);
    *sequence = (KvSequence){.tables = calloc(groups ? groups : 1, sizeof *sequence->tables)};
    int32_t *table = malloc((entries ? entries : 1) * sizeof *table);
    if (!sequence->tables || !table) {
        free(sequence->tables);
        free(table);
        *sequence = (KvSequence){0};
        return fail(error, ERROR_MEMORY, "no memory for a page table of %d pages", cache->table_pages);
    }
    memset(table, 0xff, entries * sizeof *table); /* −1 everywhere */
    sequence->tables[0] = table;
    for (int g = 1; g < plan->group_count; g++)
        sequence->tables[g] = sequence->tables[g - 1] + kv_group_pages(plan, g - 1, tokens);
    return true;
}

bool kv_sequence_open(KvCache *cache, const KvFormat *format, KvSequence *sequence, Error *error) {
    if (!open_tables(cache, sequence, error)) return false;
    bool quantised = false;
    for (int g = 0; format && format->k != KV_FULL && g < cache->plan->group_count; g++)
        quantised = quantised || cache->plan->group[g].quantised;
    if (!quantised || kv_quant_pages_open(cache, format, sequence, error)) return true;
    kv_sequence_close(cache, sequence);
    return false;
}

void kv_sequence_close(KvCache *cache, KvSequence *sequence) {
    if (!sequence->tables) return;
    kv_quant_pages_close(cache, sequence);
    for (int g = 0; g < cache->plan->group_count; g++)
        page_release_range(cache->pool, g, sequence->tables[g], 0, kv_group_pages(cache->plan, g, sequence->reserved));
    free(sequence->tables[0]);
    free(sequence->tables);
    *sequence = (KvSequence){0};
}

/* A page with other owners must not be written: the sequence gets its own copy. */
static bool own_page(KvCache *cache, int g, int32_t *page, Error *error) {
    if (*page < 0 || page_owners(cache->pool, g, *page) == 1) return true;
    const int32_t copy = page_take(cache->pool, g);
    if (copy < 0) return page_pool_full(cache->pool, error);
    page_copy(cache->pool, g, copy, *page);
    page_release(cache->pool, g, *page);
    *page = copy;
    return true;
}

static bool reserve_group(KvCache *cache, KvSequence *sequence, int g, int64_t end, Error *error) {
    const KvPlan *plan = cache->plan;
    const int before = kv_group_pages(plan, g, sequence->reserved), after = kv_group_pages(plan, g, end);
    const int filling = sequence->length / plan->group[g].page_tokens;
    int32_t *table = sequence->tables[g];
    if (end > sequence->length && filling < before && !own_page(cache, g, &table[filling], error)) return false;
    /* Pages that lie wholly inside the step are not stored. */
    const int first = plan->group[g].recurrent ? max_int(filling, first_kept(plan, g, (int)end)) : before;
    const bool view = sequence->quant && sequence->quant->active;
    for (int i = first; i < after; i++) {
        const int page = view ? after - 1 - (i - first) : i; /* the last, which stay the longest, take low places */
        if (table[page] < 0) table[page] = page_take(cache->pool, g);
        if (table[page] < 0) return page_pool_full(cache->pool, error);
    }
    return true;
}

bool kv_reserve(KvCache *cache, KvSequence *sequence, int tokens, Error *error) {
    CHECK(tokens >= 0);
    const KvPlan *plan = cache->plan;
    const int64_t end = (int64_t)sequence->length + tokens;
    if (end > (int64_t)cache->table_pages * KV_PAGE_TOKENS) {
        return fail(error, ERROR_LIMIT, "%lld tokens do not fit the context of %d", (long long)end,
            cache->table_pages * KV_PAGE_TOKENS);
    }
    CHECK(tokens <= kv_step_rows(sequence));
    if (!kv_quant_pages_reserve(cache, sequence, tokens, error)) return false;
    bool ok = true;
    for (int g = 0; ok && g < plan->group_count; g++) ok = reserve_group(cache, sequence, g, end, error);
    for (int g = 0; !ok && g < plan->group_count; g++)
        page_release_range(cache->pool, g, sequence->tables[g], kv_group_pages(plan, g, sequence->reserved),
            kv_group_pages(plan, g, end));
    if (ok && end > sequence->reserved) sequence->reserved = (int)end;
    return ok;
}

void kv_run(const KvSequence *sequence, SequenceChunk *chunk) {
    chunk->tables = (const int32_t *const *)sequence->tables;
    chunk->quant = sequence->quant && sequence->quant->active ? &sequence->quant->view : NULL;
    chunk->position = sequence->length;
}

void kv_advance(KvCache *cache, KvSequence *sequence, int tokens) {
    const KvPlan *plan = cache->plan;
    const int before = sequence->length;
    CHECK(tokens >= 0 && tokens <= sequence->reserved - before);
    sequence->length += tokens;
    for (int g = 0; g < plan->group_count; g++) {
        const int32_t *table = sequence->tables[g];
        CHECK(
            !plan->group[g].recurrent || sequence->length == 0 || table[kv_first_page(plan, g, sequence->length)] >= 0);
        page_release_range(
            cache->pool, g, sequence->tables[g], first_kept(plan, g, before), first_kept(plan, g, sequence->length));
    }
    kv_quant_pages_advance(cache, sequence);
}

bool kv_truncate(KvCache *cache, KvSequence *sequence, int length) {
    CHECK(length >= 0 && length <= sequence->length);
    const KvPlan *plan = cache->plan;
    for (int g = 0; g < plan->group_count; g++) {
        const int first = kv_first_page(plan, g, length);
        const bool reads = plan->group[g].window && first * plan->group[g].page_tokens < length;
        if (reads && sequence->tables[g][first] < 0) return false;
    }
    if (!kv_quant_pages_can_truncate(cache, sequence, length)) return false;
    for (int g = 0; g < plan->group_count; g++)
        page_release_range(cache->pool, g, sequence->tables[g], kv_group_pages(plan, g, length),
            kv_group_pages(plan, g, sequence->reserved));
    kv_quant_pages_truncate(cache, sequence, length);
    if (sequence->tail_pages > length / KV_PAGE_TOKENS) sequence->tail_pages = 0; /* its key cannot be shortened */
    sequence->length = sequence->reserved = length;
    return true;
}

void kv_fork(KvCache *cache, const KvSequence *from, KvSequence *to) {
    CHECK(to->length == 0 && to->reserved == 0);
    for (int g = 0; g < cache->plan->group_count; g++) {
        const int pages = kv_group_pages(cache->plan, g, from->length);
        for (int i = 0; i < pages; i++) {
            const int32_t page = from->tables[g][i];
            to->tables[g][i] = page;
            if (page >= 0) page_retain(cache->pool, g, page);
        }
    }
    kv_quant_pages_fork(cache, from, to);
    to->tail_pages = from->tail_pages;
    to->tail_key = from->tail_key;
    to->length = to->reserved = from->length;
}
