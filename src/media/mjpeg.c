/* JPEG files one behind the other (MJPEG). They are told apart by their markers, and have no times. */
#include <string.h>

#include "media/video_internal.h"

enum {
    MARK = 0xFF,
    RESTART_FIRST = 0xD0,
    RESTART_LAST = 0xD7,
    IMAGE_BEGIN = 0xD8,
    IMAGE_END = 0xD9,
    SCAN = 0xDA,
    NO_LENGTH = 0x01,
};

/* The next file's bytes; *at moves behind it. size 0: there are no more. */
static bool next_file(Slice all, size_t *at, Slice *file, Error *error) {
    const uint8_t *bytes = (const uint8_t *)all.data;
    *file = (Slice){0};
    while (all.size - *at >= 3 && memcmp(bytes + *at, "\xFF\xD8\xFF", 3) != 0) ++*at; /* what fills up a frame */
    if (all.size - *at < 3) return true;
    const size_t first = *at;
    bool scan = false;
    for (*at += 2; all.size - *at >= 2;) {
        const int mark = bytes[*at + 1];
        const bool alone = mark == NO_LENGTH || mark == IMAGE_BEGIN || (mark >= RESTART_FIRST && mark <= RESTART_LAST);
        if (bytes[*at] != MARK || (scan && mark == 0)) {
            if (!scan) return fail(error, ERROR_FORMAT, "damaged bytes");
            ++*at;
        } else if (mark == MARK) { /* fills up */
            ++*at;
        } else if (mark == IMAGE_END) {
            *at += 2;
            *file = (Slice){all.data + first, *at - first};
            return true;
        } else if (alone) {
            *at += 2;
        } else {
            const size_t left = all.size - *at - 2;
            const size_t size = left >= 2 ? (size_t)bytes[*at + 2] << 8 | bytes[*at + 3] : 0;
            if (size < 2 || size > left) break;
            scan = mark == SCAN;
            *at += 2 + size;
        }
    }
    return fail(error, ERROR_FORMAT, "the file is truncated");
}

bool mjpeg_open(Video *video, Error *error) {
    Slice file;
    size_t at = 0;
    while (next_file(video->file, &at, &file, error)) {
        if (file.size == 0) return true;
        int width, height;
        if (!image_size(file, &width, &height, error)) return false;
        if (video->count > 0 && (width != video->width || height != video->height))
            return fail(error, ERROR_FORMAT, "frame %d has %d × %d pixels, the first one %d × %d", video->count, width,
                height, video->width, video->height);
        video->width = width;
        video->height = height;
        if (!video_add_frame(video, VIDEO_STILL_MS, error)) return false;
    }
    return false;
}

bool mjpeg_read(const Video *video, const int *chosen, int count, VideoTake *take, void *context, Error *error) {
    Slice file;
    size_t at = 0;
    int done = 0;
    for (int i = 0; done < count && next_file(video->file, &at, &file, error); i++) {
        if (i != chosen[done]) continue;
        Image image;
        const bool ok = image_decode(file, &image, error) && take(context, done++, &image, error);
        image_free(&image);
        if (!ok) return false;
    }
    return done == count;
}
