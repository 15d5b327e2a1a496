#include "media/image_rule.h"

#include <math.h>

/* smart_resize() of Qwen2-VL (transformers, models/qwen2_vl/image_processing_qwen2_vl.py), in double; Python's round()
 * rounds halves to even. */
static void size_by_area(const ImageRule *rule, int width, int height, ImageLayout *layout) {
    const double unit = (double)rule->patch * rule->merge, h = height, w = width;
    const double frames = rule->frames ? rule->frames : 1, paired = rule->frames ? rint(frames / 2) * 2 : 1;
    double rows = rint(h / unit) * unit, columns = rint(w / unit) * unit;
    if (rule->least_group) {
        rows = fmax(unit, rows);
        columns = fmax(unit, columns);
    }
    if (paired * rows * columns > (double)rule->pixels_max) {
        const double shrink = sqrt(frames * h * w / (double)rule->pixels_max);
        rows = fmax(unit, floor(h / shrink / unit) * unit);
        columns = fmax(unit, floor(w / shrink / unit) * unit);
    } else if (paired * rows * columns < (double)rule->pixels_min) {
        const double grow = sqrt((double)rule->pixels_min / (frames * h * w));
        rows = ceil(h * grow / unit) * unit;
        columns = ceil(w * grow / unit) * unit;
    }
    layout->height = (int)rows;
    layout->width = (int)columns;
}

/* Pixtral's image processor (transformers, models/pixtral/image_processing_pil_pixtral.py), in double. */
static void size_within(const ImageRule *rule, int width, int height, ImageLayout *layout) {
    const int unit = rule->patch * rule->merge;
    const double shrink = fmax((double)height / rule->side, (double)width / rule->side);
    if (shrink > 1) {
        height = (int)fmax(1, floor(height / shrink)); /* the reference refuses such images */
        width = (int)fmax(1, floor(width / shrink));
    }
    layout->height = (height + unit - 1) / unit * unit;
    layout->width = (width + unit - 1) / unit * unit;
}

/* get_aspect_ratio_preserving_size() of Gemma 4 (transformers, models/gemma4/image_processing_pil_gemma4.py), in
 * double. False: a side is longer than the rule allows. */
static bool size_by_budget(const ImageRule *rule, int width, int height, ImageLayout *layout) {
    const double unit = (double)rule->patch * rule->merge, most = (double)rule->pixels_max / unit;
    const double scale = sqrt((double)rule->pixels_max / ((double)width * height));
    double rows = floor(scale * height / unit) * unit, columns = floor(scale * width / unit) * unit;
    if (rows == 0) {
        rows = unit;
        columns = fmin(floor((double)width / height) * unit, most);
    } else if (columns == 0) {
        columns = unit;
        rows = fmin(floor((double)height / width) * unit, most);
    }
    if (fmax(rows, columns) > rule->side) return false;
    layout->height = (int)rows;
    layout->width = (int)columns;
    return true;
}

/* What GLM-4V does before (transformers, models/glm46v/image_processing_pil_glm46v.py). */
static void enlarge(const ImageRule *rule, int *width, int *height) {
    const double unit = (double)rule->patch * rule->merge, scale = fmax(unit / *height, unit / *width);
    if (scale <= 1) return;
    *height = (int)(*height * scale);
    *width = (int)(*width * scale);
}

bool image_layout(const ImageRule *rule, int width, int height, ImageLayout *layout, Error *error) {
    const int longest = width > height ? width : height;
    *layout = (ImageLayout){.width = rule->side, .height = rule->side};
    if (rule->square && (int64_t)longest * longest > IMAGE_PIXELS_MAX)
        return fail(error, ERROR_LIMIT,
            "an image of %d × %d pixels, which this model reads as a square: at most %d pixels in all are possible",
            width, height, IMAGE_PIXELS_MAX);
    if (rule->sizing == SIZING_AREA) {
        if (rule->enlarge) enlarge(rule, &width, &height);
        const int longer = width > height ? width : height, shorter = width > height ? height : width;
        if (longer > (int64_t)IMAGE_RATIO_MAX * shorter)
            return fail(error, ERROR_LIMIT,
                "an image of %d × %d pixels: the longer side may be at most %d times the shorter one", width, height,
                IMAGE_RATIO_MAX);
        size_by_area(rule, width, height, layout);
    } else if (rule->sizing == SIZING_WITHIN) {
        size_within(rule, width, height, layout);
    } else if (rule->sizing == SIZING_BUDGET && !size_by_budget(rule, width, height, layout)) {
        return fail(error, ERROR_LIMIT,
            "an image of %d × %d pixels: resized for this model, a side would be longer than %d", width, height,
            rule->side);
    }
    layout->rows = layout->height / rule->patch;
    layout->columns = layout->width / rule->patch;
    layout->grid_rows = layout->rows / rule->merge;
    layout->grid_columns = layout->columns / rule->merge;
    layout->patches = layout->rows * layout->columns;
    layout->tokens = layout->grid_rows * layout->grid_columns;
    return true;
}

/* Long thin images exceed the larger limit: a side has at least `unit` pixels, and growing rounds both sides up. */
int64_t image_patches_max(const ImageRule *rule) {
    const int64_t group = (int64_t)rule->patch * rule->merge, side = (rule->side + group - 1) / group * rule->merge;
    if (rule->sizing == SIZING_BUDGET) return rule->pixels_max / ((int64_t)rule->patch * rule->patch);
    if (rule->sizing != SIZING_AREA) return side * side;
    const double frames = rule->frames ? rule->frames : 1, largest = (double)rule->pixels_max / frames;
    const double unit = (double)rule->patch * rule->merge, least = (double)rule->pixels_min / frames;
    const double ratio = sqrt(IMAGE_RATIO_MAX);
    const double shrunk = fmax(largest, sqrt(largest) * ratio * unit);
    const double grown = least + unit * sqrt(least) * (ratio + 1 / ratio) + unit * unit;
    const double most = fmax(fmax(shrunk, grown), rule->tiles_max ? (double)rule->side * rule->side : 0);
    const int64_t groups = (int64_t)(most / (unit * unit));
    return groups * rule->merge * rule->merge;
}

void image_group_place(const ImageRule *rule, const ImageLayout *layout, int index, int *row, int *column) {
    if (rule->order != PATCHES_WINDOWED) {
        *row = index / layout->grid_columns;
        *column = index % layout->grid_columns;
        return;
    }
    const int side = rule->window, band = index / (side * layout->grid_columns);
    const int in_band = index % (side * layout->grid_columns), left = layout->grid_rows - side * band;
    const int height = left < side ? left : side, window = in_band / (side * height);
    const int in_window = in_band % (side * height), right = layout->grid_columns - side * window;
    const int width = right < side ? right : side;
    *row = side * band + in_window / width;
    *column = side * window + in_window % width;
}

void image_patch_place(const ImageRule *rule, const ImageLayout *layout, int index, int *row, int *column) {
    const int each = rule->merge * rule->merge;
    const bool spread = rule->order == PATCHES_SPREAD;
    const int group = spread ? index % layout->tokens : index / each,
              inside = spread ? index / layout->tokens : index % each;
    image_group_place(rule, layout, group, row, column);
    *row = *row * rule->merge + inside / rule->merge;
    *column = *column * rule->merge + inside % rule->merge;
}

void image_patch_values(const ImageRule *rule, const ImageLayout *layout, const Image *image, int first, int count,
    size_t stride, float *out) {
    float values[3][256];
    for (int c = 0; c < 3; c++)
        for (int byte = 0; byte < 256; byte++)
            values[c][byte] = ((float)byte * (float)(1.0 / 255) - rule->mean[c]) / rule->std[c];
    for (int i = first; i < first + count; i++, out += stride) {
        int row, column;
        float *to = out;
        image_patch_place(rule, layout, i, &row, &column);
        for (int y = 0; y < rule->patch; y++) {
            const size_t line = (size_t)(row * rule->patch + y) * (size_t)image->width;
            const uint8_t *at = image->rgb + (line + (size_t)(column * rule->patch)) * 3;
            for (int x = 0; x < 3 * rule->patch; x++) *to++ = values[x % 3][at[x]];
        }
    }
}
