#include "media/image_views.h"

#include <math.h>
#include <string.h>

/* get_resize_output_image_size() of transformers' models/idefics3/image_processing_pil_idefics3.py, in double. */
static void scale(const ImageRule *rule, int width, int height, ImageDivision *d) {
    const double aspect = (double)width / height;
    const bool wide = width >= height;
    int other = wide ? (int)(rule->longest / aspect) : (int)(rule->longest * aspect);
    other += other % 2;
    if (other < 1) other = 1;
    d->scaled_width = wide ? rule->longest : other;
    d->scaled_height = wide ? other : rule->longest;
}

static int rounded_up(int value, int unit) { return (value + unit - 1) / unit * unit; }

/* resize_for_vision_encoder() and split_images() of the same file. */
static void tile(const ImageRule *rule, ImageDivision *d) {
    const double aspect = (double)d->scaled_width / d->scaled_height;
    const int side = rule->side;
    if (d->scaled_width >= d->scaled_height) {
        d->tiled_width = rounded_up(d->scaled_width, side);
        d->tiled_height = rounded_up((int)(d->tiled_width / aspect), side);
    } else {
        d->tiled_height = rounded_up(d->scaled_height, side);
        d->tiled_width = rounded_up((int)(d->tiled_height * aspect), side);
    }
    if (d->tiled_height == 0) d->tiled_height = side;
    if (d->tiled_width == 0) d->tiled_width = side;
    if (d->tiled_width == side && d->tiled_height == side) return;
    d->rows = d->tiled_height / side;
    d->columns = d->tiled_width / side;
    d->count += d->rows * d->columns;
}

/* Widths and heights in tiles that find_closest_aspect_ratio() of LFM2-VL is given (transformers, models/lfm2_vl/
 * image_processing_lfm2_vl.py), in its order: by area, then as CPython's sets have them. */
static const uint8_t grids[][2] = {{1, 2}, {2, 1}, {3, 1}, {1, 3}, {2, 2}, {4, 1}, {1, 4}, {5, 1}, {1, 5}, {1, 6},
    {6, 1}, {3, 2}, {2, 3}, {7, 1}, {1, 7}, {4, 2}, {2, 4}, {1, 8}, {8, 1}, {1, 9}, {3, 3}, {9, 1}, {2, 5}, {5, 2},
    {10, 1}, {1, 10}};

static void choose_grid(const ImageRule *rule, int width, int height, ImageDivision *d) {
    const double aspect = (double)width / height, area = (double)width * height;
    double least = INFINITY;
    for (size_t i = 0; i < COUNT_OF(grids); i++) {
        const int columns = grids[i][0], rows = grids[i][1], tiles = columns * rows;
        const double off = fabs(aspect - (double)columns / rows);
        if (tiles < rule->tiles_min || tiles > rule->tiles_max || off > least) continue;
        if (off == least && area <= 0.5 * rule->side * rule->side * tiles) continue;
        least = off;
        d->columns = columns;
        d->rows = rows;
    }
    d->count += d->rows * d->columns;
    d->tiled_width = d->columns * rule->side;
    d->tiled_height = d->rows * rule->side;
}

static bool is_too_large(const ImageRule *rule, int width, int height) {
    const double unit = (double)rule->patch * rule->merge, least = rule->patch;
    const double rows = fmax(least, rint(height / unit) * unit), columns = fmax(least, rint(width / unit) * unit);
    return rows * columns > (double)rule->pixels_max * rule->tolerance;
}

const ImageLayout *image_view_layout(const ImageDivision *division, int index) {
    return index + 1 < division->count ? &division->tile_layout : &division->layout;
}

int image_division_tokens(const ImageDivision *division) {
    return (division->count - 1) * division->tile_layout.tokens + division->layout.tokens;
}

bool image_divide(const ImageRule *rule, int width, int height, ImageDivision *division, Error *error) {
    *division = (ImageDivision){.count = 1};
    if (!image_layout(rule, width, height, &division->layout, error)) return false;
    if (rule->longest) scale(rule, width, height, division);
    if (rule->longest && rule->tiles) tile(rule, division);
    if (rule->tiles_max && rule->tiles && is_too_large(rule, width, height)) choose_grid(rule, width, height, division);
    const ImageRule square = {.sizing = SIZING_FIXED, .side = rule->side, .patch = rule->patch, .merge = rule->merge};
    return division->count == 1 || image_layout(&square, rule->side, rule->side, &division->tile_layout, error);
}

static bool cut(const Image *image, int left, int top, int side, Image *view, Error *error) {
    if (!image_alloc(view, side, side, error)) return false;
    const size_t line = (size_t)side * 3;
    for (int y = 0; y < side; y++)
        memcpy(view->rgb + (size_t)y * line, image->rgb + ((size_t)(top + y) * (size_t)image->width + (size_t)left) * 3,
            line);
    return true;
}

/* The tiles of an image whose sides are multiples of a tile's, then the whole. */
static bool cut_views(
    const ImageRule *rule, const ImageDivision *d, const Image *image, const Image *whole, Image *views, Error *error) {
    for (int i = 0; i < d->count - 1; i++)
        if (!cut(image, i % d->columns * rule->side, i / d->columns * rule->side, rule->side, &views[i], error))
            return false;
    return image_resize(whole, d->layout.width, d->layout.height, rule->filter, &views[d->count - 1], error);
}

/* The image in the middle of a black square. */
static bool make_square(const Image *image, Image *out, Error *error) {
    const int side = image->width > image->height ? image->width : image->height;
    const size_t left = (size_t)(side - image->width) / 2, top = (size_t)(side - image->height) / 2;
    const size_t line = (size_t)image->width * 3;
    if (!image_alloc(out, side, side, error)) return false;
    memset(out->rgb, 0, (size_t)side * (size_t)side * 3);
    for (size_t y = 0; y < (size_t)image->height; y++)
        memcpy(out->rgb + ((top + y) * (size_t)side + left) * 3, image->rgb + y * line, line);
    return true;
}

bool image_views(const ImageRule *rule, const ImageDivision *d, const Image *image, Image *views, Error *error) {
    Image scaled = {0}, tiled = {0}, squared = {0};
    bool ok = true;
    memset(views, 0, (size_t)d->count * sizeof *views);
    if (rule->square && image->width != image->height) {
        if (!make_square(image, &squared, error)) return false;
        image = &squared;
    }
    if (d->scaled_width) ok = image_resize(image, d->scaled_width, d->scaled_height, rule->filter, &scaled, error);
    const Image *from = d->scaled_width ? &scaled : image;
    if (ok && d->tiled_width) ok = image_resize(from, d->tiled_width, d->tiled_height, rule->filter, &tiled, error);
    const Image *last = d->tiled_width ? &tiled : from;
    ok = ok && cut_views(rule, d, last, rule->tiles_max ? image : last, views, error);
    image_free(&scaled);
    image_free(&tiled);
    image_free(&squared);
    return ok;
}
