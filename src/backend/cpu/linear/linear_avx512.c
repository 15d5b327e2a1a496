/* The products with AVX-512 VNNI and VBMI, and with AMX's tiles beside them, in the order that linear.h defines: each
 * in the file that its name says. */
#include "backend/cpu/linear/linear_avx512.h"

static void arrange_amx(LinearLayout layout, const int8_t *q, int64_t cols, int group, int8_t *out) {
    if (layout == LAYOUT_PANEL)
        linear_arrange_amx(q, cols, group, out);
    else
        linear_arrange_avx512(layout, q, cols, group, out);
}

const LinearKernels linear_kernels_avx512 = {
    .quantise = linear_quantise_avx512,
    .arrange = linear_arrange_avx512,
    .few_rows = 24,
    .few_rows_narrow = 24,
    .few = linear_few_avx512,
    .layout = linear_layout_avx512,
    .panel_rows = PANEL,
    .tile_rows = LINEAR_TILE_ROWS,
    .unpack = linear_unpack_avx512,
    .tile = linear_tile_avx512,
    .plain = linear_plain_avx512,
};

const LinearKernels linear_kernels_amx = {
    .quantise = linear_quantise_avx512,
    .arrange = arrange_amx,
    .few_rows = 12,
    .few_rows_narrow = 24,
    .few = linear_few_avx512,
    .layout = linear_layout_avx512,
    .panel_rows = PANEL,
    .tile_rows = LINEAR_AMX_ROWS,
    .row_groups = true,
    .many_tiles = true,
    .chunk_bytes = 1 << 20,
    .unpack = linear_unpack_avx512,
    .tile = linear_tile_amx,
    .plain = linear_plain_avx512,
};
