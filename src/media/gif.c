/* GIF, as Pillow 12 reads it: frames are composed on a canvas whose transparent places have the colour that the palette
 * gives them; a canvas that is smaller than the first frame grows to it. Reference: CompuServe's GIF89a specification;
 * Pillow, src/PIL/GifImagePlugin.py. */
#include <stdlib.h>
#include <string.h>

#include "media/video_internal.h"

enum {
    GIF_HEAD = 13,
    GIF_TABLE = 4096, /* codes of LZW */
    GIF_WIDTH_MAX = 12,
    COLOURS = 256,
    /* What becomes of a frame's place before the next one is shown. */
    DISPOSE_BACKGROUND = 2,
    DISPOSE_PREVIOUS = 3,
};

typedef struct Palette {
    const uint8_t *rgb; /* [count][3]; NULL: shades of grey */
    int count;
} Palette;

typedef struct GifFrame {
    int left, top, width, height;
    bool interlaced;
    int transparent; /* colour that is not painted; −1: none */
    int disposal;
    int duration_ms;
    Palette palette;
    size_t data; /* place of the code size in the file */
} GifFrame;

typedef struct Gif {
    Slice file;
    size_t at;
    int width, height; /* size of the canvas */
    Palette palette;
    int background;
    int disposal; /* that of the last frame with one */
} Gif;

static uint8_t byte_at(const Gif *gif, size_t at) { return (uint8_t)gif->file.data[at]; }
static int number_at(const Gif *gif, size_t at) { return byte_at(gif, at) | byte_at(gif, at + 1) << 8; }

static bool has(const Gif *gif, size_t bytes) { return gif->file.size - gif->at >= bytes; }
static bool fail_short(Error *error) { return fail(error, ERROR_FORMAT, "the file is truncated"); }

/* Takes a palette of 2 … 256 colours. */
static bool take_palette(Gif *gif, int flags, Palette *palette, Error *error) {
    const int count = 2 << (flags & 7);
    if (!has(gif, (size_t)count * 3)) return fail_short(error);
    *palette = (Palette){(const uint8_t *)gif->file.data + gif->at, count};
    gif->at += (size_t)count * 3;
    return true;
}

static bool begin(Slice file, Gif *gif, Error *error) {
    *gif = (Gif){.file = file};
    if (file.size < GIF_HEAD) return fail_short(error);
    gif->width = number_at(gif, 6);
    gif->height = number_at(gif, 8);
    const int flags = byte_at(gif, 10);
    gif->at = GIF_HEAD;
    if (!(flags & 0x80)) return true;
    gif->background = byte_at(gif, 11);
    return take_palette(gif, flags, &gif->palette, error);
}

/* Up to behind the empty block that ends a list of blocks. */
static bool skip_blocks(Gif *gif, Error *error) {
    for (;;) {
        if (!has(gif, 1)) return fail_short(error);
        const size_t size = byte_at(gif, gif->at++);
        if (size == 0) return true;
        if (!has(gif, size)) return fail_short(error);
        gif->at += size;
    }
}

static bool take_extension(Gif *gif, GifFrame *frame, Error *error) {
    enum { GRAPHIC_CONTROL = 0xF9 };
    if (!has(gif, 1)) return fail_short(error);
    const int label = byte_at(gif, gif->at++);
    if (label == GRAPHIC_CONTROL && has(gif, 5) && byte_at(gif, gif->at) >= 4) {
        const int flags = byte_at(gif, gif->at + 1), disposal = flags >> 2 & 7;
        frame->transparent = flags & 1 ? byte_at(gif, gif->at + 4) : -1;
        frame->duration_ms = 10 * number_at(gif, gif->at + 2);
        if (disposal) gif->disposal = disposal;
    }
    return skip_blocks(gif, error);
}

static bool take_image(Gif *gif, GifFrame *frame, Error *error) {
    if (!has(gif, 10)) return fail_short(error);
    frame->left = number_at(gif, gif->at);
    frame->top = number_at(gif, gif->at + 2);
    frame->width = number_at(gif, gif->at + 4);
    frame->height = number_at(gif, gif->at + 6);
    const int flags = byte_at(gif, gif->at + 8);
    gif->at += 9;
    frame->interlaced = flags & 0x40;
    frame->palette = gif->palette;
    frame->disposal = gif->disposal;
    if (flags & 0x80 && !take_palette(gif, flags, &frame->palette, error)) return false;
    if (!has(gif, 1)) return fail_short(error);
    frame->data = gif->at++;
    return skip_blocks(gif, error);
}

/* The next frame; *found false: there are no more. A file may end without its trailer. */
static bool next_frame(Gif *gif, GifFrame *frame, bool *found, Error *error) {
    *frame = (GifFrame){.transparent = -1};
    *found = false;
    while (has(gif, 1)) {
        const char kind = gif->file.data[gif->at++];
        if (kind == ';') return true;
        if (kind == '!' && !take_extension(gif, frame, error)) return false;
        if (kind != ',') continue; /* stray bytes are skipped */
        *found = true;
        return take_image(gif, frame, error);
    }
    return true;
}

/* The canvas has room for the first frame. */
static bool size_canvas(Gif *gif, Error *error) {
    Gif copy = *gif;
    GifFrame first;
    bool found;
    if (!next_frame(&copy, &first, &found, error)) return false;
    if (!found) return fail(error, ERROR_FORMAT, "a file without an image");
    if (gif->width < first.left + first.width) gif->width = first.left + first.width;
    if (gif->height < first.top + first.height) gif->height = first.top + first.height;
    return image_check_size(gif->width, gif->height, error);
}

/* ---- pixels ---- */

/* Codes of growing width in blocks of bytes. */
typedef struct Codes {
    const Gif *gif;
    size_t at, left; /* left: bytes of the block */
    uint32_t bits;
    int count;
} Codes;

static bool next_code(Codes *codes, int width, int *code) {
    while (codes->count < width) {
        if (codes->left == 0) codes->left = byte_at(codes->gif, codes->at++); /* skip_blocks() has seen them all */
        if (codes->left == 0) return false;
        codes->bits |= (uint32_t)byte_at(codes->gif, codes->at++) << codes->count;
        codes->left--;
        codes->count += 8;
    }
    *code = (int)(codes->bits & ((1U << width) - 1));
    codes->bits >>= width;
    codes->count -= width;
    return true;
}

/* LZW: `count` colours of a frame. */
static bool unpack(const Gif *gif, const GifFrame *frame, uint8_t *out, size_t count, Error *error) {
    uint16_t before[GIF_TABLE];
    uint8_t last[GIF_TABLE], text[GIF_TABLE + 1];
    Codes codes = {.gif = gif, .at = frame->data + 1};
    const int least = byte_at(gif, frame->data), clear = 1 << least, end = clear + 1;
    if (least < 1 || least > 8) return fail(error, ERROR_FORMAT, "codes of %d bits", least);
    int width = least + 1, next = end + 1, previous = -1, first = 0, code;
    for (size_t done = 0; done < count;) {
        if (!next_code(&codes, width, &code) || code == end) return fail_short(error);
        if (code == clear) {
            width = least + 1;
            next = end + 1;
            previous = -1;
            continue;
        }
        if (code > next || (previous < 0 && code > clear)) return fail(error, ERROR_FORMAT, "damaged bytes");
        int size = 0;
        const int taken = code;
        if (code == next && previous >= 0) { /* the text before and its own first colour */
            text[size++] = (uint8_t)first;
            code = previous;
        }
        for (; code > clear; code = before[code]) text[size++] = last[code];
        text[size++] = (uint8_t)code;
        first = code;
        if (previous >= 0 && next < GIF_TABLE) {
            before[next] = (uint16_t)previous;
            last[next++] = (uint8_t)first;
            if (next == 1 << width && width < GIF_WIDTH_MAX) width++;
        }
        previous = taken;
        while (size > 0 && done < count) out[done++] = text[--size];
    }
    return true;
}

static void colour_of(const Palette *palette, int index, uint8_t rgb[3]) {
    const bool known = palette->rgb && index < palette->count;
    for (int c = 0; c < 3; c++) rgb[c] = known ? palette->rgb[3 * index + c] : palette->rgb ? 0 : (uint8_t)index;
}

/* A part of the canvas, cut at its edges. */
typedef struct Area {
    int left, top, right, bottom;
} Area;

static Area area_of(const GifFrame *frame, const Image *canvas) {
    const int right = frame->left + frame->width, bottom = frame->top + frame->height;
    return (Area){frame->left < canvas->width ? frame->left : canvas->width,
        frame->top < canvas->height ? frame->top : canvas->height, right < canvas->width ? right : canvas->width,
        bottom < canvas->height ? bottom : canvas->height};
}

static uint8_t *pixel(const Image *canvas, int x, int y) {
    return canvas->rgb + ((size_t)y * (size_t)canvas->width + (size_t)x) * 3;
}

static void fill(const Image *canvas, Area area, const uint8_t rgb[3]) {
    for (int y = area.top; y < area.bottom; y++)
        for (int x = area.left; x < area.right; x++) memcpy(pixel(canvas, x, y), rgb, 3);
}

/* The row of the frame that is stored as number `index`. */
static int row_of(const GifFrame *frame, int index) {
    static const int begins[] = {0, 4, 2, 1}, steps[] = {8, 8, 4, 2};
    for (size_t pass = 0; frame->interlaced && pass < COUNT_OF(begins); pass++) {
        const int rows = (frame->height - begins[pass] + steps[pass] - 1) / steps[pass];
        if (index < rows) return begins[pass] + index * steps[pass];
        if (rows > 0) index -= rows;
    }
    return index;
}

/* transparent: colour that is left out; −1: none. */
static void paint(const Image *canvas, const GifFrame *frame, const uint8_t *colours, int transparent) {
    const Area area = area_of(frame, canvas);
    for (int i = 0; i < frame->height; i++) {
        const int y = frame->top + row_of(frame, i);
        if (y >= area.bottom) continue;
        for (int x = area.left; x < area.right; x++) {
            const int colour = colours[(size_t)i * (size_t)frame->width + (size_t)(x - frame->left)];
            if (colour != transparent) colour_of(&frame->palette, colour, pixel(canvas, x, y));
        }
    }
}

typedef struct Canvas {
    Image image, before; /* before: what DISPOSE_PREVIOUS restores; without rgb: nothing */
    uint8_t *colours;    /* those of a frame, before they are painted */
    size_t room;
    GifFrame last; /* the frame that is shown */
    int shown;     /* frames so far */
} Canvas;

static void canvas_free(Canvas *canvas) {
    image_free(&canvas->image);
    image_free(&canvas->before);
    free(canvas->colours);
}

/* The colour of places where nothing is; the first one, if the palette has no such colour. */
static void empty_colour(const Gif *gif, const GifFrame *frame, uint8_t rgb[3]) {
    const int index = frame->transparent >= 0 ? frame->transparent : gif->background;
    colour_of(&frame->palette, frame->palette.rgb && index >= frame->palette.count ? 0 : index, rgb);
}

static void dispose(const Gif *gif, Canvas *canvas) {
    uint8_t rgb[3];
    const Area area = area_of(&canvas->last, &canvas->image);
    if (canvas->last.disposal == DISPOSE_BACKGROUND) {
        empty_colour(gif, &canvas->last, rgb);
        fill(&canvas->image, area, rgb);
    }
    if (canvas->last.disposal != DISPOSE_PREVIOUS || !canvas->before.rgb) return;
    for (int y = area.top; y < area.bottom && area.left < area.right; y++)
        memcpy(pixel(&canvas->image, area.left, y), pixel(&canvas->before, area.left, y),
            (size_t)(area.right - area.left) * 3);
}

static bool keep_before(Canvas *canvas, Error *error) {
    if (!canvas->before.rgb && !image_alloc(&canvas->before, canvas->image.width, canvas->image.height, error))
        return false;
    memcpy(canvas->before.rgb, canvas->image.rgb, (size_t)canvas->image.width * (size_t)canvas->image.height * 3);
    return true;
}

/* Before the first frame the canvas has the colour of its transparent places, or the palette's first one. */
static bool first_canvas(const Gif *gif, Canvas *canvas, const GifFrame *frame, Error *error) {
    uint8_t rgb[3];
    if (!image_alloc(&canvas->image, gif->width, gif->height, error)) return false;
    colour_of(&frame->palette, frame->transparent >= 0 ? frame->transparent : 0, rgb);
    fill(&canvas->image, (Area){0, 0, gif->width, gif->height}, rgb);
    return true;
}

static bool show(const Gif *gif, Canvas *canvas, const GifFrame *frame, Error *error) {
    const size_t count = (size_t)frame->width * (size_t)frame->height;
    if (count > IMAGE_PIXELS_MAX)
        return fail(error, ERROR_LIMIT, "a frame of %d × %d pixels, at most %d are possible", frame->width,
            frame->height, IMAGE_PIXELS_MAX);
    if (canvas->room < count) {
        free(canvas->colours);
        canvas->colours = malloc(count);
        canvas->room = canvas->colours ? count : 0;
        if (!canvas->colours) return fail(error, ERROR_MEMORY, "no memory for %zu pixels", count);
    }
    const bool first = canvas->shown++ == 0;
    if (first && !first_canvas(gif, canvas, frame, error)) return false;
    if (!first) dispose(gif, canvas);
    const bool keep = frame->disposal == DISPOSE_PREVIOUS && (!first || frame->transparent >= 0);
    if (keep && !keep_before(canvas, error)) return false;
    if (!keep) image_free(&canvas->before);
    canvas->last = *frame;
    if (count > 0 && !unpack(gif, frame, canvas->colours, count, error)) return false;
    paint(&canvas->image, frame, canvas->colours, first ? -1 : frame->transparent);
    return true;
}

/* ---- as a video ---- */

bool gif_open(Video *video, Error *error) {
    Gif gif;
    GifFrame frame;
    bool found = true;
    if (!begin(video->file, &gif, error) || !size_canvas(&gif, error)) return false;
    video->width = gif.width;
    video->height = gif.height;
    while (next_frame(&gif, &frame, &found, error) && found)
        if (!video_add_frame(video, frame.duration_ms, error)) return false;
    return !found;
}

bool gif_read(const Video *video, const int *chosen, int count, VideoTake *take, void *context, Error *error) {
    Gif gif;
    GifFrame frame;
    Canvas canvas = {0};
    bool found = true, ok = begin(video->file, &gif, error) && size_canvas(&gif, error);
    for (int done = 0; ok && done < count;) {
        ok = next_frame(&gif, &frame, &found, error) && (found || fail_short(error)) &&
            show(&gif, &canvas, &frame, error);
        if (!ok || canvas.shown != chosen[done] + 1) continue;
        ok = take(context, done, &canvas.image, error);
        done++;
    }
    canvas_free(&canvas);
    return ok;
}

/* ---- its first frame as an image ---- */

bool gif_header(Slice file, ImageHeader *header, Error *error) {
    Gif gif;
    if (!begin(file, &gif, error) || !size_canvas(&gif, error)) return false;
    *header = (ImageHeader){gif.width, gif.height, 1};
    return true;
}

bool gif_decode(Slice file, Image *image, Error *error) {
    Gif gif;
    GifFrame frame;
    Canvas canvas = {0};
    bool found;
    const bool ok = begin(file, &gif, error) && size_canvas(&gif, error) && next_frame(&gif, &frame, &found, error) &&
        show(&gif, &canvas, &frame, error);
    if (ok) {
        *image = canvas.image;
        canvas.image = (Image){0};
    }
    canvas_free(&canvas);
    return ok;
}
