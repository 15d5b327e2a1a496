/* Snapshots of recurrent groups: the anchors and first rows of a page, entry after entry. */
#include "cache/kv_internal.h"

size_t kv_snapshot_entry_bytes(const KvLayout *layout) {
    return (kv_canonical_bytes(layout, 1) + KV_ENTRY_ALIGN - 1) / KV_ENTRY_ALIGN * KV_ENTRY_ALIGN;
}

size_t kv_snapshot_bytes(const KvPlan *plan) {
    size_t bytes = 0;
    for (int g = 0; g < plan->group_count; g++) bytes += plan->group[g].snapshot_bytes;
    return bytes;
}

/* Copies the first row of every entry between a snapshot and a page. */
static void copy_entries(KvCache *cache, int group, int32_t snapshot, int32_t page, bool to_snapshot) {
    const KvPlan *plan = cache->plan;
    Backend *backend = plan->group[group].backend;
    const int kind = cache->snapshot_kinds[group];
    uint8_t *part = page_pool_base(cache->pool, kind) + (size_t)snapshot * page_pool_page_bytes(cache->pool, kind);
    for (int i = 0; i < plan->entry_count; i++) {
        const KvLayer *entry = &cache->entries[i];
        if (entry->group != group) continue;
        uint8_t *own = entry->base + (size_t)page * entry->page_stride + entry->layer_offset;
        const size_t bytes = kv_canonical_bytes(&entry->layout, 1);
        backend->ops->copy(backend, to_snapshot ? part : own, to_snapshot ? own : part, bytes);
        part += kv_snapshot_entry_bytes(&entry->layout);
    }
}

void kv_snapshot_write(KvCache *cache, int group, int32_t snapshot, int32_t page) {
    copy_entries(cache, group, snapshot, page, true);
}

void kv_snapshot_read(KvCache *cache, int group, int32_t snapshot, int32_t page) {
    copy_entries(cache, group, snapshot, page, false);
}
