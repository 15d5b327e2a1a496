/* The row and attention kernels for AVX-512, with which AMX goes. */
#include "backend/cpu/attention/attention_impl.h"
#include "backend/cpu/rows_impl.h"
#include "backend/cpu/attention/scan_impl.h"

const CpuKernels cpu_kernels_avx512 = {
    .name = "avx512",
    .description = "avx512 (vnni, vbmi)",
    .linear = &linear_kernels_avx512,
    .norm_row = norm_row,
    .glu_row = glu_row,
    .activate_row = activate_row,
    .logits_row = logits_row,
    .attention = &attention_kernels,
    .recurrent = &recurrent_kernels_avx512,
    .compressed = &compressed_kernels_avx512,
};

const CpuKernels cpu_kernels_amx = {
    .name = "amx",
    .description = "amx (int8), avx512 (vnni, vbmi)",
    .linear = &linear_kernels_amx,
    .norm_row = norm_row,
    .glu_row = glu_row,
    .activate_row = activate_row,
    .logits_row = logits_row,
    .attention = &attention_kernels,
    .recurrent = &recurrent_kernels_avx512,
    .compressed = &compressed_kernels_avx512,
};
