/* Images: an input is one file. What is accepted has the size that its header tells, and can be resized. */
#include "media/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PIXELS_MAX = 1 << 20 }; /* larger ones take seconds under a fuzzer */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const Slice file = {(const char *)data, size};
    int width = 0, height = 0;
    Error error = {0};
    if (!image_size(file, &width, &height, &error)) {
        CHECK(error.code != ERROR_NONE);
        return 0;
    }
    if ((int64_t)width * height > PIXELS_MAX) return 0;
    Image image, resized;
    if (!image_decode(file, &image, &error)) {
        CHECK(error.code != ERROR_NONE && !image.rgb);
        return 0;
    }
    CHECK(image.width == width && image.height == height);
    CHECK(image_resize(&image, 1 + size % 9, 1 + size % 7, IMAGE_BICUBIC, &resized, &error));
    image_free(&image);
    image_free(&resized);
    return 0;
}
