#include <stdlib.h>

#include "media/video_internal.h"

bool video_add_frame(Video *video, int64_t duration_ms, Error *error) {
    enum { FIRST = 16 };
    const int count = video->count;
    if (count == VIDEO_FRAMES_MAX) return fail(error, ERROR_LIMIT, "more than %d frames", VIDEO_FRAMES_MAX);
    if ((count & (count - 1)) == 0 && (count == 0 || count >= FIRST)) { /* full: a power of two */
        const size_t room = count ? 2 * (size_t)count : FIRST;
        int32_t *grown = realloc(video->ends_ms, room * sizeof *grown);
        if (!grown) return fail(error, ERROR_MEMORY, "no memory for %zu frames", room);
        video->ends_ms = grown;
    }
    const int64_t time = duration_ms < VIDEO_SHORTEST_MS ? VIDEO_USUAL_MS : duration_ms;
    const int64_t end = (count ? video->ends_ms[count - 1] : 0) + time;
    if (end > INT32_MAX) return fail(error, ERROR_LIMIT, "a video of more than %d ms", INT32_MAX);
    video->ends_ms[video->count++] = (int32_t)end;
    return true;
}
