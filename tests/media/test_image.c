/* Images against Pillow: decoded and resized bytes of tests/media/data (make_images.py), sizes from headers, limits,
 * damaged and foreign files. With arguments it prints digests for check_images.py instead. */
#include <stdio.h>

#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "media/image.h"
#include "media/image_rule.h"
#include "test.h"

#define DATA "tests/media/data"

static void hex_digest(const Image *image, char out[2 * SHA256_BYTES + 1]) {
    uint8_t bytes[SHA256_BYTES];
    Sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, image->rgb, (size_t)image->width * (size_t)image->height * 3);
    sha256_end(&sha, bytes);
    for (int i = 0; i < SHA256_BYTES; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static bool read_file(const char *name, Buffer *out) {
    char path[256];
    Error error = {0};
    snprintf(path, sizeof path, "%s/%s", DATA, name);
    const bool ok = file_read(path, IMAGE_BYTES_MAX, out, &error);
    TEST_MSG(ok, "%s", error.text);
    return ok;
}

static void check_golden(const char *name, const Image *image, const Json *golden) {
    char digest[2 * SHA256_BYTES + 1];
    hex_digest(image, digest);
    TEST_MSG(image->width == json_get(golden, "width")->integer && image->height == json_get(golden, "height")->integer,
        "%s: %d × %d", name, image->width, image->height);
    TEST_MSG(slice_is(json_slice(json_get(golden, "sha256")), digest), "%s: pixels differ from Pillow's", name);
}

/* What this build has no decoder for is refused by name. */
static bool is_missing(const Error *error) {
    if (!strstr(error->text, "by this build")) return false;
    test_skip("%.60s", error->text);
    return true;
}

static void test_files(const Json *files) {
    for (JSON_EACH_PAIR(key, golden, files)) {
        Buffer file = {0};
        Image image = {0};
        Error error = {0};
        int width = 0, height = 0;
        char name[64];
        snprintf(name, sizeof name, "%.*s", SLICE_SHOWN(json_slice(key)));
        if (!read_file(name, &file)) continue;
        const bool ok = image_decode(buffer_view(&file), &image, &error);
        if (ok || !is_missing(&error)) {
            TEST_MSG(ok == !json_get(golden, "error"), "%s: %s", name, ok ? "accepted" : error.text);
            TEST(ok || error.code == ERROR_FORMAT);
            if (ok && !json_get(golden, "error")) {
                check_golden(name, &image, golden);
                TEST(image_size(buffer_view(&file), &width, &height, &error));
                TEST_MSG(width == image.width && height == image.height, "%s", name);
            }
        }
        image_free(&image);
        buffer_free(&file);
    }
}

static void test_resizes(const Json *resizes) {
    for (JSON_EACH(golden, resizes)) {
        Buffer file = {0};
        Image image = {0}, resized = {0};
        Error error = {0};
        char name[64];
        snprintf(name, sizeof name, "%.*s", SLICE_SHOWN(json_slice(json_get(golden, "file"))));
        if (!read_file(name, &file)) continue;
        const int width = (int)json_get(golden, "width")->integer, height = (int)json_get(golden, "height")->integer;
        const ImageFilter filter = (ImageFilter)json_get(golden, "filter")->integer;
        if (image_decode(buffer_view(&file), &image, &error)) {
            TEST(image_resize(&image, width, height, filter, &resized, &error));
            char what[128];
            snprintf(what, sizeof what, "%s to %d × %d with filter %d", name, width, height, filter);
            check_golden(what, &resized, golden);
        } else {
            TEST_MSG(is_missing(&error), "%s", error.text);
        }
        image_free(&image);
        image_free(&resized);
        buffer_free(&file);
    }
}

/* ---- limits ---- */

static void test_refused(Slice file, ErrorCode code, const char *text) {
    Image image = {0};
    Error error = {0};
    int width, height;
    TEST(!image_decode(file, &image, &error) && !image.rgb);
    if (is_missing(&error)) return;
    TEST_MSG(error.code == code && strstr(error.text, text), "code %d: %s", error.code, error.text);
    TEST(!image_size(file, &width, &height, &error));
}

/* A PNG file that ends where the pixels begin. */
enum { PNG_HEADER = 33 + 8 };
static Slice png_of_size(uint32_t width, uint32_t height, uint8_t out[PNG_HEADER]) {
    static const uint8_t head[] = "\x89PNG\r\n\x1A\n\0\0\0\rIHDR";
    memcpy(out, head, 16);
    for (int i = 0; i < 4; i++) {
        out[16 + i] = (uint8_t)(width >> (24 - 8 * i));
        out[20 + i] = (uint8_t)(height >> (24 - 8 * i));
    }
    memcpy(out + 24, "\10\2\0\0\0\0\0\0\0\0\0\0\0IDAT", 17); /* 8 bits, RGB; the checksum is not looked at */
    return (Slice){(const char *)out, PNG_HEADER};
}

static void test_limits(void) {
    uint8_t bytes[PNG_HEADER];
    test_refused(png_of_size(65000, 65000, bytes), ERROR_LIMIT, "65000 × 65000");
    test_refused(png_of_size(70000, 1, bytes), ERROR_FORMAT, "PNG");
    test_refused(png_of_size(0, 5, bytes), ERROR_FORMAT, "PNG");
    test_refused(SLICE("GIF89a......"), ERROR_FORMAT, "GIF");
    test_refused(SLICE("\0\0\0\x18"
                       "ftypheic...."),
        ERROR_UNSUPPORTED, "HEIF");
    test_refused(SLICE("<svg></svg>"), ERROR_UNSUPPORTED, "no JPEG");
    test_refused((Slice){0}, ERROR_UNSUPPORTED, "no JPEG");
    char *large = calloc(IMAGE_BYTES_MAX + 1, 1);
    test_refused((Slice){large, IMAGE_BYTES_MAX + 1}, ERROR_LIMIT, "bytes");
    free(large);
    Image image;
    Error error = {0};
    TEST(!image_alloc(&image, IMAGE_SIDE_MAX + 1, 1, &error) && error.code == ERROR_LIMIT);
    TEST(image_alloc(&image, 3, 2, &error));
    Image resized;
    memset(image.rgb, 0, 18);
    TEST(!image_resize(&image, 0, 4, IMAGE_BICUBIC, &resized, &error) && !resized.rgb);
    TEST(!image_resize(&image, 60000, 60000, IMAGE_BICUBIC, &resized, &error) && !resized.rgb);
    image_free(&image);
    const ImageRule square = {.sizing = SIZING_FIXED, .square = true, .side = 64, .patch = 64, .merge = 1};
    ImageLayout layout;
    TEST(image_layout(&square, 8192, 10, &layout, &error) && layout.tokens == 1);
    TEST(!image_layout(&square, 20000, 10, &layout, &error) && error.code == ERROR_LIMIT);
}

/* Every beginning of a file is refused or decoded, and reading stays inside it. */
static void test_cuts(const char *name) {
    Buffer file = {0};
    if (!read_file(name, &file)) return;
    for (size_t size = 0; size < file.size; size += test_sampled() ? 7 : 1) {
        char *copy = malloc(size + 1); /* a block of its own, so that sanitizers see what lies behind it */
        memcpy(copy, file.data, size);
        Image image;
        Error error = {0};
        if (!image_decode((Slice){copy, size}, &image, &error)) TEST(error.code != ERROR_NONE);
        image_free(&image);
        free(copy);
    }
    buffer_free(&file);
}

/* Lines "FILE" or "FILE WIDTH HEIGHT FILTER" from the standard input; a line with size and digest for each. */
static int print_digests(void) {
    char line[512], path[400];
    while (fgets(line, sizeof line, stdin)) {
        int width, height, filter;
        Error error = {0};
        Image image = {0}, resized = {0};
        Buffer file = {0};
        const int fields = sscanf(line, "%399s %d %d %d", path, &width, &height, &filter);
        bool ok = fields >= 1 && file_read(path, IMAGE_BYTES_MAX, &file, &error) &&
            image_decode(buffer_view(&file), &image, &error);
        if (ok && fields == 4) {
            ok = image_resize(&image, width, height, (ImageFilter)filter, &resized, &error);
            image_free(&image);
            image = resized;
        }
        char digest[2 * SHA256_BYTES + 1] = "";
        if (ok) hex_digest(&image, digest);
        printf("%d %d %s\n", image.width, image.height, ok ? digest : error.text);
        image_free(&image);
        buffer_free(&file);
    }
    return 0;
}

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "digests")) return print_digests();
    Buffer text = {0};
    Arena arena = {0};
    Error error = {0};
    if (read_file("goldens.json", &text)) {
        const Json *goldens = json_parse(&arena, buffer_view(&text), &error);
        TEST_MSG(goldens, "%s", error.text);
        if (goldens) {
            test_files(json_get(goldens, "files"));
            test_resizes(json_get(goldens, "resizes"));
        }
    }
    test_limits();
    test_cuts("exif-and-xmp.png");
    test_cuts("rgb-8-interlaced.png");
    test_cuts("cmyk.jpg");
    test_cuts("q75-1-progressive.jpg");
    test_cuts("orientation-6.jpg");
    test_cuts("alpha.webp");
    test_cuts("animated.webp");
    arena_free(&arena);
    buffer_free(&text);
    return test_done();
}
