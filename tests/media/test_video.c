/* Videos against Pillow: frames and times of tests/media/videos (make_videos.py), the choice of frames, limits, damaged
 * and foreign files. With a file as argument it prints the digests of its frames instead. */
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "media/video.h"
#include "test.h"

#define DATA "tests/media/videos"

typedef struct Digests {
    int count;
    char text[64][2 * SHA256_BYTES + 1];
} Digests;

static bool take_digest(void *context, int number, const Image *frame, Error *error) {
    Digests *digests = context;
    uint8_t bytes[SHA256_BYTES];
    Sha256 sha;
    if (number != digests->count || number >= (int)COUNT_OF(digests->text))
        return fail(error, ERROR_USAGE, "frame %d behind %d", number, digests->count);
    sha256_begin(&sha);
    sha256_add(&sha, frame->rgb, (size_t)frame->width * (size_t)frame->height * 3);
    sha256_end(&sha, bytes);
    for (int i = 0; i < SHA256_BYTES; i++) snprintf(digests->text[number] + 2 * i, 3, "%02x", bytes[i]);
    digests->count++;
    return true;
}

static bool read_file(const char *path, Buffer *out) {
    Error error = {0};
    const bool ok = file_read(path, VIDEO_BYTES_MAX, out, &error);
    TEST_MSG(ok, "%s", error.text);
    return ok;
}

/* All frames, or the last one alone. */
static bool digest_frames(const Video *video, bool last, Digests *digests, Error *error) {
    int chosen[64];
    digests->count = 0;
    for (int i = 0; i < video->count && i < (int)COUNT_OF(chosen); i++) chosen[i] = i;
    return last ? video_read(video, chosen + video->count - 1, 1, take_digest, digests, error)
                : video_read(video, chosen, video->count, take_digest, digests, error);
}

static bool has_decoder(const char *text) { return !strstr(text, "not supported"); }

static void check_file(const char *name, const Json *golden) {
    static Digests digests;
    char path[256];
    Buffer file = {0};
    Video video;
    Error error = {0};
    snprintf(path, sizeof path, DATA "/%s", name);
    if (!read_file(path, &file)) return;
    bool ok = video_open(buffer_view(&file), &video, &error);
    TEST_MSG(ok || !has_decoder(error.text), "%s: %s", name, error.text);
    if (!ok) {
        buffer_free(&file);
        return;
    }
    const Json *frames = json_get(golden, "frames"), *ends = json_get(golden, "ends"), *size = json_get(golden, "size");
    TEST_MSG(video.count == (int)frames->size, "%s: %d frames, expected %u", name, video.count, frames->size);
    if (size)
        TEST_MSG(video.width == json_first(size)->integer && video.height == json_next(json_first(size))->integer,
            "%s: %d × %d", name, video.width, video.height);
    int i = 0;
    for (JSON_EACH(end, ends)) {
        TEST_MSG(i < video.count && video.ends_ms[i] == end->integer, "%s: frame %d ends at %d ms", name, i,
            video.ends_ms[i]);
        i++;
    }
    ok = digest_frames(&video, false, &digests, &error);
    TEST_MSG(ok && digests.count == video.count, "%s: %d frames: %s", name, digests.count, error.text);
    i = 0;
    for (JSON_EACH(frame, frames)) {
        TEST_MSG(slice_is(json_slice(frame), digests.text[i]), "%s: frame %d", name, i);
        i++;
    }
    char last[2 * SHA256_BYTES + 1];
    memcpy(last, digests.text[i - 1], sizeof last);
    TEST(digest_frames(&video, true, &digests, &error) && !strcmp(digests.text[0], last));
    video_close(&video);
    buffer_free(&file);
}

static void test_files(void) {
    Buffer text = {0};
    Arena arena = {0};
    Error error = {0};
    int count = 0;
    const Json *root = read_file(DATA "/videos.json", &text) ? json_parse(&arena, buffer_view(&text), &error) : NULL;
    TEST_MSG(root, "%s", error.text);
    if (root)
        for (JSON_EACH_PAIR(key, golden, root)) {
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)key->size, key->string);
            check_file(name, golden);
            count++;
        }
    TEST(count > 20);
    arena_free(&arena);
    buffer_free(&text);
}

/* Frames that the rule takes of a video of `count` frames in so many seconds. */
static void check_choice(const VideoRule *rule, int count, double seconds, int expected, const int *first) {
    int32_t *ends = calloc((size_t)count, sizeof *ends);
    int chosen[VIDEO_CHOSEN_MAX];
    for (int i = 0; i < count; i++) ends[i] = (int32_t)(seconds * 1000 * (i + 1) / count);
    const Video video = {.count = count, .ends_ms = ends};
    const int found = video_choose(rule, &video, chosen);
    TEST_MSG(found == expected, "%d frames in %g s: %d", count, seconds, found);
    for (int i = 0; i < found && first; i++) TEST_MSG(chosen[i] == first[i], "frame %d: %d", i, chosen[i]);
    for (int i = 1; i < found; i++) TEST(chosen[i] > chosen[i - 1]);
    TEST(chosen[0] == 0 && chosen[found - 1] == (found > 1 ? count - 1 : 0));
    free(ends);
}

static void test_choice(void) {
    const VideoRule qwen = {.fps = 2, .frames_min = 4, .frames_max = 768, .together = 2};
    const VideoRule even = {.frames_min = 1, .frames_max = 32, .together = 1};
    check_choice(&qwen, 10, 2, 4, (const int[]){0, 3, 6, 9});
    check_choice(&qwen, 10, 0.1, 4, (const int[]){0, 3, 6, 9});
    check_choice(&qwen, 3, 9, 3, (const int[]){0, 1, 2});
    check_choice(&qwen, 1, 9, 1, (const int[]){0});
    check_choice(&qwen, 100, 10.4, 20, NULL);
    check_choice(&qwen, 20000, 4000, VIDEO_CHOSEN_MAX, NULL);
    check_choice(&even, 6, 1, 6, (const int[]){0, 1, 2, 3, 4, 5});
    check_choice(&even, 20000, 1, 32, NULL);
}

static void check_refused(Slice file, ErrorCode code, const char *text) {
    static Digests digests;
    Video video;
    Error error = {0};
    bool ok = video_open(file, &video, &error);
    ok = ok && digest_frames(&video, false, &digests, &error);
    video_close(&video);
    if (has_decoder(error.text) || code == ERROR_UNSUPPORTED)
        TEST_MSG(!ok && error.code == code && strstr(error.text, text), "%s: %s", text, error.text);
}

static void test_refused(void) {
    static char large[512];
    check_refused(SLICE("\0\0\0\x18"
                        "ftypmp42...."),
        ERROR_UNSUPPORTED, "MP4");
    check_refused(SLICE("\x1A\x45\xDF\xA3 webm"), ERROR_UNSUPPORTED, "WebM");
    check_refused(SLICE("RIFF....AVI "), ERROR_UNSUPPORTED, "AVI");
    check_refused(SLICE("OggS"), ERROR_UNSUPPORTED, "Ogg");
    check_refused(SLICE("a text"), ERROR_UNSUPPORTED, "no video");
    check_refused(SLICE(""), ERROR_UNSUPPORTED, "no video");
    check_refused(SLICE("GIF89a"), ERROR_FORMAT, "truncated");
    check_refused(SLICE("GIF89a\1\0\1\0\0\0\0;"), ERROR_FORMAT, "without an image");
    check_refused(SLICE("\xFF\xD8\xFF\xE0"), ERROR_FORMAT, "truncated");
    /* a canvas, and a frame, that are too large */
    check_refused(SLICE("GIF89a\xFF\xFF\xFF\xFF\0\0\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0;"), ERROR_LIMIT, "pixels");
    check_refused(SLICE("GIF89a\1\0\1\0\0\0\0,\0\0\0\0\xFF\xFF\xFF\xFF\0\2\2D\1\0;"), ERROR_LIMIT, "pixels");
    /* many frames of a large canvas */
    size_t size = 0;
    const Slice head = SLICE("GIF89a\x40\x1F\x40\x1F\0\0\0"), frame = SLICE(",\0\0\0\0\1\0\1\0\0\2\2D\1\0");
    memcpy(large, head.data, head.size);
    size = head.size;
    Buffer many = {0};
    buffer_append(&many, large, size);
    for (int i = 0; i < 80; i++) buffer_append(&many, frame.data, frame.size);
    check_refused(buffer_view(&many), ERROR_LIMIT, "80 frames");
    for (int i = 0; i < VIDEO_FRAMES_MAX; i++) buffer_append(&many, frame.data, frame.size);
    check_refused(buffer_view(&many), ERROR_LIMIT, "more than");
    buffer_free(&many);
}

/* Each file cut at each place is an error, or has fewer frames; nothing is read behind its end. */
static void test_cuts(const char *name) {
    static Digests digests;
    char path[256];
    Buffer file = {0};
    snprintf(path, sizeof path, DATA "/%s", name);
    if (!read_file(path, &file)) return;
    for (size_t size = 0; size < file.size; size += 1 + file.size / 300) {
        char *copy = malloc(size ? size : 1);
        memcpy(copy, file.data, size);
        Video video;
        Error error = {0};
        if (video_open((Slice){copy, size}, &video, &error) && !digest_frames(&video, false, &digests, &error))
            TEST(error.code == ERROR_FORMAT);
        video_close(&video);
        free(copy);
    }
    buffer_free(&file);
}

static int print_file(const char *path) {
    static Digests digests;
    Buffer file = {0};
    Video video;
    Error error = {0};
    if (!file_read(path, VIDEO_BYTES_MAX, &file, &error) || !video_open(buffer_view(&file), &video, &error) ||
        !digest_frames(&video, false, &digests, &error))
        printf("%s\n", error.text);
    else
        for (int i = 0; i < digests.count; i++) printf("%s\n", digests.text[i]);
    buffer_free(&file);
    return 0;
}

int main(int count, char **arguments) {
    if (count > 1) return print_file(arguments[1]);
    test_files();
    test_choice();
    test_refused();
    test_cuts("random-3.gif");
    test_cuts("times.gif");
    test_cuts("animated.webp");
    test_cuts("three.mjpeg");
    return test_done();
}
