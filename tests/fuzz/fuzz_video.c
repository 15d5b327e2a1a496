/* Videos: an input is one file. What is accepted has frames of the size that its structure tells, with times that go
 * on.
 */
#include "media/video.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PIXELS_MAX = 1 << 22 }; /* larger ones take seconds under a fuzzer */

static bool take(void *context, int number, const Image *frame, Error *error) {
    const Video *video = context;
    CHECK(frame->width == video->width && frame->height == video->height && number < video->count);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const VideoRule rule = {.fps = 2, .frames_min = 4, .frames_max = 8, .together = 2};
    int chosen[VIDEO_CHOSEN_MAX];
    Video video;
    Error error = {0};
    if (!video_open((Slice){(const char *)data, size}, &video, &error)) {
        CHECK(error.code != ERROR_NONE && !video.ends_ms);
        return 0;
    }
    for (int i = 1; i < video.count; i++) CHECK(video.ends_ms[i] > video.ends_ms[i - 1]);
    if ((int64_t)video.width * video.height * video.count <= PIXELS_MAX) {
        const int count = video_choose(&rule, &video, chosen);
        CHECK(count > 0 && count <= video.count);
        if (!video_read(&video, chosen, count, take, &video, &error)) CHECK(error.code != ERROR_NONE);
    }
    video_close(&video);
    return 0;
}
