/* Kernels of attention to compressed keys for AVX2. */
#include "backend/cpu/compressed/compressed_impl.h"

const CompressedKernels compressed_kernels_avx2 = COMPRESSED_KERNELS;
