/* JPEG through libjpeg-turbo, whose defaults are also Pillow's: exact inverse DCT, smooth upsampling, smoothed blocks.
 */
#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>
#include <jerror.h>

#include "media/image_internal.h"

enum {
    SCANS_MAX = 500, /* a progressive file of more scans only costs time */
    APP1_BYTES_MAX = 0xFFFF,
};

/* The library's state with what its callbacks need. */
typedef struct Reader {
    struct jpeg_decompress_struct codec;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    char text[JMSG_LENGTH_MAX];
} Reader;

static _Noreturn void leave(j_common_ptr codec) {
    Reader *reader = codec->client_data;
    codec->err->format_message(codec, reader->text);
    longjmp(reader->failed, 1);
}

/* The library ends a file that stops early with grey pixels and a warning; other warnings are harmless. */
static void take_message(j_common_ptr codec, int level) {
    if (level < 0 && codec->err->msg_code == JWRN_JPEG_EOF) leave(codec);
}

static void drop_message(j_common_ptr codec) {}

static void count_scans(j_common_ptr codec) {
    Reader *reader = codec->client_data;
    if (reader->codec.input_scan_number <= SCANS_MAX) return;
    snprintf(reader->text, sizeof reader->text, "more than %d scans", SCANS_MAX);
    longjmp(reader->failed, 1);
}

/* Up to the header; the caller has called setjmp(). */
static void begin(Reader *reader, Slice file) {
    reader->codec.err = jpeg_std_error(&reader->errors);
    reader->codec.client_data = reader;
    reader->errors.error_exit = leave;
    reader->errors.emit_message = take_message;
    reader->errors.output_message = drop_message;
    jpeg_create_decompress(&reader->codec);
    reader->progress.progress_monitor = count_scans;
    reader->codec.progress = &reader->progress;
    jpeg_save_markers(&reader->codec, JPEG_APP0 + 1, APP1_BYTES_MAX);
    jpeg_mem_src(&reader->codec, (const unsigned char *)file.data, (unsigned long)file.size);
    jpeg_read_header(&reader->codec, TRUE);
}

static int find_orientation(const Reader *reader) {
    static const char exif[] = "Exif\0", xmp[] = "http://ns.adobe.com/xap/1.0/";
    int by_exif = 0, by_xmp = 0;
    for (const struct jpeg_marker_struct *m = reader->codec.marker_list; m; m = m->next) {
        const Slice block = {(const char *)m->data, m->data_length};
        const Slice heads[] = {{exif, sizeof exif}, {xmp, sizeof xmp}};
        if (slice_starts(block, heads[0]) && !by_exif)
            by_exif = exif_orientation((Slice){block.data + sizeof exif, block.size - sizeof exif});
        else if (slice_starts(block, heads[1]) && !by_xmp)
            by_xmp = xmp_orientation((Slice){block.data + sizeof xmp, block.size - sizeof xmp});
    }
    return by_exif ? by_exif : by_xmp;
}

bool jpeg_header(Slice file, ImageHeader *header, Error *error) {
    Reader reader = {0};
    const bool ok = !setjmp(reader.failed);
    if (ok) {
        begin(&reader, file);
        header->width = (int)reader.codec.image_width;
        header->height = (int)reader.codec.image_height;
        header->orientation = find_orientation(&reader);
    }
    jpeg_destroy_decompress(&reader.codec);
    return ok || fail(error, ERROR_FORMAT, "%s", reader.text);
}

/* Pillow's CMYK to RGB (Convert.c), of inks that are stored inverted, as Adobe does it. */
static void cmyk_to_rgb(const uint8_t *inks, int width, uint8_t *rgb) {
    for (int x = 0; x < width; x++, inks += 4, rgb += 3) {
        const int white = inks[3];
        for (int c = 0; c < 3; c++) {
            const int product = white * (255 - inks[c]) + 128;
            const int value = white - (((product >> 8) + product) >> 8);
            rgb[c] = (uint8_t)(value < 0 ? 0 : value);
        }
    }
}

/* The row buffer is the library's, so that a jump leaks nothing. */
static void read_rows(Reader *reader, Image *image) {
    struct jpeg_decompress_struct *codec = &reader->codec;
    const bool inks = codec->out_color_space == JCS_CMYK;
    JSAMPARRAY line =
        inks ? codec->mem->alloc_sarray((j_common_ptr)codec, JPOOL_IMAGE, codec->output_width * 4, 1) : NULL;
    while (codec->output_scanline < codec->output_height) {
        uint8_t *to = image->rgb + (size_t)codec->output_scanline * (size_t)image->width * 3;
        JSAMPROW row = to;
        if (jpeg_read_scanlines(codec, inks ? line : &row, 1) == 1 && inks) cmyk_to_rgb(line[0], image->width, to);
    }
    jpeg_finish_decompress(codec);
}

bool jpeg_decode(Slice file, Image *image, Error *error) {
    Reader reader = {0};
    volatile bool ok = false, reported = false;
    if (!setjmp(reader.failed)) {
        begin(&reader, file);
        const int components = reader.codec.num_components;
        if (components != 1 && components != 3 && components != 4) {
            reported = true;
            fail(error, ERROR_UNSUPPORTED, "%d components are not supported", components);
        } else {
            reader.codec.out_color_space = components == 4 ? JCS_CMYK : JCS_RGB;
            reported = !image_alloc(image, (int)reader.codec.image_width, (int)reader.codec.image_height, error);
        }
        if (!reported) {
            jpeg_start_decompress(&reader.codec);
            read_rows(&reader, image);
            ok = true;
        }
    }
    jpeg_destroy_decompress(&reader.codec);
    return ok || (reported ? false : fail(error, ERROR_FORMAT, "%s", reader.text));
}
