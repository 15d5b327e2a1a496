/* Files of images and audio on their way to the encoder. Few are decoded at once, on threads of low priority: so many
 * requests with images neither take the processor from answers under way nor have all their pixels in memory. What the
 * last files became is kept, known by the bytes of the file: a conversation sends its images again with each question.
 * Threads: any. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/slice.h"
#include "engine/media.h"

enum {
    MEDIA_FILES_BYTES = 64 << 20, /* pixels and samples that are kept; the least recently used leave first */
    MEDIA_FILES_MAX = 256,        /* files of which they are */
    MEDIA_DECODERS_LEAST = 2,     /* files that are decoded at once: one of four cores, within these limits */
    MEDIA_DECODERS_MAX = 8,
};

typedef struct MediaFiles MediaFiles;
NODISCARD MediaFiles *media_files_open(Error *error);
void media_files_close(MediaFiles *files); /* NULL is fine */

/* What makes items of a file; context: the caller's. On failure it leaves none. */
typedef bool MediaDecoder(void *context, MediaItem **items, Error *error);
/* The `count` items of a file, references of the caller's: those that are kept, or what the decoder makes.
 * variant: differs where the same bytes become other items of this model (detail). */
NODISCARD bool media_files_take(MediaFiles *files, Slice bytes, int variant, int count, MediaDecoder *decode,
    void *context, MediaItem **items, Error *error);
/* Runs the decoder when it is its turn; nothing is kept. */
NODISCARD bool media_files_decode(
    MediaFiles *files, MediaDecoder *decode, void *context, MediaItem **items, Error *error);
