/* The quantised side of sequences: pages are quantised when a row first reads them in that form, and full-precision
 * pages are freed when no row needs them any more. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "backend/kv_quant.h"
#include "cache/kv_internal.h"

/* ---- sizes ---- */

bool kv_entry_quantised(const KvPlan *plan, int entry) { return plan->group[plan->entries[entry].group].quantised; }

/* The best form that keys of a format can have. */
static KvForm largest_k(const KvFormat *format) {
    if (format->raise == KV_RAISE_NONE || format->k >= KV_Q6) return format->k;
    return format->raise == KV_RAISE_LISTED ? (KvForm)(format->k + 1) : KV_Q6;
}

static size_t quant_bytes(const KvPlan *plan, int layer, KvForm form, bool values) {
    const KvLayer *l = &plan->entries[layer];
    Backend *backend = plan->group[l->group].backend;
    return backend->ops->kv_quant_bytes(backend, &l->layout, form, values);
}

size_t kv_quant_bytes_for(const KvPlan *plan, const KvFormat *format, int group, int tokens) {
    size_t bytes = 0;
    for (int i = 0; i < plan->entry_count; i++)
        if (plan->entries[i].group == group && kv_entry_quantised(plan, i))
            bytes += quant_bytes(plan, i, largest_k(format), false) + quant_bytes(plan, i, format->v, true);
    return bytes * (size_t)kv_pages(tokens);
}

/* ---- stores ---- */

/* The pool's kind for pages of this size on a backend, a new one if there is none; −1: there are too many, or no
 * memory. */
static int quant_kind(KvCache *cache, Backend *backend, size_t bytes, Error *error) {
    const int first = cache->first_quant_kind;
    for (int i = 0; i < cache->quant_kind_count; i++)
        if (cache->quant_kind[i].backend == backend && cache->quant_kind[i].bytes == bytes) return first + i;
    if (cache->quant_kind_count == QUANT_KINDS_MAX) {
        fail(error, ERROR_UNSUPPORTED, "more than %d sizes of quantised pages", QUANT_KINDS_MAX);
        return -1;
    }
    const int kind = page_pool_add(cache->pool, backend, bytes, SIZE_MAX, error);
    if (kind < 0) return -1;
    CHECK(kind == first + cache->quant_kind_count);
    cache->quant_kind[cache->quant_kind_count].backend = backend;
    cache->quant_kind[cache->quant_kind_count++].bytes = bytes;
    return kind;
}

/* Makes page memory of this form for every quantised entry. */
static bool open_form(KvCache *cache, KvForm form, bool values, Error *error) {
    const KvPlan *plan = cache->plan;
    for (int i = 0; i < plan->entry_count; i++) {
        KvLayer *layer = &cache->entries[i];
        KvStore *store = values ? &layer->v_quant[form] : &layer->k_quant[form];
        if (!plan->group[layer->group].quantised || store->base) continue;
        const size_t bytes = quant_bytes(plan, i, form, values);
        const int kind = quant_kind(cache, plan->group[layer->group].backend, bytes, error);
        if (kind < 0) return false;
        (values ? cache->v_kinds : cache->k_kinds)[i][form] = kind;
        *store = (KvStore){page_pool_base(cache->pool, kind), bytes};
    }
    return true;
}

static bool open_stores(KvCache *cache, const KvFormat *format, Error *error) {
    for (KvForm form = format->k; form <= largest_k(format); form++)
        if (!open_form(cache, form, false, error)) return false;
    return open_form(cache, format->v, true, error);
}

/* ---- the quantised pages of a sequence ---- */

static void free_quant(KvQuantPages *quant, int layers) {
    if (!quant) return;
    for (int i = 0; quant->layers && i < layers; i++) free(quant->layers[i].bias_pairs);
    if (quant->k_pages) free(quant->k_pages[0]);
    free(quant->k_pages);
    free(quant->layers);
    free(quant);
}

/* One block of tables for keys and values of each entry; those of entries that are not quantised stay empty. */
static bool open_tables(KvCache *cache, KvQuantPages *quant) {
    const size_t layers = (size_t)cache->plan->entry_count, pages = (size_t)cache->table_pages;
    quant->layers = calloc(layers, sizeof *quant->layers);
    quant->k_pages = calloc(2 * layers, sizeof *quant->k_pages);
    int32_t *table = quant->k_pages ? malloc(2 * layers * pages * sizeof *table) : NULL;
    if (quant->k_pages) quant->k_pages[0] = table;
    if (!quant->layers || !table) return false;
    memset(table, 0xff, 2 * layers * pages * sizeof *table); /* −1 everywhere */
    for (size_t i = 0; i < 2 * layers; i++) quant->k_pages[i] = table + i * pages;
    quant->v_pages = quant->k_pages + layers;
    for (int i = 0; i < (int)layers; i++) {
        if (!kv_entry_quantised(cache->plan, i)) continue;
        quant->layers[i].bias_pairs = calloc((size_t)cache->entries[i].layout.kv_heads, sizeof(uint64_t));
        if (!quant->layers[i].bias_pairs) return false;
    }
    return true;
}

bool kv_quant_pages_open(KvCache *cache, const KvFormat *format, KvSequence *sequence, Error *error) {
    CHECK(format->after % KV_PAGE_TOKENS == 0 && format->hot % KV_PAGE_TOKENS == 0 && format->hot > 0);
    CHECK(format->sink % KV_PAGE_TOKENS == 0 && format->sink >= 0 && format->after >= format->sink);
    if (!open_stores(cache, format, error)) return false;
    KvQuantPages *quant = calloc(1, sizeof *quant);
    if (!quant || !open_tables(cache, quant)) {
        free_quant(quant, cache->plan->entry_count);
        return fail(error, ERROR_MEMORY, "no memory for the page tables of a quantised sequence");
    }
    quant->format = *format;
    quant->end = quant->freed = format->sink;
    quant->view = (KvQuantView){.after = format->after,
        .hot = format->hot,
        .sink = format->sink,
        .layers = quant->layers,
        .k_pages = quant->k_pages,
        .v_pages = quant->v_pages};
    sequence->quant = quant;
    return true;
}

static void release_quant(KvCache *cache, KvQuantPages *quant, int first, int end) {
    for (int i = 0; i < cache->plan->entry_count; i++) {
        if (!kv_entry_quantised(cache->plan, i)) continue;
        page_release_range(cache->pool, cache->k_kinds[i][quant->layers[i].k], quant->k_pages[i], first, end);
        page_release_range(cache->pool, cache->v_kinds[i][quant->layers[i].v], quant->v_pages[i], first, end);
    }
}

void kv_quant_pages_close(KvCache *cache, KvSequence *sequence) {
    KvQuantPages *quant = sequence->quant;
    if (!quant) return;
    release_quant(cache, quant, 0, quant->end / KV_PAGE_TOKENS);
    free_quant(quant, cache->plan->entry_count);
    sequence->quant = NULL;
}

/* ---- use ---- */

static void add_use(const KvCache *cache, KvUse *use, KvForm form, int kind, int pages) {
    use->pages[form] += (uint64_t)pages;
    use->bytes[form] += (size_t)pages * page_pool_page_bytes(cache->pool, kind);
}

/* The form of a kind of quantised pages: of the first entry that uses the kind. */
static KvForm kind_form(const KvCache *cache, int kind) {
    for (int i = 0; i < cache->plan->entry_count; i++)
        for (int form = KV_FULL + 1; form < KV_FORMS; form++) {
            const KvLayer *l = &cache->entries[i];
            if (l->k_quant[form].base && cache->k_kinds[i][form] == kind)
                return kv_quant_half(&l->layout, (KvForm)form, false).form;
            if (l->v_quant[form].base && cache->v_kinds[i][form] == kind)
                return kv_quant_half(&l->layout, (KvForm)form, true).form;
        }
    return KV_FULL;
}

void kv_use(const KvCache *cache, KvUse *use) {
    const int quantised = cache->first_quant_kind;
    for (int kind = 0; kind < quantised + cache->quant_kind_count; kind++)
        add_use(
            cache, use, kind < quantised ? KV_FULL : kind_form(cache, kind), kind, page_pool_pages(cache->pool, kind));
}

void kv_sequence_use(const KvCache *cache, const KvSequence *sequence, KvUse *use) {
    const KvPlan *plan = cache->plan;
    for (int g = 0; sequence->tables && g < plan->group_count; g++) {
        const int pages = kv_group_pages(plan, g, sequence->reserved);
        for (int page = 0; page < pages; page++) add_use(cache, use, KV_FULL, g, sequence->tables[g][page] >= 0);
    }
    const KvQuantPages *quant = sequence->quant;
    const int pages = quant ? (quant->end - quant->format.sink) / KV_PAGE_TOKENS : 0;
    for (int i = 0; pages && i < plan->entry_count; i++) {
        if (!kv_entry_quantised(plan, i)) continue;
        const KvQuant *layer = &quant->layers[i];
        use->raised += layer->k > quant->format.k;
        use->noise = layer->noise > use->noise ? layer->noise : use->noise;
        const KvLayout *l = &cache->entries[i].layout;
        add_use(cache, use, kv_quant_half(l, layer->k, false).form, cache->k_kinds[i][layer->k], pages);
        add_use(cache, use, kv_quant_half(l, layer->v, true).form, cache->v_kinds[i][layer->v], pages);
    }
}

/* ---- deciding ---- */

static bool is_listed(const KvFormat *format, int layer) {
    return format->raise == KV_RAISE_LISTED && layer < KV_LAYERS_MAX && format->raised[layer / 64] >> layer % 64 & 1;
}

/* Entries from `first` on that go to one backend in one call, and that backend; NULL: none of them is quantised. */
static int entries_together(const KvPlan *plan, int first, Backend **backend) {
    int end = first;
    *backend = NULL;
    for (; end < plan->entry_count; end++) {
        if (!kv_entry_quantised(plan, end)) continue;
        Backend *own = plan->group[plan->entries[end].group].backend;
        if (*backend && own != *backend) break;
        *backend = own;
    }
    return end - first;
}

/* Decides the form of each entry from the pages before `after`. */
static void calibration(KvCache *cache, KvSequence *sequence) {
    const KvPlan *plan = cache->plan;
    KvQuantPages *quant = sequence->quant;
    for (int first = 0, count; first < plan->entry_count; first += count) {
        Backend *backend;
        int items = 0;
        count = entries_together(plan, first, &backend);
        for (int i = first; i < first + count; i++) {
            if (!kv_entry_quantised(plan, i)) continue;
            quant->layers[i].k = quant->format.k;
            quant->layers[i].v = quant->format.v;
            cache->calibration[items++] = (KvCalibration){.layer = &cache->entries[i],
                .table = sequence->tables[cache->entries[i].group],
                .tokens = quant->format.after,
                .raise = quant->format.raise == KV_RAISE_MEASURED,
                .code = &quant->layers[i]};
        }
        if (items > 0) backend->ops->kv_calibrate(backend, items, cache->calibration);
    }
}

static void activate(KvCache *cache, KvSequence *sequence) {
    KvQuantPages *quant = sequence->quant;
    const KvFormat *format = &quant->format;
    calibration(cache, sequence);
    for (int i = 0; i < cache->plan->entry_count; i++) {
        if (!kv_entry_quantised(cache->plan, i)) continue;
        KvQuant *code = &quant->layers[i];
        if (is_listed(format, cache->plan->layers[i]) && code->k < KV_Q6) code->k++;
        CHECK(code->k >= format->k && code->k <= largest_k(format));
    }
    quant->active = true;
}

/* ---- quantising ---- */

static void encode_page(KvCache *cache, const KvSequence *sequence, int page) {
    const KvPlan *plan = cache->plan;
    const KvQuantPages *quant = sequence->quant;
    for (int first = 0, count; first < plan->entry_count; first += count) {
        Backend *backend;
        int items = 0;
        count = entries_together(plan, first, &backend);
        for (int i = first; i < first + count; i++) {
            if (!kv_entry_quantised(plan, i)) continue;
            cache->encode[items++] = (KvQuantise){.layer = &cache->entries[i],
                .code = &quant->layers[i],
                .position = page * KV_PAGE_TOKENS,
                .from = sequence->tables[cache->entries[i].group][page],
                .k_to = quant->k_pages[i][page],
                .v_to = quant->v_pages[i][page]};
        }
        if (items > 0) backend->ops->kv_quantise(backend, items, cache->encode);
    }
}

static bool quantise_page(KvCache *cache, KvSequence *sequence, int page, Error *error) {
    KvQuantPages *quant = sequence->quant;
    for (int i = 0; i < cache->plan->entry_count; i++) {
        if (!kv_entry_quantised(cache->plan, i)) continue;
        int32_t *k = &quant->k_pages[i][page], *v = &quant->v_pages[i][page];
        *k = page_take(cache->pool, cache->k_kinds[i][quant->layers[i].k]);
        *v = *k < 0 ? -1 : page_take(cache->pool, cache->v_kinds[i][quant->layers[i].v]);
        if (*v >= 0) continue;
        release_quant(cache, quant, page, page + 1);
        return page_pool_full(cache->pool, error);
    }
    encode_page(cache, sequence, page);
    quant->end = (page + 1) * KV_PAGE_TOKENS;
    return true;
}

int kv_step_rows(const KvSequence *sequence) {
    if (!sequence->quant) return INT_MAX;
    const KvFormat *format = &sequence->quant->format;
    const int length = sequence->length;
    if (length < format->after) return format->after - length;
    /* The pages that the last row reads in quantised form are full now. */
    return length / KV_PAGE_TOKENS * KV_PAGE_TOKENS + KV_PAGE_TOKENS + format->hot - length;
}

bool kv_quant_pages_reserve(KvCache *cache, KvSequence *sequence, int tokens, Error *error) {
    KvQuantPages *quant = sequence->quant;
    if (!quant || tokens == 0 || sequence->length + tokens <= quant->format.after) return true;
    if (!quant->active) activate(cache, sequence);
    const int end = kv_cold_end(&quant->view, sequence->length + tokens - 1);
    CHECK(end <= sequence->length || end == quant->format.sink);
    for (int page = quant->end / KV_PAGE_TOKENS; page < end / KV_PAGE_TOKENS; page++)
        if (!quantise_page(cache, sequence, page, error)) return false;
    return true;
}

/* ---- full-precision pages ---- */

/* Quantises and frees one page at a time, so never more than one has both forms. A page for which there is no memory
 * now is quantised by the step that reads it so. */
void kv_quant_pages_advance(KvCache *cache, KvSequence *sequence) {
    KvQuantPages *quant = sequence->quant;
    if (!quant || !quant->active) return;
    const int end = kv_cold_end(&quant->view, sequence->length);
    Error full;
    for (; quant->freed < end; quant->freed += KV_PAGE_TOKENS) {
        const int page = quant->freed / KV_PAGE_TOKENS;
        if (quant->freed == quant->end && !quantise_page(cache, sequence, page, &full)) return;
        for (int g = 0; g < cache->plan->group_count; g++)
            if (cache->plan->group[g].quantised)
                page_release_range(cache->pool, g, sequence->tables[g], page, page + 1);
    }
}

/* The position from which rows at `length` and later read full-precision pages. */
static int full_precision_from(const KvQuantPages *quant, int length) {
    return quant->active ? kv_cold_end(&quant->view, length) : quant->format.sink;
}

bool kv_quant_pages_can_truncate(const KvCache *cache, const KvSequence *sequence, int length) {
    const KvQuantPages *quant = sequence->quant;
    return !quant || length <= quant->format.sink || full_precision_from(quant, length) >= quant->freed;
}

void kv_quant_pages_truncate(KvCache *cache, KvSequence *sequence, int length) {
    KvQuantPages *quant = sequence->quant;
    if (!quant) return;
    const int full = length / KV_PAGE_TOKENS * KV_PAGE_TOKENS; /* a page that is cut loses its quantised form */
    if (quant->end > full && quant->end > quant->format.sink) {
        const int end = full > quant->format.sink ? full : quant->format.sink;
        release_quant(cache, quant, end / KV_PAGE_TOKENS, quant->end / KV_PAGE_TOKENS);
        quant->end = end;
    }
    if (quant->freed > quant->end) quant->freed = quant->end;
    if (length >= quant->format.after) return;
    /* The form of entries follows from the first `after` tokens, which may change. */
    release_quant(cache, quant, quant->format.sink / KV_PAGE_TOKENS, quant->end / KV_PAGE_TOKENS);
    quant->end = quant->format.sink;
    quant->active = false;
}

void kv_quant_pages_fork(KvCache *cache, const KvSequence *from, KvSequence *to) {
    if (!from->quant) return;
    const KvQuantPages *a = from->quant;
    KvQuantPages *b = to->quant;
    b->active = a->active;
    b->end = a->end;
    b->freed = a->freed;
    for (int i = 0; i < cache->plan->entry_count; i++) {
        if (!kv_entry_quantised(cache->plan, i)) continue;
        uint64_t *pairs = b->layers[i].bias_pairs;
        memcpy(pairs, a->layers[i].bias_pairs, (size_t)cache->entries[i].layout.kv_heads * sizeof *pairs);
        b->layers[i] = a->layers[i];
        b->layers[i].bias_pairs = pairs;
        for (int page = a->format.sink / KV_PAGE_TOKENS; page < a->end / KV_PAGE_TOKENS; page++) {
            b->k_pages[i][page] = a->k_pages[i][page];
            b->v_pages[i][page] = a->v_pages[i][page];
            page_retain(cache->pool, cache->k_kinds[i][a->layers[i].k], a->k_pages[i][page]);
            page_retain(cache->pool, cache->v_kinds[i][a->layers[i].v], a->v_pages[i][page]);
        }
    }
}
