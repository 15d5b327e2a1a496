/* The row and attention kernels for AVX2. */
#include "backend/cpu/attention/attention_impl.h"
#include "backend/cpu/rows_impl.h"
#include "backend/cpu/attention/scan_impl.h"

const CpuKernels cpu_kernels_avx2 = {
    .name = "avx2",
    .description = "avx2",
    .linear = &linear_kernels_avx2,
    .norm_row = norm_row,
    .glu_row = glu_row,
    .activate_row = activate_row,
    .logits_row = logits_row,
    .attention = &attention_kernels,
    .recurrent = &recurrent_kernels_avx2,
    .compressed = &compressed_kernels_avx2,
};
