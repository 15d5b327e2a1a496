#include "media/image_internal.h"

#ifdef APUS_JPEG
#define JPEG_FUNCTIONS .header = jpeg_header, .decode = jpeg_decode
#else
#define JPEG_FUNCTIONS .header = NULL
#endif
#ifdef APUS_PNG
#define PNG_FUNCTIONS .header = png_header, .decode = png_decode
#else
#define PNG_FUNCTIONS .header = NULL
#endif
#ifdef APUS_WEBP
#define WEBP_FUNCTIONS .header = webp_header, .decode = webp_decode
#else
#define WEBP_FUNCTIONS .header = NULL
#endif

static bool jpeg_is(Slice file) { return slice_starts(file, SLICE("\xFF\xD8\xFF")); }
static bool png_is(Slice file) { return slice_starts(file, SLICE("\x89PNG\r\n\x1A\n")); }
static bool webp_is(Slice file) {
    return file.size >= 12 && slice_starts(file, SLICE("RIFF")) && !memcmp(file.data + 8, "WEBP", 4);
}
static bool gif_is(Slice file) { return slice_starts(file, SLICE("GIF8")); }
static bool bmp_is(Slice file) { return slice_starts(file, SLICE("BM")); }
static bool tiff_is(Slice file) { return slice_starts(file, SLICE("II*\0")) || slice_starts(file, SLICE("MM\0*")); }
/* ISO base media: HEIC and AVIF. */
static bool heif_is(Slice file) { return file.size >= 12 && !memcmp(file.data + 4, "ftyp", 4); }

/* The first that knows the file's beginning. Those without functions are refused by name. */
static const ImageDecoder decoders[] = {
    {.name = "JPEG", .is = jpeg_is, JPEG_FUNCTIONS},
    {.name = "PNG", .is = png_is, PNG_FUNCTIONS},
    {.name = "WebP", .is = webp_is, WEBP_FUNCTIONS},
    {.name = "GIF", .is = gif_is, .header = gif_header, .decode = gif_decode},
    {.name = "BMP", .is = bmp_is},
    {.name = "TIFF", .is = tiff_is},
    {.name = "HEIF", .is = heif_is},
};

static const ImageDecoder *find_decoder(Slice file, Error *error) {
    if (file.size > IMAGE_BYTES_MAX) {
        fail(error, ERROR_LIMIT, "an image of %zu bytes, at most %d are possible", file.size, IMAGE_BYTES_MAX);
        return NULL;
    }
    for (size_t i = 0; i < COUNT_OF(decoders); i++) {
        if (!decoders[i].is(file)) continue;
        if (decoders[i].header) return &decoders[i];
        const bool known = decoders[i].is == jpeg_is || decoders[i].is == png_is || decoders[i].is == webp_is;
        fail(error, ERROR_UNSUPPORTED, "%s images are not supported%s; JPEG, PNG, WebP and GIF are", decoders[i].name,
            known ? " by this build" : "");
        return NULL;
    }
    fail(error, ERROR_UNSUPPORTED, "these bytes are no JPEG, PNG, WebP or GIF image");
    return NULL;
}

/* ---- orientation ---- */

/* Whether width and height change places. */
static bool is_turned(int orientation) { return orientation >= 5 && orientation <= 8; }

/* Column and row in the stored image of a pixel of the upright one. */
static void stored_place(int orientation, const Image *stored, int x, int y, int *column, int *row) {
    const int right = stored->width - 1, bottom = stored->height - 1;
    *column = is_turned(orientation) ? y : x;
    *row = is_turned(orientation) ? x : y;
    if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8) *column = right - *column;
    if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7) *row = bottom - *row;
}

static bool orient(Image *image, int orientation, Error *error) {
    Image upright;
    if (orientation < 2 || orientation > 8) return true;
    const bool turned = is_turned(orientation);
    if (!image_alloc(&upright, turned ? image->height : image->width, turned ? image->width : image->height, error))
        return false;
    uint8_t *to = upright.rgb;
    for (int y = 0; y < upright.height; y++)
        for (int x = 0; x < upright.width; x++, to += 3) {
            int column, row;
            stored_place(orientation, image, x, y, &column, &row);
            memcpy(to, image->rgb + ((size_t)row * (size_t)image->width + (size_t)column) * 3, 3);
        }
    image_free(image);
    *image = upright;
    return true;
}

/* ---- files ---- */

static bool read_header(Slice file, const ImageDecoder *decoder, ImageHeader *header, Error *error) {
    *header = (ImageHeader){.orientation = 1};
    if (decoder->header(file, header, error) && image_check_size(header->width, header->height, error)) return true;
    return fail_while(error, "%s", decoder->name);
}

bool image_size(Slice file, int *width, int *height, Error *error) {
    const ImageDecoder *decoder = find_decoder(file, error);
    ImageHeader header;
    if (!decoder || !read_header(file, decoder, &header, error)) return false;
    const bool turned = is_turned(header.orientation);
    *width = turned ? header.height : header.width;
    *height = turned ? header.width : header.height;
    return true;
}

bool image_decode(Slice file, Image *image, Error *error) {
    *image = (Image){0};
    const ImageDecoder *decoder = find_decoder(file, error);
    ImageHeader header;
    if (!decoder || !read_header(file, decoder, &header, error)) return false;
    if (decoder->decode(file, image, error) && orient(image, header.orientation, error)) return true;
    image_free(image);
    return fail_while(error, "%s", decoder->name);
}
