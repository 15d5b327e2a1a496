/* Moving pictures as frames: GIF, animated WebP, and JPEG files one behind the other (MJPEG). Files of other containers
 * are refused by name. The structure of a file is read first: its frames and their times are known, and checked against
 * the limits, before a pixel is decoded. Threads: any. */
#pragma once
#include "media/image_rule.h"

enum {
    VIDEO_BYTES_MAX = 50 << 20,   /* bytes of a file */
    VIDEO_FRAMES_MAX = 20000,     /* frames of a file */
    VIDEO_CHOSEN_MAX = 128,       /* frames that are taken of it */
    VIDEO_STILL_MS = 500,         /* time of a frame of MJPEG, which has no times: models take 2 frames per second */
    VIDEO_SHORTEST_MS = 20,       /* a frame that is to be shown for less … */
    VIDEO_USUAL_MS = 100,         /* … is shown for this long, as browsers do it */
    VIDEO_MPIXELS_MAX = 4 * 1024, /* pixels of all frames together, in units of 2²⁰ */
};

/* Which frames a family takes, and how it makes patches of them. */
typedef struct VideoRule {
    ImageRule frame; /* ImageRule.frames is set for each video */
    double fps;      /* frames taken per second; 0: frames_max of any video */
    int frames_min, frames_max;
    int together; /* frames that become one set of rows: 1 or 2 */
} VideoRule;

struct VideoFormat;

typedef struct Video {
    Slice file; /* borrowed */
    const struct VideoFormat *format;
    int width, height;
    int count;
    int32_t *ends_ms; /* [count] time at which each frame ends; owned */
} Video;

/* Reads the structure. Errors: ERROR_UNSUPPORTED for other formats, ERROR_FORMAT, ERROR_LIMIT, ERROR_MEMORY. */
NODISCARD bool video_open(Slice file, Video *video, Error *error);
void video_close(Video *video); /* safe on a zeroed one */
/* The number of frames that the rule takes, at most VIDEO_CHOSEN_MAX, and which: from the first to the last one, at
 * equal distances. Reference: sample_frames() of transformers' models/qwen3_vl/video_processing_qwen3_vl.py. */
int video_choose(const VideoRule *rule, const Video *video, int chosen[VIDEO_CHOSEN_MAX]);
/* Gets a frame; number: of those chosen. frame: borrowed for the call. False: reading ends. */
typedef bool VideoTake(void *context, int number, const Image *frame, Error *error);
/* Decodes the chosen frames, in ascending order. One frame is in memory at a time. */
NODISCARD bool video_read(
    const Video *video, const int *chosen, int count, VideoTake *take, void *context, Error *error);
