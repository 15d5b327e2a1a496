#include "cache/kv_page.h"

#include "cache/kv_internal.h"

/* A layer with pages of its own. */
static bool own_pages(const KvLayer *layer, int index) { return layer->page_stride > 0 && layer->index == index; }

bool kv_page_possible(const KvPlan *plan) {
    for (int g = 0; g < plan->group_count; g++)
        if (plan->group[g].kind != CACHE_PAGES) return false;
    return plan->group_count > 0;
}

size_t kv_page_bytes(const KvPlan *plan) {
    size_t bytes = 0;
    for (int i = 0; i < plan->layer_count; i++)
        if (own_pages(&plan->layers[i], i)) bytes += kv_canonical_bytes(&plan->layers[i].layout, KV_PAGE_TOKENS);
    return bytes;
}

void kv_page_read(const KvCache *cache, const KvSequence *sequence, int page, void *out) {
    const KvPlan *plan = cache->plan;
    const KvLayer *layers = cache->layers;
    uint8_t *at = out;
    for (int i = 0; i < plan->layer_count; i++) {
        if (!own_pages(&layers[i], i)) continue;
        Backend *backend = plan->group[layers[i].group].backend;
        const int32_t number = sequence->tables[layers[i].group][page];
        CHECK(number >= 0);
        backend->ops->page_read(backend, &layers[i], number, KV_PAGE_TOKENS, at);
        at += kv_canonical_bytes(&layers[i].layout, KV_PAGE_TOKENS);
    }
}

bool kv_page_write(KvCache *cache, KvSequence *sequence, const void *from, Error *error) {
    const KvPlan *plan = cache->plan;
    const KvLayer *layers = cache->layers;
    const int page = sequence->length / KV_PAGE_TOKENS, tokens = (page + 1) * KV_PAGE_TOKENS - sequence->length;
    if (!kv_reserve(cache, sequence, tokens, error)) return false;
    const uint8_t *at = from;
    for (int i = 0; i < plan->layer_count; i++) {
        if (!own_pages(&layers[i], i)) continue;
        Backend *backend = plan->group[layers[i].group].backend;
        backend->ops->page_write(backend, &layers[i], sequence->tables[layers[i].group][page], KV_PAGE_TOKENS, at);
        at += kv_canonical_bytes(&layers[i].layout, KV_PAGE_TOKENS);
    }
    kv_advance(cache, sequence, tokens);
    return true;
}
