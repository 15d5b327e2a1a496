/* How a family makes patches of an image: its size after resizing, the order of the patches and their values. */
#pragma once
#include "media/image.h"

/* The longer side is at most this many times the shorter one, as in the families' own preprocessing. */
enum { IMAGE_RATIO_MAX = 200 };

typedef enum ImageSizing {
    SIZING_AREA,   /* sides are multiples of patch · merge, the area lies between two limits (Qwen2-VL) */
    SIZING_FIXED,  /* side × side, whatever the image's shape (SigLIP) */
    SIZING_WITHIN, /* no side is longer than `side`; then up to multiples of patch · merge (Pixtral) */
    SIZING_BUDGET, /* the largest multiples of patch · merge with at most pixels_max pixels, about of the image's shape
                      (Gemma 4) */
} ImageSizing;

/* Order of the patches: the merge × merge patches that become one token are its group. */
typedef enum PatchOrder {
    PATCHES_GROUPED,  /* group after group, each row by row */
    PATCHES_SPREAD,   /* the first patches of all groups, then the second ones … */
    PATCHES_WINDOWED, /* window after window, each row by row, group after group in it; windows at the right and lower
                         edge are smaller */
} PatchOrder;

typedef struct ImageRule {
    ImageSizing sizing;
    ImageFilter filter;
    PatchOrder order;
    int patch;                      /* pixels of a patch's side */
    int merge;                      /* patches of a group's side */
    int window;                     /* PATCHES_WINDOWED: groups of a window's side */
    int64_t pixels_min, pixels_max; /* SIZING_AREA; SIZING_BUDGET: pixels_max alone */
    int frames; /* SIZING_AREA: the area of this many frames of a video lies between the limits; 0: of one image */
    int64_t pixels_low; /* pixels_max of an image with low detail, if it is not below pixels_min; 0: the same */
    int side;     /* pixels; SIZING_FIXED: a multiple of patch · merge; SIZING_WITHIN, SIZING_BUDGET: the longest */
    bool enlarge; /* SIZING_AREA: sides below patch · merge first grow to it, both by one factor (GLM-4V) */
    bool least_group; /* SIZING_AREA: a side is rounded to a group at least, before the area is looked at (LFM2-VL) */
    bool square;      /* SIZING_FIXED: black is added along both longer sides first, up to a square (LLaVA) */
    int longest;      /* pixels that the longer side is resized to before anything else; 0: it is not */
    bool tiles;       /* with `longest`: tiles of side × side are views of their own (image_views.h) */
    /* Not 0: with `tiles`, an image of more than tolerance · pixels_max pixels is divided into tiles_min to tiles_max
     * tiles of side × side, and the whole is resized by itself (LFM2-VL). */
    int tiles_min, tiles_max;
    double tolerance;
    float mean[3], std[3]; /* value = (byte / 255 − mean) / std */
} ImageRule;

typedef struct ImageLayout {
    int width, height;           /* pixels after resizing */
    int rows, columns;           /* patches */
    int grid_rows, grid_columns; /* tokens */
    int patches, tokens;
} ImageLayout;

/* The layout of an image of this size. ERROR_LIMIT: more than IMAGE_RATIO_MAX, or a side too long for SIZING_BUDGET. */
NODISCARD bool image_layout(const ImageRule *rule, int width, int height, ImageLayout *layout, Error *error);
/* No image has more patches. */
int64_t image_patches_max(const ImageRule *rule);
/* Row and column in the grid of tokens of group number `index`. */
void image_group_place(const ImageRule *rule, const ImageLayout *layout, int index, int *row, int *column);
/* Row and column of patch number `index`. */
void image_patch_place(const ImageRule *rule, const ImageLayout *layout, int index, int *row, int *column);
/* Values of patches first … first + count − 1 of an image that has the layout's size: [count][patch][patch][3], with
 * `stride` floats from a patch to the next. */
void image_patch_values(const ImageRule *rule, const ImageLayout *layout, const Image *image, int first, int count,
    size_t stride, float *out);
