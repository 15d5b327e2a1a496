/* The products with AVX2, in the order that linear.h defines: each in the file that its name says. */
#include "backend/cpu/linear/linear_avx2.h"

const LinearKernels linear_kernels_avx2 = {
    .quantise = linear_quantise_avx2,
    .arrange = linear_arrange_avx2,
    .few_rows = LINEAR_FEW,
    .few_rows_narrow = LINEAR_FEW,
    .few = linear_few_avx2,
    .layout = linear_layout_avx2,
    .panel_rows = PANEL,
    .tile_rows = TILE,
    .unpack = linear_unpack_avx2,
    .tile = linear_tile_avx2,
    .plain = linear_plain_avx2,
};
