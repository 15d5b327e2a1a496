/* Kernels of attention to compressed keys for NEON. */
#include "backend/cpu/compressed/compressed_impl.h"

const CompressedKernels compressed_kernels_neon = COMPRESSED_KERNELS;
