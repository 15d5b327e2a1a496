/* The CPU's vector backends from the inside: one struct, one table of row kernels per instruction set.
 * The operations are written once in C over these kernels; a kernel works on rows and knows nothing of threads.
 *
 * Determinism: a kernel's result for an element may depend on its row only, never on where a caller cut the work: tails
 * are computed with the same arithmetic as full vectors. */
#pragma once
#include "backend/backend.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/pool.h"

typedef struct CpuKernels {
    const char *name;            /* "avx2", "avx512" */
    const LinearKernels *linear; /* linear_*.c */
    /* out = norm(x) for one row of norm->width; out may be x */
    void (*norm_row)(const float *x, const Norm *norm, float *out);
    /* out = act(gate) ∘ up, elementwise; out may be gate or up */
    void (*glu_row)(int64_t count, const float *gate, const float *up, Activation activation, float *out);
} CpuKernels;

typedef struct CpuBackend {
    Backend base;
    Pool *pool;
    const CpuKernels *kernels;
    /* Work space of the products: quantised activations, panels. Anonymous memory, page-aligned, linear_work_bytes(). */
    uint8_t *work;
    size_t work_bytes;
} CpuBackend;

static inline CpuBackend *cpu_backend(Backend *backend) { return (CpuBackend *)backend; }

/* vector_linear.c: the operations that multiply */
void cpu_embed(Backend *, int rows, const int32_t *tokens, const Weight *table, float scale, float *out);
void cpu_matmul(Backend *, const Matmul *);
void cpu_glu(Backend *, const Glu *);
void cpu_matmul_add(Backend *, const MatmulAdd *);
size_t linear_work_bytes(int rows_max, int threads);
