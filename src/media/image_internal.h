/* Decoders of one format each, for image.c. A decoder reads the size, checks it with image_alloc() or
 * image_check_size(), then reads the pixels. */
#pragma once
#include "media/image.h"

/* The results of reading a header. */
typedef struct ImageHeader {
    int width, height; /* as stored, before the orientation */
    int orientation;   /* EXIF number 1 … 8; other values mean 1 */
} ImageHeader;

typedef struct ImageDecoder {
    const char *name; /* "JPEG" */
    bool (*is)(Slice file);
    bool (*header)(Slice file, ImageHeader *header, Error *error); /* NULL: this build has no such decoder */
    bool (*decode)(Slice file, Image *image, Error *error);        /* as stored; image is zeroed before */
} ImageDecoder;

bool gif_header(Slice file, ImageHeader *header, Error *error);
bool gif_decode(Slice file, Image *image, Error *error);
bool jpeg_header(Slice file, ImageHeader *header, Error *error);
bool jpeg_decode(Slice file, Image *image, Error *error);
bool png_header(Slice file, ImageHeader *header, Error *error);
bool png_decode(Slice file, Image *image, Error *error);
bool webp_header(Slice file, ImageHeader *header, Error *error);
bool webp_decode(Slice file, Image *image, Error *error);

NODISCARD bool image_check_size(int64_t width, int64_t height, Error *error);

/* The orientation of an EXIF block, which begins with a TIFF header; 0: it has none. */
int exif_orientation(Slice tiff);
/* The orientation of an XMP packet; 0: it has none. */
int xmp_orientation(Slice packet);
