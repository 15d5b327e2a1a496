/* PNG through libpng: 8 bits per channel without gamma or background; of 16 bits the upper 8, except for grey, which
 * Pillow clips at 255. */
#include <setjmp.h>
#include <stdio.h>

#include <png.h>

#include "media/image_internal.h"

enum { CHUNK_BYTES_MAX = 8 << 20, CHUNK_HEAD = 8, CHUNK_CRC = 4, SIGNATURE = 8 };

typedef struct Reader {
    png_structp png;
    png_infop info;
    Slice file;
    size_t at;
    char text[128];
} Reader;

static void leave(png_structp png, png_const_charp text) {
    Reader *reader = png_get_error_ptr(png);
    snprintf(reader->text, sizeof reader->text, "%s", text);
    png_longjmp(png, 1);
}

static void drop_warning(png_structp png, png_const_charp text) {}

static void give_bytes(png_structp png, png_bytep to, size_t size) {
    Reader *reader = png_get_io_ptr(png);
    if (size > reader->file.size - reader->at) png_error(png, "the file is truncated");
    memcpy(to, reader->file.data + reader->at, size);
    reader->at += size;
}

static bool reader_open(Reader *reader, Slice file, Error *error) {
    *reader = (Reader){.file = file};
    reader->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, reader, leave, drop_warning);
    reader->info = reader->png ? png_create_info_struct(reader->png) : NULL;
    return reader->info || fail(error, ERROR_MEMORY, "no memory for a decoder");
}

static void reader_close(Reader *reader) { png_destroy_read_struct(&reader->png, &reader->info, NULL); }

/* Up to the pixels. Chunks that change no pixel here are not read. The caller has called setjmp(). */
static void begin(Reader *reader) {
    static const png_byte unread[] = "iCCP\0zTXt\0tEXt\0iTXt\0sPLT\0eXIf\0hIST\0tIME";
    png_set_read_fn(reader->png, reader, give_bytes);
    png_set_user_limits(reader->png, IMAGE_SIDE_MAX, IMAGE_SIDE_MAX);
    png_set_chunk_malloc_max(reader->png, CHUNK_BYTES_MAX);
    png_set_keep_unknown_chunks(reader->png, PNG_HANDLE_CHUNK_NEVER, unread, (int)(sizeof unread / 5));
    png_set_crc_action(reader->png, PNG_CRC_QUIET_USE, PNG_CRC_QUIET_USE);
    png_read_info(reader->png, reader->info);
}

/* ---- orientation ---- */

static uint32_t number_at(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* The packet of an iTXt chunk with Adobe's keyword, if it is not compressed. */
static int itxt_orientation(Slice chunk) {
    static const char key[] = "XML:com.adobe.xmp";
    enum { FLAGS = 2 };
    if (!slice_starts(chunk, (Slice){key, sizeof key}) || chunk.size < sizeof key + FLAGS || chunk.data[sizeof key])
        return 0;
    return xmp_orientation((Slice){chunk.data + sizeof key + FLAGS, chunk.size - sizeof key - FLAGS});
}

/* Over all chunks, also those behind the pixels. */
static int find_orientation(Slice file) {
    int by_exif = 0, by_xmp = 0;
    for (size_t at = SIGNATURE; file.size - at >= CHUNK_HEAD;) {
        const size_t size = number_at((const uint8_t *)file.data + at), left = file.size - at - CHUNK_HEAD;
        const char *type = file.data + at + 4;
        if (size > left) break;
        const Slice chunk = {type + 4, size};
        if (!memcmp(type, "eXIf", 4)) by_exif = exif_orientation(chunk);
        if (!memcmp(type, "iTXt", 4) && !by_xmp) by_xmp = itxt_orientation(chunk);
        if (left - size < CHUNK_CRC) break;
        at += CHUNK_HEAD + size + CHUNK_CRC;
    }
    return by_exif ? by_exif : by_xmp;
}

bool png_header(Slice file, ImageHeader *header, Error *error) {
    Reader reader;
    if (!reader_open(&reader, file, error)) return false;
    const bool ok = !setjmp(png_jmpbuf(reader.png));
    if (ok) {
        begin(&reader);
        header->width = (int)png_get_image_width(reader.png, reader.info);
        header->height = (int)png_get_image_height(reader.png, reader.info);
        header->orientation = find_orientation(file);
    }
    reader_close(&reader);
    return ok || fail(error, ERROR_FORMAT, "%s", reader.text);
}

/* ---- pixels ---- */

static bool is_deep_grey(const Reader *reader) {
    return png_get_color_type(reader->png, reader->info) == PNG_COLOR_TYPE_GRAY &&
        png_get_bit_depth(reader->png, reader->info) == 16;
}

static void ask_for_rgb(const Reader *reader) {
    const int type = png_get_color_type(reader->png, reader->info);
    if (is_deep_grey(reader)) return;
    if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(reader->png);
    if (type == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(reader->png);
    if (png_get_bit_depth(reader->png, reader->info) == 16) png_set_strip_16(reader->png);
    if (!(type & PNG_COLOR_MASK_COLOR)) png_set_gray_to_rgb(reader->png);
    png_set_strip_alpha(reader->png);
}

/* Rows of 16-bit grey, at the beginning of rows of three bytes per pixel, become these. */
static void spread_deep_grey(Image *image) {
    for (int y = 0; y < image->height; y++) {
        uint8_t *row = image->rgb + (size_t)y * (size_t)image->width * 3;
        for (int x = image->width - 1; x >= 0; x--) {
            const uint8_t grey = row[2 * x] ? 255 : row[2 * x + 1];
            row[3 * x] = row[3 * x + 1] = row[3 * x + 2] = grey;
        }
    }
}

/* Interlaced files take seven passes over all rows. */
static void read_rows(const Reader *reader, const Image *image) {
    const int passes = png_set_interlace_handling(reader->png);
    png_read_update_info(reader->png, reader->info);
    if (png_get_rowbytes(reader->png, reader->info) > (size_t)image->width * 3)
        png_error(reader->png, "unexpected width of a row");
    for (int pass = 0; pass < passes; pass++)
        for (int y = 0; y < image->height; y++)
            png_read_row(reader->png, image->rgb + (size_t)y * (size_t)image->width * 3, NULL);
}

bool png_decode(Slice file, Image *image, Error *error) {
    Reader reader;
    volatile bool ok = false, reported = false;
    if (!reader_open(&reader, file, error)) return false;
    if (!setjmp(png_jmpbuf(reader.png))) {
        begin(&reader);
        const int width = (int)png_get_image_width(reader.png, reader.info);
        reported = !image_alloc(image, width, (int)png_get_image_height(reader.png, reader.info), error);
        if (!reported) {
            const bool deep_grey = is_deep_grey(&reader);
            ask_for_rgb(&reader);
            read_rows(&reader, image);
            if (deep_grey) spread_deep_grey(image);
            ok = true;
        }
    }
    reader_close(&reader);
    return ok || (reported ? false : fail(error, ERROR_FORMAT, "%s", reader.text));
}
