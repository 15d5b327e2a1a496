#include "engine/media.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/math.h"

/* ---- items ---- */

static MediaItem *new_item(const char *what, Error *error) {
    MediaItem *item = calloc(1, sizeof *item);
    if (item)
        atomic_init(&item->references, 1);
    else
        fail(error, ERROR_MEMORY, "no memory for %s", what);
    return item;
}

MediaItem *media_item_new(Image *image, const ImageLayout *layout, Error *error) {
    return media_item_new_frames(image, &(Image){0}, layout, error);
}

MediaItem *media_item_new_frames(Image *image, Image *second, const ImageLayout *layout, Error *error) {
    MediaItem *item = new_item("an image", error);
    if (!item) {
        image_free(image);
        image_free(second);
        return NULL;
    }
    item->image = *image;
    item->second = *second;
    item->layout = *layout;
    item->tokens = layout->tokens;
    *image = *second = (Image){0};
    const int sizes[] = {layout->width, layout->height, layout->rows, layout->columns, layout->tokens};
    const size_t bytes = (size_t)layout->width * (size_t)layout->height * 3;
    Sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, sizes, sizeof sizes);
    sha256_add(&sha, item->image.rgb, bytes);
    if (item->second.rgb) sha256_add(&sha, item->second.rgb, bytes);
    sha256_end(&sha, item->digest);
    return item;
}

MediaItem *media_item_new_audio(Audio *audio, int tokens, Error *error) {
    static const char kind[] = "audio";
    MediaItem *item = new_item(kind, error);
    if (!item) {
        audio_free(audio);
        return NULL;
    }
    item->audio = *audio;
    item->tokens = tokens;
    *audio = (Audio){0};
    Sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, kind, sizeof kind);
    sha256_add(&sha, item->audio.samples, (size_t)item->audio.count * sizeof *item->audio.samples);
    sha256_end(&sha, item->digest);
    return item;
}

size_t media_item_bytes(const MediaItem *item) {
    const size_t pixels = (size_t)item->image.width * (size_t)item->image.height;
    return 3 * pixels * (item->second.rgb ? 2 : 1) + (size_t)item->audio.count * sizeof *item->audio.samples;
}

void media_item_retain(MediaItem *item) { atomic_fetch_add(&item->references, 1); }

void media_item_release(MediaItem *item) {
    if (!item || atomic_fetch_sub(&item->references, 1) > 1) return;
    image_free(&item->image);
    image_free(&item->second);
    audio_free(&item->audio);
    free(item);
}

uint64_t media_item_content(const MediaItem *item, int row, int time) {
    const int place[] = {row, time};
    static const uint64_t upper = (uint64_t)1 << 63; /* no token id has it */
    uint64_t seed;
    memcpy(&seed, item->digest, sizeof seed);
    return checksum64_seeded(seed, place, time < 0 ? sizeof row : sizeof place) | upper;
}

/* ---- the cache ---- */

typedef struct CachedRows {
    struct CachedRows *next; /* the most recently used first */
    uint8_t digest[SHA256_BYTES];
    float *rows; /* memory of MediaCache.to */
    size_t bytes;
} CachedRows;

struct MediaCache {
    const VisionSpec *vision; /* NULL: no images */
    const AudioSpec *audio;   /* NULL: no audio */
    Encoder *encoder;
    AudioEncoder *audio_encoder;
    Backend *to;
    MediaMemory memory;
    int largest; /* tokens of the largest image so far */
    CachedRows *first;
    size_t bytes;
    MediaItem *item;            /* the item that was begun, retained; NULL: none */
    double row_s[ENCODE_KINDS]; /* time of a row of the image by kind of slice; 0: not known yet */
    double part_s;              /* time of a part of the clip */
};

bool media_memory(const Model *model, int tokens_max, uint64_t most, bool device, MediaMemory *out, Error *error) {
    const VisionSpec *vision = model_spec(model)->vision;
    *out = (MediaMemory){.cache_bytes = vision || model_spec(model)->audio ? MEDIA_CACHE_BYTES : 0};
    if (!vision) return true;
    out->cache_bytes = most && most < MEDIA_CACHE_BYTES ? most : MEDIA_CACHE_BYTES;
    out->tokens_max = encoder_tokens_max(vision, tokens_max);
    for (;;) {
        if (!encoder_bytes(vision, out->tokens_max, device, &out->encoder_bytes, error)) return false;
        if (most == 0 || out->encoder_bytes <= most || out->tokens_max <= MEDIA_TOKENS_LEAST) return true;
        out->tokens_max = max_int(out->tokens_max / 2, MEDIA_TOKENS_LEAST);
    }
}

const MediaMemory *media_cache_memory(const MediaCache *cache) { return &cache->memory; }
size_t media_cache_bytes(const MediaCache *cache) { return cache->bytes; }

size_t media_cache_encoder_bytes(const MediaCache *cache) {
    if (cache->largest == 0) return 0;
    return (size_t)((double)cache->memory.encoder_bytes * cache->largest / cache->memory.tokens_max);
}

MediaCache *media_cache_open(
    const Model *model, Backend *to, const BackendOptions *options, const MediaMemory *memory, Error *error) {
    MediaCache *cache = calloc(1, sizeof *cache);
    if (!cache) {
        fail(error, ERROR_MEMORY, "no memory for a cache of images and audio");
        return NULL;
    }
    cache->vision = model_spec(model)->vision;
    cache->audio = model_spec(model)->audio;
    cache->to = to;
    cache->memory = *memory;
    if (cache->vision) cache->encoder = encoder_open(model, options, memory->tokens_max, error);
    if (cache->audio && (!cache->vision || cache->encoder))
        cache->audio_encoder = audio_encoder_open(model, options, error);
    if ((!cache->vision || cache->encoder) && (!cache->audio || cache->audio_encoder)) return cache;
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
    media_item_release(cache->item);
    encoder_close(cache->encoder);
    audio_encoder_close(cache->audio_encoder);
    free(cache);
}

const VisionSpec *media_cache_vision(const MediaCache *cache) { return cache->vision; }
const AudioSpec *media_cache_audio(const MediaCache *cache) { return cache->audio; }

int media_cache_row_sets(const MediaCache *cache, const MediaItem *item) {
    return media_item_is_audio(item) ? 1 : 1 + cache->vision->deepstack_count;
}

int64_t media_cache_set_floats(const MediaCache *cache, const MediaItem *item) {
    if (media_item_is_audio(item)) return item->tokens * cache->audio->embedding.rows;
    return encoder_row_floats(cache->vision, &item->layout) / media_cache_row_sets(cache, item);
}

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
    while (cache->first && cache->bytes + bytes > cache->memory.cache_bytes) {
        CachedRows **last = &cache->first;
        while ((*last)->next) last = &(*last)->next;
        CachedRows *entry = *last;
        *last = NULL;
        drop(cache, entry);
    }
}

static bool keep_rows(MediaCache *cache, const MediaItem *item, Error *error) {
    const int64_t floats = media_cache_row_sets(cache, item) * media_cache_set_floats(cache, item);
    const size_t bytes = (size_t)floats * sizeof(float);
    make_room(cache, bytes);
    CachedRows *entry = calloc(1, sizeof *entry);
    if (!entry) return fail(error, ERROR_MEMORY, "no memory for the rows of an image or of audio");
    entry->rows = cache->to->ops->alloc(cache->to, bytes, MEMORY_STEP, error);
    if (!entry->rows) {
        free(entry);
        return false;
    }
    if (media_item_is_audio(item))
        audio_encoder_take(cache->audio_encoder, cache->to, entry->rows);
    else
        encoder_take(cache->encoder, cache->to, entry->rows);
    entry->bytes = bytes;
    entry->next = cache->first;
    memcpy(entry->digest, item->digest, sizeof entry->digest);
    cache->first = entry;
    cache->bytes += bytes;
    return true;
}

static bool begin_item(MediaCache *cache, MediaItem *item, Error *error) {
    media_item_release(cache->item);
    media_item_retain(item);
    cache->item = item;
    cache->part_s = 0;
    memset(cache->row_s, 0, sizeof cache->row_s);
    if (media_item_is_audio(item)) return audio_encoder_begin(cache->audio_encoder, &item->audio, error);
    cache->largest = max_int(cache->largest, item->tokens);
    const Image *second = item->second.rgb ? &item->second : NULL;
    return encoder_begin(cache->encoder, &item->image, second, &item->layout, error);
}

static void end_item(MediaCache *cache) {
    media_item_release(cache->item);
    cache->item = NULL;
}

/* How many units of this time fit. */
static int units_within(double seconds, double unit_s, int least) {
    enum { MOST = 1 << 20 };
    return unit_s > 0 ? (int)fmin(fmax(seconds / unit_s, least), MOST) : least;
}

int media_rows_within(double seconds, double row_s) { return units_within(seconds, row_s, MEDIA_ROWS_LEAST); }

/* Computes a slice of the item that takes about so long. */
static bool continue_item(MediaCache *cache, double seconds, bool *done, Error *error) {
    const int64_t start = clock_ns();
    if (media_item_is_audio(cache->item)) {
        const int parts = units_within(seconds, cache->part_s, 1);
        const bool ok = audio_encoder_continue(cache->audio_encoder, parts, done, error);
        cache->part_s = (double)(clock_ns() - start) * 1e-9 / parts;
        return ok;
    }
    double *row_s = &cache->row_s[encoder_next(cache->encoder)];
    int rows = media_rows_within(seconds, *row_s);
    const bool ok = encoder_continue(cache->encoder, &rows, done, error);
    /* A few last rows say little of others. */
    if (*row_s == 0 || rows >= MEDIA_ROWS_LEAST) *row_s = (double)(clock_ns() - start) * 1e-9 / rows;
    return ok;
}

bool media_cache_work(MediaCache *cache, MediaItem *item, double seconds, Error *error) {
    const int64_t end_ns = clock_ns() + (int64_t)(seconds * 1e9);
    bool ok = true, done = false;
    if (!cache->item || memcmp(cache->item->digest, item->digest, sizeof item->digest) != 0)
        ok = begin_item(cache, item, error);
    for (int64_t left; ok && !done && (left = end_ns - clock_ns()) > 0;)
        ok = continue_item(cache, (double)left * 1e-9, &done, error);
    if (ok && done) ok = keep_rows(cache, cache->item, error);
    if (!ok || done) end_item(cache);
    return ok;
}
