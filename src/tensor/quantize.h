/* Rows of numbers into the forms that MLX writes, and back into numbers of a checkpoint's own type, bit for bit as
 * mx.quantize and mx.dequantize compute them on a CPU: affine groups in f32, the others with each step rounded to the
 * type (mlx/ops.cpp, fp_quantize and fp_dequantize; mlx/backend/cpu/quantized.cpp). Threads: any. */
#pragma once
#include "tensor/float8.h"
#include "tensor/tensor.h"

typedef struct QuantForm {
    Quant quant; /* QUANT_AFFINE, QUANT_MXFP4, QUANT_NVFP4 or QUANT_MXFP8 */
    int bits, group;
} QuantForm;

/* Bits and group of 0 become the usual ones of the mode: 4 and 64, 4 and 32, 4 and 16, 8 and 32. False: MLX has no such
 * form. */
NODISCARD bool quant_form_complete(QuantForm *form, Error *error);
/* One row: x[cols] are numbers of `dtype`, cols is a multiple of the group. data: cols · bits / 8 bytes; scales and
 * biases: of dtype where affine, else scales are bytes and biases is not used. */
void quantize_row(
    QuantForm form, DType dtype, const float *x, int64_t cols, uint8_t *data, uint8_t *scales, uint8_t *biases);
/* The weight's elements as numbers of `dtype`: product and sum are rounded to it one after the other. out[cols]. */
void weight_dequantize_row_as(const Weight *w, int64_t row, DType dtype, float *out);
