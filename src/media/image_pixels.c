/* Memory of images: its size is checked before it is taken. */
#include "media/image_internal.h"

#include <stdlib.h>

bool image_check_size(int64_t width, int64_t height, Error *error) {
    if (width < 1 || height < 1) return fail(error, ERROR_FORMAT, "an image without pixels");
    if (width > IMAGE_SIDE_MAX || height > IMAGE_SIDE_MAX || width * height > IMAGE_PIXELS_MAX)
        return fail(error, ERROR_LIMIT,
            "an image of %lld × %lld pixels; at most %d on a side and %d in all are possible", (long long)width,
            (long long)height, IMAGE_SIDE_MAX, IMAGE_PIXELS_MAX);
    return true;
}

bool image_alloc(Image *image, int width, int height, Error *error) {
    *image = (Image){0};
    if (!image_check_size(width, height, error)) return false;
    uint8_t *rgb = malloc((size_t)width * (size_t)height * 3);
    if (!rgb) return fail(error, ERROR_MEMORY, "no memory for an image of %d × %d pixels", width, height);
    *image = (Image){width, height, rgb};
    return true;
}

void image_free(Image *image) {
    free(image->rgb);
    *image = (Image){0};
}
