/* Kernels of recurrent layers for AVX-512. */
#include "backend/cpu/recurrent/recurrent_impl.h"

const RecurrentKernels recurrent_kernels_avx512 = RECURRENT_KERNELS;
