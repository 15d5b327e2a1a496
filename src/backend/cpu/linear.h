/* Products of quantised and plain matrices with activation rows. */
#pragma once
#include "tensor/tensor.h"

typedef struct LinearKernels LinearKernels;
extern const LinearKernels linear_kernels_avx2, linear_kernels_avx512;
