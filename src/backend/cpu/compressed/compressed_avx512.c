/* Kernels of attention to compressed keys for AVX-512. */
#include "backend/cpu/compressed/compressed_impl.h"

const CompressedKernels compressed_kernels_avx512 = COMPRESSED_KERNELS;
