/* Images and audio of prompts, and the rows that the model's first layer reads for them: encoded once, kept in the
 * memory of that layer's backend up to a budget, the least recently used leave first. Items: any thread. The cache: the
 * engine thread. */
#pragma once
#include <stdatomic.h>

#include "base/sha256.h"
#include "model/audio_encoder.h"
#include "model/encoder.h"

enum {
    MEDIA_CACHE_BYTES = 256 << 20, /* memory for rows, or MEDIA_MEMORY_SHARE, if that is less; at least one item fits */
    MEDIA_MEMORY_SHARE = 8,        /* part of the memory, an eighth, that encoding the largest image may take */
    MEDIA_TOKENS_LEAST = 64,       /* images of so many tokens are taken with any memory */
    MEDIA_SLICE_MS = 100,          /* time for which an encoder works where no answers wait for it, about */
    MEDIA_ROWS_LEAST = 32,         /* rows of a slice, however slow: fewer cost nearly as much */
};

/* An image or a clip of audio as its encoder takes it. Constant; shared by reference. */
typedef struct MediaItem {
    atomic_int references;
    int tokens;          /* its rows, each of which stands for a token */
    Image image, second; /* second: of two frames of a video that become one set of rows; without pixels: none */
    ImageLayout layout;
    Audio audio;                  /* count 0: it is an image */
    uint8_t digest[SHA256_BYTES]; /* digest of pixels and layout, or of samples: equal ones have equal rows */
} MediaItem;

/* Owns the image from now on; on failure, too. */
NODISCARD MediaItem *media_item_new(Image *image, const ImageLayout *layout, Error *error);
/* The same for two frames of a video. second->rgb NULL: there is one. */
NODISCARD MediaItem *media_item_new_frames(Image *image, Image *second, const ImageLayout *layout, Error *error);
/* The same for audio. */
NODISCARD MediaItem *media_item_new_audio(Audio *audio, int tokens, Error *error);
size_t media_item_bytes(const MediaItem *item); /* pixels or samples */
static inline bool media_item_is_audio(const MediaItem *item) { return item->audio.count > 0; }
void media_item_retain(MediaItem *item);
void media_item_release(MediaItem *item); /* NULL is fine */
/* Content id of row number `row` (RequestOptions.content_ids). time: MediaSpan.time where it continues; −1: it begins.
 */
uint64_t media_item_content(const MediaItem *item, int row, int time);

/* Where an item is in a prompt: tokens begin … begin + rows − 1 stand for its rows first … first + rows − 1. An image
 * whose rows have other tokens between them has several spans. */
typedef struct MediaSpan {
    int begin;
    int first, rows;
    MediaItem *item;
    bool whole; /* no step reads a part of it, as its rows see each other; set by request_new() */
    /* Positions of a video's frames that share one grid: whether it begins with an earlier span, and their distance in
     * time from there. */
    bool continues;
    int time;
} MediaSpan;

typedef struct MediaCache MediaCache;

/* Memory for images. */
typedef struct MediaMemory {
    int tokens_max;         /* tokens of the largest image or frame that is taken */
    uint64_t encoder_bytes; /* memory of the encoder after one of that size */
    uint64_t cache_bytes;   /* most memory of rows that are kept */
} MediaMemory;

/* What the model's vision part needs; zeros: it has none. tokens_max: the most that an image may have; fewer if the
 * encoder would take more than `most` bytes (0: it may). device: it runs on a GPU. */
NODISCARD bool media_memory(
    const Model *model, int tokens_max, uint64_t most, bool device, MediaMemory *out, Error *error);
/* The model takes images, audio or both. to: backend of the first layer, borrowed; options: its own. */
NODISCARD MediaCache *media_cache_open(
    const Model *model, Backend *to, const BackendOptions *options, const MediaMemory *memory, Error *error);
const MediaMemory *media_cache_memory(const MediaCache *cache);
/* Memory in use: kept rows, and that of the encoder for the largest image so far. */
size_t media_cache_bytes(const MediaCache *cache);
size_t media_cache_encoder_bytes(const MediaCache *cache);
void media_cache_close(MediaCache *cache);                     /* NULL is fine */
const VisionSpec *media_cache_vision(const MediaCache *cache); /* NULL: the model takes no images */
const AudioSpec *media_cache_audio(const MediaCache *cache);   /* NULL: the model takes no audio */
/* Sets of rows of an item: those of the first layer, then those that are added behind further layers; floats of a set.
 */
int media_cache_row_sets(const MediaCache *cache, const MediaItem *item);
int64_t media_cache_set_floats(const MediaCache *cache, const MediaItem *item);
/* The item's rows, [sets][tokens, width], valid until media_cache_work(); NULL: they must be encoded. */
const float *media_cache_rows(MediaCache *cache, const MediaItem *item);
/* Rows that take so long; row_s 0: not known yet. At least MEDIA_ROWS_LEAST. */
int media_rows_within(double seconds, double row_s);
/* Works on the item's rows for about so long; another item that was begun starts again later. */
NODISCARD bool media_cache_work(MediaCache *cache, MediaItem *item, double seconds, Error *error);
