/* media/: bytes of images to pixels. Nothing here knows models, prompts or requests.
 *
 * An image file as 8-bit RGB, equal to what Pillow 12 makes of it with ImageOps.exif_transpose() and convert("RGB"):
 * orientation from EXIF or XMP is applied, alpha is dropped, 16-bit grey is clipped at 255. Sizes are read from the
 * header and checked before anything is allocated. An incomplete file is an error. Threads: any. */
#pragma once
#include <stdint.h>

#include "base/error.h"
#include "base/slice.h"

enum {
    IMAGE_BYTES_MAX = 20 << 20,  /* bytes of a file */
    IMAGE_PIXELS_MAX = 64 << 20, /* width · height */
    IMAGE_SIDE_MAX = 65500,      /* pixels */
};

typedef struct Image {
    int width, height;
    uint8_t *rgb; /* [height][width][3], owned */
} Image;

/* Size after the orientation is applied, from the file's header alone. Errors as image_decode(). */
NODISCARD bool image_size(Slice file, int *width, int *height, Error *error);
/* JPEG, PNG, WebP and GIF, as the first bytes tell; of an animation the first frame. Errors: ERROR_UNSUPPORTED for
 * other formats and for those that this build has no decoder for, ERROR_FORMAT for damaged files, ERROR_LIMIT,
 * ERROR_MEMORY.
 */
NODISCARD bool image_decode(Slice file, Image *image, Error *error);
/* An image without content, of checked size: each side from 1 to IMAGE_SIDE_MAX, at most IMAGE_PIXELS_MAX pixels. */
NODISCARD bool image_alloc(Image *image, int width, int height, Error *error);
void image_free(Image *image); /* safe on a zeroed one */

/* ---- resampling ---- */

typedef enum ImageFilter {
    IMAGE_LANCZOS = 1,
    IMAGE_BILINEAR = 2,
    IMAGE_BICUBIC = 3
} ImageFilter; /* Pillow's numbers */

/* Image.resize() of Pillow 12: a filter widened by the scale where an axis shrinks, coefficients of 22 bits, the
 * horizontal pass first, 8 bits in between. `to` is allocated here. Reference: Pillow, src/libImaging/Resample.c. */
NODISCARD bool image_resize(const Image *from, int width, int height, ImageFilter filter, Image *to, Error *error);
