/* The products with NEON, in the order that linear.h defines: each in the file that its name says. */
#include "backend/cpu/linear/linear_neon.h"

const LinearKernels linear_kernels_neon = {
    .quantise = linear_quantise_neon,
    .arrange = linear_arrange_neon,
    .few_rows = 8,
    .few_rows_narrow = 8,
    .few = linear_few_neon,
    .layout = linear_layout_neon,
    .panel_rows = PANEL,
    .tile_rows = TILE,
    .unpack = linear_unpack_neon,
    .tile = linear_tile_neon,
    .plain = linear_plain_neon,
};
