/* Kinds of weights, as the kernels of all instruction sets tell them apart.
 *
 * A kernel is written once as an inlined function of a kind and of a number of rows, which are constants in it. An
 * instruction set makes its instances and their tables with the macros below and looks them up with the functions: a
 * new kind of weight is a line in a list. */
#pragma once
#include "backend/cpu/linear/linear.h"

#define INLINE static inline __attribute__((always_inline))

/* Integer weights: name, form, bits, activation group. */
#define LINEAR_KINDS(F, ...)                                                                                           \
    F(KIND_AFFINE_2_32, QUANT_AFFINE, 2, 32, __VA_ARGS__)                                                              \
    F(KIND_AFFINE_2_64, QUANT_AFFINE, 2, 64, __VA_ARGS__)                                                              \
    F(KIND_AFFINE_3_32, QUANT_AFFINE, 3, 32, __VA_ARGS__)                                                              \
    F(KIND_AFFINE_3_64, QUANT_AFFINE, 3, 64, __VA_ARGS__)                                                              \
    F(KIND_AFFINE_4_32, QUANT_AFFINE, 4, 32, __VA_ARGS__)                                                              \
    F(KIND_AFFINE_4_64, QUANT_AFFINE, 4, 64, __VA_ARGS__)                                                              \
    F(KIND_AFFINE_5_32, QUANT_AFFINE, 5, 32, __VA_ARGS__)                                                              \
    F(KIND_AFFINE_5_64, QUANT_AFFINE, 5, 64, __VA_ARGS__)                                                              \
    F(KIND_AFFINE_6_32, QUANT_AFFINE, 6, 32, __VA_ARGS__)                                                              \
    F(KIND_AFFINE_6_64, QUANT_AFFINE, 6, 64, __VA_ARGS__)                                                              \
    F(KIND_AFFINE_8_32, QUANT_AFFINE, 8, 32, __VA_ARGS__)                                                              \
    F(KIND_AFFINE_8_64, QUANT_AFFINE, 8, 64, __VA_ARGS__)                                                              \
    F(KIND_SYMMETRIC_4, QUANT_SYMMETRIC, 4, 32, __VA_ARGS__)                                                           \
    F(KIND_SYMMETRIC_5, QUANT_SYMMETRIC, 5, 32, __VA_ARGS__)                                                           \
    F(KIND_SYMMETRIC_8, QUANT_SYMMETRIC, 8, 32, __VA_ARGS__)                                                           \
    F(KIND_K_4, QUANT_K, 4, 32, __VA_ARGS__)                                                                           \
    F(KIND_K_5, QUANT_K, 5, 32, __VA_ARGS__)                                                                           \
    F(KIND_TERNARY, QUANT_TERNARY, 2, 64, __VA_ARGS__)                                                                 \
    F(KIND_K_SYMMETRIC, QUANT_K_SYMMETRIC, 6, 16, __VA_ARGS__)                                                         \
    F(KIND_MXFP4, QUANT_MXFP4, 4, 32, __VA_ARGS__)                                                                     \
    F(KIND_NVFP4, QUANT_NVFP4, 4, 16, __VA_ARGS__)

/* How their codes are stored: name, bits, whether they are E2M1. */
#define LINEAR_CODES(F, ...)                                                                                           \
    F(CODES_2, 2, false, __VA_ARGS__)                                                                                  \
    F(CODES_3, 3, false, __VA_ARGS__)                                                                                  \
    F(CODES_4, 4, false, __VA_ARGS__)                                                                                  \
    F(CODES_5, 5, false, __VA_ARGS__)                                                                                  \
    F(CODES_6, 6, false, __VA_ARGS__)                                                                                  \
    F(CODES_8, 8, false, __VA_ARGS__)                                                                                  \
    F(CODES_E2M1, 4, true, __VA_ARGS__)

/* Weight types whose products take f32 activations. */
#define LINEAR_PLAINS(F, ...)                                                                                          \
    F(PLAIN_F32, __VA_ARGS__)                                                                                          \
    F(PLAIN_F16, __VA_ARGS__)                                                                                          \
    F(PLAIN_BF16, __VA_ARGS__)                                                                                         \
    F(PLAIN_MXFP8, __VA_ARGS__)

#define LINEAR_NAME(name, ...) name,
typedef enum LinearKind { LINEAR_KINDS(LINEAR_NAME, ) LINEAR_KIND_COUNT } LinearKind;
typedef enum LinearCodes { LINEAR_CODES(LINEAR_NAME, ) LINEAR_CODES_COUNT } LinearCodes;
typedef enum Plain { LINEAR_PLAINS(LINEAR_NAME, ) PLAIN_COUNT } Plain;

LinearKind linear_kind(const Weight *w);
LinearCodes linear_codes(const Weight *w);
Plain linear_plain(const Weight *w);

/* A kind inside a kernel. */
typedef struct Kind {
    Quant quant;
    int bits, group;
} Kind;
INLINE bool is_coded(const Kind k) { return !quant_is_affine(k.quant); } /* with E2M1 */

/* ---- few activation rows ---- */

/* FEW_KERNELS(function, rows): function(f, first, count, y, y_stride, kind, rows) for every kind, and a table of them
 * named function_rows. Few is each instruction set's own. */
typedef struct Few Few;
typedef void FewKernel(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride);
#define FEW_KERNEL(name, quant, bits, group, function, rows)                                                           \
    static void function##_##rows##_##name(const Few *f, int64_t first, int64_t count, float *y, int64_t y_stride) {   \
        function(f, first, count, y, y_stride, (Kind){quant, bits, group}, rows);                                      \
    }
#define FEW_ENTRY(name, quant, bits, group, function, rows) function##_##rows##_##name,
#define FEW_KERNELS(function, rows)                                                                                    \
    LINEAR_KINDS(FEW_KERNEL, function, rows)                                                                           \
    static FewKernel *const function##_##rows[LINEAR_KIND_COUNT] = {LINEAR_KINDS(FEW_ENTRY, function, rows)};

/* ---- panels ---- */

/* Where the unpacked groups of a row go. */
typedef struct Places {
    int64_t start[LINEAR_LANES]; /* first place of a lane's groups */
    int shift;                   /* log2 of the group */
    size_t group_bytes;          /* bytes of a group in the panel */
} Places;

INLINE size_t place_of(const Places *places, int64_t group) {
    return (size_t)(places->start[group % LINEAR_LANES] + group / LINEAR_LANES);
}
/* Where the bytes of 4 columns from col begin. height: rows of the panel. */
INLINE uint8_t *place_codes(const Places *places, uint8_t *out, int64_t col, const int height) {
    return out + place_of(places, col >> places->shift) * places->group_bytes +
        (size_t)(col & ((1 << places->shift) - 1)) * (size_t)height;
}

/* Unpacks some rows of weights: the start of each row, the bytes from there to the end of all data, and the destination
 * of the first row in the panel. */
typedef void UnpackKernel(
    const Weight *w, const uint8_t *const *rows, const int64_t *left, const Places *places, uint8_t *out);
/* The scales of these rows. */
typedef void UnpackScales(
    const Weight *w, const int64_t *rows, const Places *places, int64_t groups, float *scales, float *biases);

/* UNPACK_KERNELS(function): function(w, rows, left, places, out, bits, coded) for all codes, and a table of them named
 * function_kernels. */
#define UNPACK_KERNEL(name, bits, coded, function)                                                                     \
    static void function##_##name(                                                                                     \
        const Weight *w, const uint8_t *const *rows, const int64_t *left, const Places *places, uint8_t *out) {        \
        function(w, rows, left, places, out, bits, coded);                                                             \
    }
#define UNPACK_ENTRY(name, bits, coded, function) function##_##name,
#define UNPACK_KERNELS(function)                                                                                       \
    LINEAR_CODES(UNPACK_KERNEL, function)                                                                              \
    static UnpackKernel *const function##_kernels[LINEAR_CODES_COUNT] = {LINEAR_CODES(UNPACK_ENTRY, function)};

enum { UNPACK_ROWS_MAX = 16 };

/* LinearKernels.unpack for a panel of `height` rows, `together` of them at a time. */
void linear_unpack(const Weight *w, int64_t first, LinearPanel *panel, int height, int together,
    UnpackKernel *const *codes, UnpackScales *scales);

/* ---- plain weights ---- */

/* PLAIN_KERNELS(function, rows): function(plain, w, first, count, x, x_stride, y, stride, rows) for all of them, and a
 * table named function_rows. */
typedef void PlainKernel(
    const Weight *w, int64_t first, int64_t count, const float *x, int64_t x_stride, float *y, int64_t stride);
#define PLAIN_KERNEL(name, function, rows)                                                                             \
    static void function##_##rows##_##name(                                                                            \
        const Weight *w, int64_t first, int64_t count, const float *x, int64_t x_stride, float *y, int64_t stride) {   \
        function(name, w, first, count, x, x_stride, y, stride, rows);                                                 \
    }
#define PLAIN_ENTRY(name, function, rows) function##_##rows##_##name,
#define PLAIN_KERNELS(function, rows)                                                                                  \
    LINEAR_PLAINS(PLAIN_KERNEL, function, rows)                                                                        \
    static PlainKernel *const function##_##rows[PLAIN_COUNT] = {LINEAR_PLAINS(PLAIN_ENTRY, function, rows)};
