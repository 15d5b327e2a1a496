/* Resampling in the arithmetic of Pillow 12, bit for bit. Pillow 13 takes the vertical pass first in more cases; here
 * the horizontal one is first, as in torch, except for the images of Image.resize() that is_tall() tells. */
#include "media/image_internal.h"

#include <math.h>
#include <stdlib.h>

enum { PRECISION = 22 /* bits behind the point of a coefficient */ };

static double bilinear(double x) {
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double bicubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double sinc(double x) {
    if (x == 0) return 1;
    x *= M_PI;
    return sin(x) / x;
}

static double lanczos(double x) { return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0; }

static const struct {
    double (*weight)(double x);
    double support;
} filters[] = {[IMAGE_LANCZOS] = {lanczos, 3}, [IMAGE_BILINEAR] = {bilinear, 1}, [IMAGE_BICUBIC] = {bicubic, 2}};

/* Output i of an axis is the sum of inputs first … first + count − 1, each times its coefficient. */
typedef struct Tap {
    int first, count;
} Tap;

typedef struct Axis {
    int width;       /* largest count */
    Tap *taps;       /* [outputs] */
    int32_t *coefs;  /* [outputs, width] */
    double *weights; /* [width] of the output being computed */
} Axis;

static void axis_free(Axis *axis) {
    free(axis->taps);
    free(axis->coefs);
    free(axis->weights);
}

static bool axis_open(Axis *axis, int from, int to, ImageFilter filter, Error *error) {
    const double scale = (double)from / to, filter_scale = fmax(scale, 1);
    const double support = filters[filter].support * filter_scale, inverse = 1 / filter_scale;
    const int width = (int)ceil(support) * 2 + 1;
    *axis = (Axis){.width = width,
        .taps = malloc((size_t)to * sizeof *axis->taps),
        .coefs = malloc((size_t)to * (size_t)width * sizeof *axis->coefs),
        .weights = malloc((size_t)width * sizeof *axis->weights)};
    if (!axis->taps || !axis->coefs || !axis->weights)
        return fail(error, ERROR_MEMORY, "no memory to resize an image from %d to %d pixels", from, to);
    for (int i = 0; i < to; i++) {
        const double center = (i + 0.5) * scale;
        const int low = (int)(center - support + 0.5), high = (int)(center + support + 0.5);
        const int first = low < 0 ? 0 : low, count = (high > from ? from : high) - first;
        double sum = 0;
        for (int k = 0; k < count; k++) {
            axis->weights[k] = filters[filter].weight((k + first - center + 0.5) * inverse);
            sum += axis->weights[k];
        }
        axis->taps[i] = (Tap){first, count};
        for (int k = 0; k < count; k++) {
            const double weight = (sum != 0 ? axis->weights[k] / sum : axis->weights[k]) * (1 << PRECISION);
            axis->coefs[(size_t)i * (size_t)width + (size_t)k] = (int32_t)(weight + (weight < 0 ? -0.5 : 0.5));
        }
    }
    return true;
}

static uint8_t clip(int32_t sum) {
    const int32_t value = sum >> PRECISION;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static bool resize_width(const Image *from, int width, ImageFilter filter, Image *to, Error *error) {
    Axis axis = {0};
    *to = (Image){0};
    const bool ok = axis_open(&axis, from->width, width, filter, error) && image_alloc(to, width, from->height, error);
    for (int y = 0; ok && y < from->height; y++) {
        const uint8_t *row = from->rgb + (size_t)y * (size_t)from->width * 3;
        uint8_t *out = to->rgb + (size_t)y * (size_t)width * 3;
        for (int x = 0; x < width; x++, out += 3) {
            const Tap tap = axis.taps[x];
            const int32_t *coefs = axis.coefs + (size_t)x * (size_t)axis.width;
            const uint8_t *at = row + (size_t)tap.first * 3;
            int32_t red = 1 << (PRECISION - 1), green = red, blue = red;
            for (int k = 0; k < tap.count; k++, at += 3) {
                red += coefs[k] * at[0];
                green += coefs[k] * at[1];
                blue += coefs[k] * at[2];
            }
            out[0] = clip(red);
            out[1] = clip(green);
            out[2] = clip(blue);
        }
    }
    axis_free(&axis);
    return ok;
}

static bool resize_height(const Image *from, int height, ImageFilter filter, Image *to, Error *error) {
    Axis axis = {0};
    *to = (Image){0};
    const size_t stride = (size_t)from->width * 3;
    int32_t *sums = malloc(stride * sizeof *sums);
    const bool ok = (sums || fail(error, ERROR_MEMORY, "no memory to resize an image")) &&
        axis_open(&axis, from->height, height, filter, error) && image_alloc(to, from->width, height, error);
    for (int y = 0; ok && y < height; y++) {
        const Tap tap = axis.taps[y];
        for (size_t i = 0; i < stride; i++) sums[i] = 1 << (PRECISION - 1);
        for (int k = 0; k < tap.count; k++) {
            const uint8_t *row = from->rgb + (size_t)(tap.first + k) * stride;
            const int32_t coef = axis.coefs[(size_t)y * (size_t)axis.width + (size_t)k];
            for (size_t i = 0; i < stride; i++) sums[i] += coef * row[i];
        }
        for (size_t i = 0; i < stride; i++) to->rgb[(size_t)y * stride + i] = clip(sums[i]);
    }
    free(sums);
    axis_free(&axis);
    return ok;
}

/* Images that Pillow makes lower before it makes them wider. */
static bool is_tall(const Image *from, int height) {
    return from->height > 100LL * from->width && height < from->height;
}

/* One pass, or a copy where the size of its axis stays. */
static bool resize_axis(const Image *from, int size, bool vertical, ImageFilter filter, Image *to, Error *error) {
    if (size != (vertical ? from->height : from->width))
        return vertical ? resize_height(from, size, filter, to, error) : resize_width(from, size, filter, to, error);
    if (!image_alloc(to, from->width, from->height, error)) return false;
    memcpy(to->rgb, from->rgb, (size_t)from->width * (size_t)from->height * 3);
    return true;
}

bool image_resize(const Image *from, int width, int height, ImageFilter filter, Image *to, Error *error) {
    *to = (Image){0};
    if (!image_check_size(width, height, error)) return false;
    const bool vertical_first = width == from->width || is_tall(from, height);
    const bool once = width == from->width || height == from->height;
    if (once) return resize_axis(from, vertical_first ? height : width, vertical_first, filter, to, error);
    Image between;
    const bool ok = resize_axis(from, vertical_first ? height : width, vertical_first, filter, &between, error) &&
        resize_axis(&between, vertical_first ? width : height, !vertical_first, filter, to, error);
    image_free(&between);
    return ok;
}
