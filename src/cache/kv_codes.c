/* The coded side of sequences: which pages are codes, made when a row first sees them so, exact pages given back when
 * no row needs them any more. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "backend/kv_code.h"
#include "cache/kv_internal.h"

/* ---- what can be coded, and its size ---- */

bool kv_layer_coded(const KvPlan *plan, int layer) {
    const KvLayer *l = &plan->layers[layer];
    return l->page_stride > 0 && l->index == layer && plan->group[l->group].coded;
}

/* Keys of a format take at most this form. */
static KvForm largest_k(const KvFormat *format) {
    if (format->raise == KV_RAISE_NONE || format->k >= KV_CODE6) return format->k;
    return format->raise == KV_RAISE_LISTED ? (KvForm)(format->k + 1) : KV_CODE6;
}

static size_t code_bytes(const KvPlan *plan, int layer, KvForm form, bool values) {
    const KvLayer *l = &plan->layers[layer];
    Backend *backend = plan->group[l->group].backend;
    return backend->ops->kv_code_bytes(backend, &l->layout, form, values);
}

size_t kv_code_bytes_for(const KvPlan *plan, const KvFormat *format, int group, int tokens) {
    size_t bytes = 0;
    for (int i = 0; i < plan->layer_count; i++)
        if (plan->layers[i].group == group && kv_layer_coded(plan, i))
            bytes += code_bytes(plan, i, largest_k(format), false) + code_bytes(plan, i, format->v, true);
    return bytes * (size_t)kv_pages(tokens);
}

/* ---- stores ---- */

/* The kind of pages of so many bytes on a backend, a new one if need be; −1: there is no room. */
static int code_kind(KvCache *cache, Backend *backend, size_t bytes, Error *error) {
    const int groups = cache->plan->group_count;
    for (int i = 0; i < cache->code_kind_count; i++)
        if (cache->code_kind[i].backend == backend && cache->code_kind[i].bytes == bytes) return groups + i;
    if (cache->code_kind_count == CODE_KINDS_MAX) {
        fail(error, ERROR_UNSUPPORTED, "more than %d sizes of coded pages", CODE_KINDS_MAX);
        return -1;
    }
    const int kind = page_pool_add(cache->pool, backend, bytes, SIZE_MAX, error);
    if (kind < 0) return -1;
    CHECK(kind == groups + cache->code_kind_count);
    cache->code_kind[cache->code_kind_count].backend = backend;
    cache->code_kind[cache->code_kind_count++].bytes = bytes;
    return kind;
}

/* Every coded layer has pages of this form from now on. */
static bool open_form(KvCache *cache, KvForm form, bool values, Error *error) {
    const KvPlan *plan = cache->plan;
    for (int i = 0; i < plan->layer_count; i++) {
        KvLayer *layer = &cache->layers[i];
        KvStore *store = values ? &layer->v_codes[form] : &layer->k_codes[form];
        if (!layer->page_stride || !plan->group[layer->group].coded || store->base) continue;
        const size_t bytes = code_bytes(plan, i, form, values);
        const int kind = code_kind(cache, plan->group[layer->group].backend, bytes, error);
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

/* ---- a sequence's codes ---- */

static void free_codes(KvCodes *codes, int layers) {
    if (!codes) return;
    for (int i = 0; codes->layers && i < layers; i++) free(codes->layers[i].bias_pairs);
    if (codes->k_pages) free(codes->k_pages[0]);
    free(codes->k_pages);
    free(codes->layers);
    free(codes);
}

/* One block of tables: keys' and values' of each layer; layers without codes have tables too, which stay empty. */
static bool open_tables(KvCache *cache, KvCodes *codes) {
    const size_t layers = (size_t)cache->plan->layer_count, pages = (size_t)cache->table_pages;
    codes->layers = calloc(layers, sizeof *codes->layers);
    codes->k_pages = calloc(2 * layers, sizeof *codes->k_pages);
    int32_t *table = codes->k_pages ? malloc(2 * layers * pages * sizeof *table) : NULL;
    if (codes->k_pages) codes->k_pages[0] = table;
    if (!codes->layers || !table) return false;
    memset(table, 0xff, 2 * layers * pages * sizeof *table); /* −1 everywhere */
    for (size_t i = 0; i < 2 * layers; i++) codes->k_pages[i] = table + i * pages;
    codes->v_pages = codes->k_pages + layers;
    for (int i = 0; i < (int)layers; i++) {
        if (!kv_layer_coded(cache->plan, i)) continue;
        codes->layers[i].bias_pairs = calloc((size_t)cache->layers[i].layout.kv_heads, sizeof(uint64_t));
        if (!codes->layers[i].bias_pairs) return false;
    }
    return true;
}

bool kv_codes_open(KvCache *cache, const KvFormat *format, KvSequence *sequence, Error *error) {
    CHECK(format->after % KV_PAGE_TOKENS == 0 && format->hot % KV_PAGE_TOKENS == 0 && format->hot > 0);
    CHECK(format->sink % KV_PAGE_TOKENS == 0 && format->sink >= 0 && format->after >= format->sink);
    if (!open_stores(cache, format, error)) return false;
    KvCodes *codes = calloc(1, sizeof *codes);
    if (!codes || !open_tables(cache, codes)) {
        free_codes(codes, cache->plan->layer_count);
        return fail(error, ERROR_MEMORY, "no memory for the page tables of a coded sequence");
    }
    codes->format = *format;
    codes->end = codes->freed = format->sink;
    codes->coding = (KvCoding){.after = format->after,
        .hot = format->hot,
        .sink = format->sink,
        .layers = codes->layers,
        .k_pages = codes->k_pages,
        .v_pages = codes->v_pages};
    sequence->codes = codes;
    return true;
}

static void release_codes(KvCache *cache, KvCodes *codes, int first, int end) {
    for (int i = 0; i < cache->plan->layer_count; i++) {
        if (!kv_layer_coded(cache->plan, i)) continue;
        page_release_range(cache->pool, cache->k_kinds[i][codes->layers[i].k], codes->k_pages[i], first, end);
        page_release_range(cache->pool, cache->v_kinds[i][codes->layers[i].v], codes->v_pages[i], first, end);
    }
}

void kv_codes_close(KvCache *cache, KvSequence *sequence) {
    KvCodes *codes = sequence->codes;
    if (!codes) return;
    release_codes(cache, codes, 0, codes->end / KV_PAGE_TOKENS);
    free_codes(codes, cache->plan->layer_count);
    sequence->codes = NULL;
}

/* ---- what is in use ---- */

static void add_use(const KvCache *cache, KvUse *use, KvForm form, int kind, int pages) {
    use->pages[form] += (uint64_t)pages;
    use->bytes[form] += (size_t)pages * page_pool_page_bytes(cache->pool, kind);
}

/* The form that a kind of coded pages is for: a size says it, unless layers differ much. */
static KvForm kind_form(const KvCache *cache, int kind) {
    for (int i = 0; i < cache->plan->layer_count; i++)
        for (int form = KV_EXACT + 1; form < KV_FORMS; form++) {
            const KvLayer *l = &cache->layers[i];
            if (l->k_codes[form].base && cache->k_kinds[i][form] == kind)
                return kv_code_half(&l->layout, (KvForm)form, false).form;
            if (l->v_codes[form].base && cache->v_kinds[i][form] == kind)
                return kv_code_half(&l->layout, (KvForm)form, true).form;
        }
    return KV_EXACT;
}

void kv_use(const KvCache *cache, KvUse *use) {
    const int groups = cache->plan->group_count;
    for (int kind = 0; kind < groups + cache->code_kind_count; kind++)
        add_use(
            cache, use, kind < groups ? KV_EXACT : kind_form(cache, kind), kind, page_pool_pages(cache->pool, kind));
}

void kv_sequence_use(const KvCache *cache, const KvSequence *sequence, KvUse *use) {
    const KvPlan *plan = cache->plan;
    for (int g = 0; sequence->tables && g < plan->group_count; g++) {
        const int pages = plan->group[g].kind == CACHE_STATE ? sequence->length > 0 : kv_pages(sequence->reserved);
        for (int page = 0; page < pages; page++) add_use(cache, use, KV_EXACT, g, sequence->tables[g][page] >= 0);
    }
    const KvCodes *codes = sequence->codes;
    const int pages = codes ? (codes->end - codes->format.sink) / KV_PAGE_TOKENS : 0;
    for (int i = 0; pages && i < plan->layer_count; i++) {
        if (!kv_layer_coded(plan, i)) continue;
        const KvCode *layer = &codes->layers[i];
        use->raised += layer->k > codes->format.k;
        use->noise = layer->noise > use->noise ? layer->noise : use->noise;
        const KvLayout *l = &cache->layers[i].layout;
        add_use(cache, use, kv_code_half(l, layer->k, false).form, cache->k_kinds[i][layer->k], pages);
        add_use(cache, use, kv_code_half(l, layer->v, true).form, cache->v_kinds[i][layer->v], pages);
    }
}

/* ---- deciding ---- */

static bool is_listed(const KvFormat *format, int layer) {
    return format->raise == KV_RAISE_LISTED && layer < KV_LAYERS_MAX && format->raised[layer / 64] >> layer % 64 & 1;
}

/* How many layers from `first` on can be told to one backend at once, and to which; NULL: none of them is coded. */
static int layers_together(const KvPlan *plan, int first, Backend **backend) {
    int end = first;
    *backend = NULL;
    for (; end < plan->layer_count; end++) {
        if (!kv_layer_coded(plan, end)) continue;
        Backend *own = plan->group[plan->layers[end].group].backend;
        if (*backend && own != *backend) break;
        *backend = own;
    }
    return end - first;
}

/* What the pages before `after` say of each layer. */
static void survey(KvCache *cache, KvSequence *sequence) {
    const KvPlan *plan = cache->plan;
    KvCodes *codes = sequence->codes;
    for (int first = 0, count; first < plan->layer_count; first += count) {
        Backend *backend;
        int items = 0;
        count = layers_together(plan, first, &backend);
        for (int i = first; i < first + count; i++) {
            if (!kv_layer_coded(plan, i)) continue;
            codes->layers[i].k = codes->format.k;
            codes->layers[i].v = codes->format.v;
            cache->survey[items++] = (KvSurvey){.layer = &cache->layers[i],
                .table = sequence->tables[cache->layers[i].group],
                .tokens = codes->format.after,
                .raise = codes->format.raise == KV_RAISE_MEASURED,
                .code = &codes->layers[i]};
        }
        if (items > 0) backend->ops->kv_survey(backend, items, cache->survey);
    }
}

static void activate(KvCache *cache, KvSequence *sequence) {
    KvCodes *codes = sequence->codes;
    const KvFormat *format = &codes->format;
    survey(cache, sequence);
    for (int i = 0; i < cache->plan->layer_count; i++) {
        if (!kv_layer_coded(cache->plan, i)) continue;
        KvCode *code = &codes->layers[i];
        if (is_listed(format, i) && code->k < KV_CODE6) code->k++;
        CHECK(code->k >= format->k && code->k <= largest_k(format));
    }
    codes->active = true;
}

/* ---- coding ---- */

static void encode_page(KvCache *cache, const KvSequence *sequence, int page) {
    const KvPlan *plan = cache->plan;
    const KvCodes *codes = sequence->codes;
    for (int first = 0, count; first < plan->layer_count; first += count) {
        Backend *backend;
        int items = 0;
        count = layers_together(plan, first, &backend);
        for (int i = first; i < first + count; i++) {
            if (!kv_layer_coded(plan, i)) continue;
            cache->encode[items++] = (KvEncode){.layer = &cache->layers[i],
                .code = &codes->layers[i],
                .position = page * KV_PAGE_TOKENS,
                .from = sequence->tables[cache->layers[i].group][page],
                .k_to = codes->k_pages[i][page],
                .v_to = codes->v_pages[i][page]};
        }
        if (items > 0) backend->ops->kv_encode(backend, items, cache->encode);
    }
}

static bool code_page(KvCache *cache, KvSequence *sequence, int page, Error *error) {
    KvCodes *codes = sequence->codes;
    for (int i = 0; i < cache->plan->layer_count; i++) {
        if (!kv_layer_coded(cache->plan, i)) continue;
        int32_t *k = &codes->k_pages[i][page], *v = &codes->v_pages[i][page];
        *k = page_take(cache->pool, cache->k_kinds[i][codes->layers[i].k]);
        *v = *k < 0 ? -1 : page_take(cache->pool, cache->v_kinds[i][codes->layers[i].v]);
        if (*v >= 0) continue;
        release_codes(cache, codes, page, page + 1);
        return page_pool_full(cache->pool, error);
    }
    encode_page(cache, sequence, page);
    codes->end = (page + 1) * KV_PAGE_TOKENS;
    return true;
}

int kv_step_rows(const KvSequence *sequence) {
    if (!sequence->codes) return INT_MAX;
    const KvFormat *format = &sequence->codes->format;
    const int length = sequence->length;
    if (length < format->after) return format->after - length;
    /* The last row's codes end no later than the pages that are full now. */
    return length / KV_PAGE_TOKENS * KV_PAGE_TOKENS + KV_PAGE_TOKENS + format->hot - length;
}

bool kv_codes_reserve(KvCache *cache, KvSequence *sequence, int tokens, Error *error) {
    KvCodes *codes = sequence->codes;
    if (!codes || tokens == 0 || sequence->length + tokens <= codes->format.after) return true;
    if (!codes->active) activate(cache, sequence);
    const int end = kv_cold_end(&codes->coding, sequence->length + tokens - 1);
    CHECK(end <= sequence->length || end == codes->format.sink);
    for (int page = codes->end / KV_PAGE_TOKENS; page < end / KV_PAGE_TOKENS; page++)
        if (!code_page(cache, sequence, page, error)) return false;
    return true;
}

/* ---- exact pages ---- */

/* One page after another becomes codes and is given back, so there is never more than one in both forms. What finds no
 * room now is coded by the step that sees it so. */
void kv_codes_advance(KvCache *cache, KvSequence *sequence) {
    KvCodes *codes = sequence->codes;
    if (!codes || !codes->active) return;
    const int end = kv_cold_end(&codes->coding, sequence->length);
    Error full;
    for (; codes->freed < end; codes->freed += KV_PAGE_TOKENS) {
        const int page = codes->freed / KV_PAGE_TOKENS;
        if (codes->freed == codes->end && !code_page(cache, sequence, page, &full)) return;
        for (int g = 0; g < cache->plan->group_count; g++)
            if (cache->plan->group[g].coded) page_release_range(cache->pool, g, sequence->tables[g], page, page + 1);
    }
}

/* Rows at `length` and later see exactly what lies from here on. */
static int exact_from(const KvCodes *codes, int length) {
    return codes->active ? kv_cold_end(&codes->coding, length) : codes->format.sink;
}

bool kv_codes_can_truncate(const KvCache *cache, const KvSequence *sequence, int length) {
    const KvCodes *codes = sequence->codes;
    return !codes || length <= codes->format.sink || exact_from(codes, length) >= codes->freed;
}

void kv_codes_truncate(KvCache *cache, KvSequence *sequence, int length) {
    KvCodes *codes = sequence->codes;
    if (!codes) return;
    const int full = length / KV_PAGE_TOKENS * KV_PAGE_TOKENS; /* codes of a page that is cut are void */
    if (codes->end > full && codes->end > codes->format.sink) {
        const int end = full > codes->format.sink ? full : codes->format.sink;
        release_codes(cache, codes, end / KV_PAGE_TOKENS, codes->end / KV_PAGE_TOKENS);
        codes->end = end;
    }
    if (codes->freed > codes->end) codes->freed = codes->end;
    if (length >= codes->format.after) return;
    /* What the sequence is coded like follows from its first tokens, which may become others. */
    release_codes(cache, codes, codes->format.sink / KV_PAGE_TOKENS, codes->end / KV_PAGE_TOKENS);
    codes->end = codes->format.sink;
    codes->active = false;
}

void kv_codes_fork(KvCache *cache, const KvSequence *from, KvSequence *to) {
    if (!from->codes) return;
    const KvCodes *a = from->codes;
    KvCodes *b = to->codes;
    b->active = a->active;
    b->end = a->end;
    b->freed = a->freed;
    for (int i = 0; i < cache->plan->layer_count; i++) {
        if (!kv_layer_coded(cache->plan, i)) continue;
        uint64_t *pairs = b->layers[i].bias_pairs;
        memcpy(pairs, a->layers[i].bias_pairs, (size_t)cache->layers[i].layout.kv_heads * sizeof *pairs);
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
