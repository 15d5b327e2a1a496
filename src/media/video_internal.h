/* Readers of one format each, for video.c. */
#pragma once
#include "media/image_internal.h"
#include "media/video.h"

/* Notes one more frame of a file that is being read, which is shown for so long. Errors: ERROR_LIMIT, ERROR_MEMORY. */
NODISCARD bool video_add_frame(Video *video, int64_t duration_ms, Error *error);

typedef struct VideoFormat {
    const char *name; /* "GIF" */
    bool (*is)(Slice file);
    /* Reads the structure: size and frames. */
    bool (*open)(Video *video, Error *error);
    bool (*read)(const Video *video, const int *chosen, int count, VideoTake *take, void *context, Error *error);
} VideoFormat;

bool gif_open(Video *video, Error *error);
bool gif_read(const Video *video, const int *chosen, int count, VideoTake *take, void *context, Error *error);
bool mjpeg_open(Video *video, Error *error);
bool mjpeg_read(const Video *video, const int *chosen, int count, VideoTake *take, void *context, Error *error);
bool webp_open(Video *video, Error *error);
bool webp_read(const Video *video, const int *chosen, int count, VideoTake *take, void *context, Error *error);
