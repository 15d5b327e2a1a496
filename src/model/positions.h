/* Learned positions of patches, from a table of another size than the image's grid. Threads: any. */
#pragma once
#include "model/vision.h"

enum { POSITION_SIDE_MAX = 128 }; /* largest side of a table that is stretched */

/* The position of a patch, [hidden]; zeros where there are none. */
void position_read(
    const PositionTable *table, const ImageLayout *layout, int row, int column, int64_t hidden, float *out);
