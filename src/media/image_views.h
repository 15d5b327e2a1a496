/* The views of an image that a family's encoder computes: the image as a whole, and tiles of an enlarged one before it
 * (Idefics 3, SmolVLM, LFM2-VL). */
#pragma once
#include "media/image_rule.h"

enum {
    IMAGE_VIEWS_MAX = 65,  /* 8 × 8 tiles and the whole */
    TILES_LISTED_MAX = 10, /* largest ImageRule.tiles_max */
};

typedef struct ImageDivision {
    int rows, columns;               /* tiles; 0: there are none */
    int count;                       /* views: the tiles row by row, then the whole */
    ImageLayout layout, tile_layout; /* layouts of the whole and of each tile */
    int scaled_width, scaled_height; /* pixels after a first resize; 0: there is none */
    int tiled_width, tiled_height;   /* pixels that the tiles divide, after a second resize; 0: there is none */
} ImageDivision;

/* The views of an image of this size. Errors as image_layout(). */
NODISCARD bool image_divide(const ImageRule *rule, int width, int height, ImageDivision *division, Error *error);
/* Layout of view number `index`. */
const ImageLayout *image_view_layout(const ImageDivision *division, int index);
/* Tokens of all views. */
int image_division_tokens(const ImageDivision *division);
/* Their pixels: views[count], freed by the caller with image_free(), on failure too. */
NODISCARD bool image_views(
    const ImageRule *rule, const ImageDivision *division, const Image *image, Image *views, Error *error);
