/* Kernels of recurrent layers for NEON. */
#include "backend/cpu/recurrent/recurrent_impl.h"

const RecurrentKernels recurrent_kernels_neon = RECURRENT_KERNELS;
