#include "engine/media.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/math.h"

/* ---- items ---- */

MediaItem *media_item_new(Image *image, const ImageLayout *layout, Error *error) {
    MediaItem *item = calloc(1, sizeof *item);
    if (!item) {
        image_free(image);
        fail(error, ERROR_MEMORY, "no memory for an image");
        return NULL;
    }
    atomic_init(&item->references, 1);
    item->image = *image;
    item->layout = *layout;
    *image = (Image){0};
    const int sizes[] = {layout->width, layout->height, layout->rows, layout->columns, layout->tokens};
    Sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, sizes, sizeof sizes);
    sha256_add(&sha, item->image.rgb, (size_t)layout->width * (size_t)layout->height * 3);
    sha256_end(&sha, item->digest);
    return item;
}

void media_item_retain(MediaItem *item) { atomic_fetch_add(&item->references, 1); }

void media_item_release(MediaItem *item) {
    if (!item || atomic_fetch_sub(&item->references, 1) > 1) return;
    image_free(&item->image);
    free(item);
}

uint64_t media_item_content(const MediaItem *item, int row) {
    static const uint64_t upper = (uint64_t)1 << 63; /* no token id has it */
    uint64_t seed;
    memcpy(&seed, item->digest, sizeof seed);
    return checksum64_seeded(seed, &row, sizeof row) | upper;
}

/* ---- the cache ---- */

typedef struct CachedRows {
    struct CachedRows *next; /* the most recently used first */
    uint8_t digest[SHA256_BYTES];
    float *rows; /* memory of MediaCache.to */
    size_t bytes;
} CachedRows;

struct MediaCache {
    const VisionSpec *spec;
    Encoder *encoder;
    Backend *to;
    CachedRows *first;
    size_t bytes;
    bool working; /* an item was begun: */
    uint8_t digest[SHA256_BYTES];
    double layer_s; /* time of a layer of the item; 0: not known yet */
};

MediaCache *media_cache_open(
    const Model *model, Backend *to, const BackendOptions *options, int tokens_max, Error *error) {
    MediaCache *cache = calloc(1, sizeof *cache);
    if (!cache) {
        fail(error, ERROR_MEMORY, "no memory for a cache of images");
        return NULL;
    }
    cache->spec = model_spec(model)->vision;
    cache->to = to;
    cache->encoder = encoder_open(model, options, tokens_max, error);
    if (cache->encoder) return cache;
    media_cache_close(cache);
    return NULL;
}

static void drop(MediaCache *cache, CachedRows *entry) {
    cache->bytes -= entry->bytes;
    cache->to->ops->release(cache->to, entry->rows);
    free(entry);
}

void media_cache_close(MediaCache *cache) {
    if (!cache) return;
    for (CachedRows *entry = cache->first, *next; entry; entry = next) {
        next = entry->next;
        drop(cache, entry);
    }
    encoder_close(cache->encoder);
    free(cache);
}

const VisionSpec *media_cache_spec(const MediaCache *cache) { return cache->spec; }

const float *media_cache_rows(MediaCache *cache, const MediaItem *item) {
    for (CachedRows **at = &cache->first; *at; at = &(*at)->next) {
        CachedRows *entry = *at;
        if (memcmp(entry->digest, item->digest, sizeof item->digest) != 0) continue;
        *at = entry->next;
        entry->next = cache->first;
        cache->first = entry;
        return entry->rows;
    }
    return NULL;
}

/* Makes room for bytes more: entries at the end of the list leave. */
static void make_room(MediaCache *cache, size_t bytes) {
    while (cache->first && cache->bytes + bytes > MEDIA_CACHE_BYTES) {
        CachedRows **last = &cache->first;
        while ((*last)->next) last = &(*last)->next;
        CachedRows *entry = *last;
        *last = NULL;
        drop(cache, entry);
    }
}

static bool keep_rows(MediaCache *cache, const MediaItem *item, Error *error) {
    const size_t bytes = (size_t)encoder_row_floats(cache->spec, &item->layout) * sizeof(float);
    make_room(cache, bytes);
    CachedRows *entry = calloc(1, sizeof *entry);
    if (!entry) return fail(error, ERROR_MEMORY, "no memory for the rows of an image");
    entry->rows = cache->to->ops->alloc(cache->to, bytes, MEMORY_STEP, error);
    if (!entry->rows) {
        free(entry);
        return false;
    }
    encoder_take(cache->encoder, cache->to, entry->rows);
    entry->bytes = bytes;
    entry->next = cache->first;
    memcpy(entry->digest, item->digest, sizeof entry->digest);
    cache->first = entry;
    cache->bytes += bytes;
    return true;
}

bool media_cache_work(MediaCache *cache, MediaItem *item, Error *error) {
    enum { LAYERS_FIRST = 1, LAYERS_MOST = 1024 };
    if (!cache->working || memcmp(cache->digest, item->digest, sizeof item->digest) != 0) {
        cache->working = encoder_begin(cache->encoder, &item->image, &item->layout, error);
        memcpy(cache->digest, item->digest, sizeof item->digest);
        cache->layer_s = 0;
        return cache->working;
    }
    const double fitting = cache->layer_s > 0 ? MEDIA_SLICE_MS * 1e-3 / cache->layer_s : LAYERS_FIRST;
    const int layers = fitting < 1 ? 1 : fitting > LAYERS_MOST ? LAYERS_MOST : (int)fitting;
    const int64_t start = clock_ns();
    bool done = false;
    const bool ok = encoder_continue(cache->encoder, layers, &done, error);
    cache->layer_s = (double)(clock_ns() - start) * 1e-9 / layers;
    cache->working = ok && !done;
    return ok && (!done || keep_rows(cache, item, error));
}
