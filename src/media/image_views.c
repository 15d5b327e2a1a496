#include "media/image_views.h"

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

bool image_divide(const ImageRule *rule, int width, int height, ImageDivision *division, Error *error) {
    *division = (ImageDivision){.count = 1};
    if (!image_layout(rule, width, height, &division->layout, error)) return false;
    if (rule->longest) scale(rule, width, height, division);
    if (rule->longest && rule->tiles) tile(rule, division);
    return true;
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
static bool cut_views(const ImageRule *rule, const ImageDivision *d, const Image *image, Image *views, Error *error) {
    for (int i = 0; i < d->count - 1; i++)
        if (!cut(image, i % d->columns * rule->side, i / d->columns * rule->side, rule->side, &views[i], error))
            return false;
    return image_resize(image, d->layout.width, d->layout.height, rule->filter, &views[d->count - 1], error);
}

bool image_views(const ImageRule *rule, const ImageDivision *d, const Image *image, Image *views, Error *error) {
    Image scaled = {0}, tiled = {0};
    bool ok = true;
    memset(views, 0, (size_t)d->count * sizeof *views);
    if (d->scaled_width) ok = image_resize(image, d->scaled_width, d->scaled_height, rule->filter, &scaled, error);
    if (ok && d->tiled_width) ok = image_resize(&scaled, d->tiled_width, d->tiled_height, rule->filter, &tiled, error);
    ok = ok && cut_views(rule, d, d->tiled_width ? &tiled : d->scaled_width ? &scaled : image, views, error);
    image_free(&scaled);
    image_free(&tiled);
    return ok;
}
