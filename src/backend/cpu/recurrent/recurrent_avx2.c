/* Kernels of recurrent layers for AVX2. */
#include "backend/cpu/recurrent/recurrent_impl.h"

const RecurrentKernels recurrent_kernels_avx2 = RECURRENT_KERNELS;
