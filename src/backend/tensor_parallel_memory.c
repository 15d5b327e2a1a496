/* Addresses, memory and pages over the ranks. */
#include "backend/tensor_parallel_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

Backend *parallel_enter(Parallel *t, int part) {
    Backend *one = t->part[part];
    if (one->ops->enter) one->ops->enter(one);
    return one;
}

/* ---- addresses ---- */

static const Region *region_of(const Parallel *t, const void *memory) {
    const uint8_t *at = memory;
    for (int i = 0; i < t->region_count; i++) {
        const Region *r = &t->region[i];
        if (at >= r->start && at < r->start + r->bytes) return r;
    }
    return NULL;
}

void *parallel_at(const Parallel *t, int part, const void *memory) {
    if (!memory) return NULL;
    const Region *r = region_of(t, memory);
    CHECK(r != NULL);
    const size_t offset = (size_t)((const uint8_t *)memory - r->start);
    return r->part[part] + (r->divided ? offset / (size_t)t->count : offset);
}

static const float *vector_at(const float *vector, int part) {
    return vector ? ((const Shared *)(const void *)vector)->data[part] : NULL;
}

KvLayer parallel_layer(const Parallel *t, int part, const KvLayer *layer) {
    KvLayer own = *layer;
    const size_t parts = (size_t)t->count;
    own.layout.kv_heads /= t->count;
    own.layout.anchor_bytes /= parts;
    own.layout.row_bytes /= parts;
    own.base = parallel_at(t, part, layer->base);
    own.page_stride /= parts;
    own.layer_offset /= parts;
    own.k_bias = vector_at(layer->k_bias, part);
    own.rope = NULL; /* used by KV quantisation only, which ranks do not support */
    return own;
}

Region *parallel_region_open(Parallel *t, size_t bytes, bool divided, Error *error) {
    if (t->region_count == PARALLEL_REGIONS_MAX) {
        fail(error, ERROR_LIMIT, "more than %d pieces of memory on several devices", PARALLEL_REGIONS_MAX);
        return NULL;
    }
    void *start = mmap(NULL, bytes ? bytes : 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        fail(error, ERROR_MEMORY, "no addresses for %zu bytes", bytes);
        return NULL;
    }
    Region *r = &t->region[t->region_count++];
    *r = (Region){.start = start, .bytes = bytes ? bytes : 1, .divided = divided};
    return r;
}

void parallel_region_close(Parallel *t, Region *r) {
    munmap(r->start, r->bytes);
    *r = t->region[--t->region_count];
}

/* ---- memory ---- */

static void release_parts(Parallel *t, const Region *r) {
    for (int p = 0; p < t->count; p++) {
        Backend *part = parallel_enter(t, p);
        part->ops->release(part, r->part[p]);
    }
}

static void *parallel_alloc(Backend *backend, size_t bytes, MemoryOwner owner, Error *error) {
    Parallel *t = parallel_of(backend);
    const bool divided = owner == MEMORY_CACHE;
    Region *r = parallel_region_open(t, bytes, divided, error);
    if (!r) return NULL;
    bool ok = true;
    for (int p = 0; ok && p < t->count; p++) {
        Backend *part = parallel_enter(t, p);
        r->part[p] = part->ops->alloc(part, divided ? bytes / (size_t)t->count : bytes, owner, error);
        ok = r->part[p] != NULL;
    }
    if (ok) return r->start;
    release_parts(t, r);
    parallel_region_close(t, r);
    return NULL;
}

static void parallel_release(Backend *backend, void *memory) {
    Parallel *t = parallel_of(backend);
    if (!memory) return;
    Region *r = (Region *)region_of(t, memory);
    CHECK(r && r->start == memory);
    release_parts(t, r);
    parallel_region_close(t, r);
}

/* Bytes on each rank of a piece of `bytes` bytes. */
static size_t bytes_at(const Parallel *t, const void *memory, size_t bytes) {
    const Region *r = region_of(t, memory);
    CHECK(r != NULL);
    return r->divided ? bytes / (size_t)t->count : bytes;
}

static bool parallel_commit(Backend *backend, void *memory, size_t bytes) {
    Parallel *t = parallel_of(backend);
    bool ok = true;
    for (int p = 0; ok && p < t->count; p++) {
        Backend *part = parallel_enter(t, p);
        ok = !part->ops->commit || part->ops->commit(part, parallel_at(t, p, memory), bytes_at(t, memory, bytes));
    }
    return ok;
}

static void parallel_decommit(Backend *backend, void *memory, size_t bytes) {
    Parallel *t = parallel_of(backend);
    for (int p = 0; p < t->count; p++) {
        Backend *part = parallel_enter(t, p);
        part->ops->decommit(part, parallel_at(t, p, memory), bytes_at(t, memory, bytes));
    }
}

static void parallel_upload(Backend *backend, void *to, const void *from, size_t bytes) {
    Parallel *t = parallel_of(backend);
    CHECK(bytes_at(t, to, bytes) == bytes);
    for (int p = 0; p < t->count; p++) {
        Backend *part = parallel_enter(t, p);
        part->ops->upload(part, parallel_at(t, p, to), from, bytes);
    }
}

/* Undivided memory is the same on every rank. */
static void parallel_download(Backend *backend, void *to, const void *from, size_t bytes) {
    Parallel *t = parallel_of(backend);
    CHECK(bytes_at(t, from, bytes) == bytes);
    Backend *part = parallel_enter(t, 0);
    part->ops->download(part, to, parallel_at(t, 0, from), bytes);
}

static void parallel_copy(Backend *backend, void *to, const void *from, size_t bytes) {
    Parallel *t = parallel_of(backend);
    for (int p = 0; p < t->count; p++) {
        Backend *part = parallel_enter(t, p);
        part->ops->copy(part, parallel_at(t, p, to), parallel_at(t, p, from), bytes_at(t, from, bytes));
    }
}

/* ---- pages ---- */

static KvLayout layout_of(const Parallel *t, const KvLayout *layout) {
    KvLayout own = *layout;
    own.kv_heads /= t->count;
    return own;
}

static size_t parallel_kv_layer_bytes(Backend *backend, const KvLayout *layout) {
    Parallel *t = parallel_of(backend);
    const KvLayout own = layout_of(t, layout);
    const size_t room = kv_canonical_bytes(&own, KV_PAGE_TOKENS);
    CHECK(layout->kv_heads % t->count == 0); /* checked when the model was divided */
    if (room > t->page_bytes) {              /* allocated now: page calls cannot report an error */
        free(t->page);
        t->page = malloc(room);
        CHECK(t->page != NULL);
        t->page_bytes = room;
    }
    size_t bytes = 0;
    for (int p = 0; p < t->count; p++) {
        Backend *part = parallel_enter(t, p);
        bytes += part->ops->kv_layer_bytes(part, &own);
    }
    return bytes;
}

/* Copies one rank's heads of a page in canonical order into or out of the whole page, for the three arrays of a page in
 * turn. */
static void weave(const KvLayout *whole, int parts, int part, int tokens, uint8_t *all, uint8_t *own, bool in) {
    const size_t element = dtype_bytes(whole->dtype), heads = (size_t)(whole->kv_heads / parts);
    const size_t widths[] = {
        (size_t)whole->head_dim * element, (size_t)whole->value_dim * element, sizeof(float) /* energy */};
    for (int i = 0; i < 3; i++) {
        const size_t bytes = heads * widths[i];
        for (int token = 0; token < tokens; token++, own += bytes) {
            uint8_t *there = all + ((size_t)token * (size_t)parts + (size_t)part) * bytes;
            if (in)
                memcpy(own, there, bytes);
            else
                memcpy(there, own, bytes);
        }
        all += (size_t)tokens * (size_t)parts * bytes;
    }
}

/* A recurrent state is in the order of the ranks: only they know which of its numbers belong to which head. */
static uint8_t *own_state(const Parallel *t, const KvLayer *layer, int part, int tokens, const void *all) {
    return (uint8_t *)all + kv_canonical_bytes(&layer->layout, tokens) / (size_t)t->count * (size_t)part;
}

static bool parallel_page_read(Backend *backend, const KvLayer *layer, int32_t page, int tokens, void *out) {
    Parallel *t = parallel_of(backend);
    for (int p = 0; p < t->count; p++) {
        Backend *part = parallel_enter(t, p);
        const KvLayer own = parallel_layer(t, p, layer);
        if (layer->layout.kv_heads == 0) {
            if (!part->ops->page_read(part, &own, page, tokens, own_state(t, layer, p, tokens, out))) return false;
            continue;
        }
        if (!part->ops->page_read(part, &own, page, tokens, t->page)) return false;
        weave(&layer->layout, t->count, p, tokens, out, t->page, false);
    }
    return true;
}

static bool parallel_page_write(Backend *backend, const KvLayer *layer, int32_t page, int tokens, const void *from) {
    Parallel *t = parallel_of(backend);
    for (int p = 0; p < t->count; p++) {
        Backend *part = parallel_enter(t, p);
        const KvLayer own = parallel_layer(t, p, layer);
        if (layer->layout.kv_heads == 0) {
            if (!part->ops->page_write(part, &own, page, tokens, own_state(t, layer, p, tokens, from))) return false;
            continue;
        }
        weave(&layer->layout, t->count, p, tokens, (uint8_t *)from, t->page, true);
        if (!part->ops->page_write(part, &own, page, tokens, t->page)) return false;
    }
    return true;
}

/* No quantised pages: calibration decides over all heads of a layer, and no rank has all of them. */
static size_t parallel_kv_quant_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values) { return 0; }
static void parallel_kv_calibrate(Backend *backend, int count, const KvCalibration *calibrations) {}
static void parallel_kv_quantise(Backend *backend, int count, const KvQuantise *pages) {}

void parallel_memory(BackendOps *ops) {
    ops->alloc = parallel_alloc;
    ops->release = parallel_release;
    ops->commit = parallel_commit;
    ops->decommit = parallel_decommit;
    ops->upload = parallel_upload;
    ops->download = parallel_download;
    ops->copy = parallel_copy;
    ops->kv_layer_bytes = parallel_kv_layer_bytes;
    ops->page_read = parallel_page_read;
    ops->page_write = parallel_page_write;
    ops->kv_quant_bytes = parallel_kv_quant_bytes;
    ops->kv_calibrate = parallel_kv_calibrate;
    ops->kv_quantise = parallel_kv_quantise;
}
