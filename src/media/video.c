#include "media/video_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool gif_is(Slice file) { return slice_starts(file, SLICE("GIF8")); }
static bool jpeg_is(Slice file) { return slice_starts(file, SLICE("\xFF\xD8\xFF")); }
static bool riff_is(Slice file, const char *kind) {
    return file.size >= 12 && slice_starts(file, SLICE("RIFF")) && !memcmp(file.data + 8, kind, 4);
}
static bool webp_is(Slice file) { return riff_is(file, "WEBP"); }
static bool avi_is(Slice file) { return riff_is(file, "AVI "); }
static bool mp4_is(Slice file) { return file.size >= 12 && !memcmp(file.data + 4, "ftyp", 4); }
static bool matroska_is(Slice file) { return slice_starts(file, SLICE("\x1A\x45\xDF\xA3")); }
static bool ogg_is(Slice file) { return slice_starts(file, SLICE("OggS")); }
static bool flv_is(Slice file) { return slice_starts(file, SLICE("FLV\x01")); }
static bool asf_is(Slice file) { return slice_starts(file, SLICE("\x30\x26\xB2\x75")); }
static bool mpeg_is(Slice file) { return slice_starts(file, SLICE("\x00\x00\x01\xBA")); }
static bool stream_is(Slice file) { return file.size > 188 && file.data[0] == 'G' && file.data[188] == 'G'; }

/* The first that knows the file's beginning. Those without functions are refused by name. */
static const VideoFormat formats[] = {
    {"GIF", gif_is, gif_open, gif_read},
#ifdef APUS_WEBP
    {"WebP", webp_is, webp_open, webp_read},
#else
    {"WebP", webp_is, NULL, NULL},
#endif
#ifdef APUS_JPEG
    {"MJPEG", jpeg_is, mjpeg_open, mjpeg_read},
#else
    {"MJPEG", jpeg_is, NULL, NULL},
#endif
    {"MP4 or QuickTime", mp4_is, NULL, NULL},
    {"WebM or Matroska", matroska_is, NULL, NULL},
    {"AVI", avi_is, NULL, NULL},
    {"Ogg", ogg_is, NULL, NULL},
    {"Flash", flv_is, NULL, NULL},
    {"Windows Media", asf_is, NULL, NULL},
    {"MPEG", mpeg_is, NULL, NULL},
    {"MPEG transport stream", stream_is, NULL, NULL},
};

static const VideoFormat *find_format(Slice file, Error *error) {
    static const char advice[] = "GIF, animated WebP and MJPEG are read (ffmpeg -i FILE -vf fps=2 -f mjpeg OUT.mjpeg)";
    if (file.size > VIDEO_BYTES_MAX) {
        fail(error, ERROR_LIMIT, "a video of %zu bytes, at most %d are possible", file.size, VIDEO_BYTES_MAX);
        return NULL;
    }
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        if (!formats[i].is(file)) continue;
        if (formats[i].open) return &formats[i];
        fail(error, ERROR_UNSUPPORTED, "%s videos are not supported; %s", formats[i].name, advice);
        return NULL;
    }
    fail(error, ERROR_UNSUPPORTED, "these bytes are no video; %s", advice);
    return NULL;
}

static bool check(const Video *video, Error *error) {
    const int64_t pixels = (int64_t)video->width * video->height * video->count;
    if (video->count == 0) return fail(error, ERROR_FORMAT, "a video without frames");
    return image_check_size(video->width, video->height, error) &&
        (pixels >> 20 < VIDEO_MPIXELS_MAX ||
            fail(error, ERROR_LIMIT, "%d frames of %d × %d pixels, at most %d · 2²⁰ pixels are possible", video->count,
                video->width, video->height, VIDEO_MPIXELS_MAX));
}

bool video_open(Slice file, Video *video, Error *error) {
    *video = (Video){.file = file, .format = find_format(file, error)};
    if (!video->format) return false;
    if (video->format->open(video, error) && check(video, error)) return true;
    const char *name = video->format->name;
    video_close(video);
    return fail_while(error, "%s", name);
}

void video_close(Video *video) {
    free(video->ends_ms);
    *video = (Video){0};
}

static int clamp(int value, int least, int most) { return value < least ? least : value > most ? most : value; }

int video_choose(const VideoRule *rule, const Video *video, int chosen[VIDEO_CHOSEN_MAX]) {
    const double seconds = video->ends_ms[video->count - 1] / 1e3, wanted = seconds * rule->fps;
    const int most = clamp(rule->frames_max, 1, VIDEO_CHOSEN_MAX);
    int count = rule->fps > 0 && wanted < most ? clamp((int)wanted, rule->frames_min, most) : most;
    if (count > video->count) count = video->count;
    const double last = video->count - 1, step = count > 1 ? last / (count - 1) : 0;
    for (int i = 0; i < count; i++) chosen[i] = (int)rint(i * step);
    if (count > 1) chosen[count - 1] = video->count - 1;
    return count;
}

bool video_read(const Video *video, const int *chosen, int count, VideoTake *take, void *context, Error *error) {
    return video->format->read(video, chosen, count, take, context, error) ||
        fail_while(error, "%s", video->format->name);
}
