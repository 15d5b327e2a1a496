/* backend/cpu/: operations in host memory: the reference in plain C, vector backends over kernels of one instruction
 * set each, the threads that share an operation.
 *
 * This header: internals of the CPU's vector backends, one struct, one table of row kernels per instruction set.
 * The operations are written once in C over these kernels; a kernel works on rows and knows nothing of threads.
 *
 * Determinism: a kernel's result for an element may depend on its row only, never on where a caller cut the work: tails
 * are computed with the same arithmetic as full vectors. */
#pragma once
#include "backend/backend.h"
#include "backend/cpu/attention/attention.h"
#include "backend/cpu/linear/linear.h"
#include "backend/cpu/pool.h"

typedef struct RecurrentKernels RecurrentKernels; /* recurrent/recurrent.h */
extern const RecurrentKernels recurrent_kernels_avx2, recurrent_kernels_avx512, recurrent_kernels_neon;
typedef struct CompressedKernels CompressedKernels; /* compressed/compressed.h */
extern const CompressedKernels compressed_kernels_avx2, compressed_kernels_avx512, compressed_kernels_neon;

typedef struct CpuKernels {
    const char *name;            /* "avx2", "avx512", "amx", "neon" */
    const char *description;     /* "avx512 (vnni, vbmi)" */
    const LinearKernels *linear; /* linear_*.c */
    /* out = norm(x) for one row of norm->width; out may be x */
    void (*norm_row)(const float *x, const Norm *norm, float *out);
    /* out = act(gate) ∘ up, elementwise; out may be gate or up */
    void (*glu_row)(int64_t count, const float *gate, const float *up, Activation activation, float *out);
    /* out = act(x), elementwise; out may be x */
    void (*activate_row)(int64_t count, const float *x, Activation activation, float *out);
    /* x = cap·tanh(scale·x/cap); cap 0: x = scale·x */
    void (*logits_row)(int64_t count, float *x, float scale, float cap);
    const AttentionKernels *attention;   /* attention_impl.h */
    const RecurrentKernels *recurrent;   /* recurrent/recurrent_impl.h */
    const CompressedKernels *compressed; /* compressed/compressed_impl.h */
} CpuKernels;
extern const CpuKernels cpu_kernels_avx2, cpu_kernels_avx512, cpu_kernels_amx, cpu_kernels_neon;
bool neon_available(void); /* with all extensions that *_neon.c is compiled for */
bool amx_available(void);  /* AMX tiles and AVX-512; requests permission for the tiles from the system */

enum {
    BIAS_FREQUENCIES = 256, /* frequencies whose rotations are kept */
    BIAS_PAGES = 1024,      /* pages whose start rotations are kept */
};
enum { CPU_ROPES = 4, CPU_ROPE_PAIRS = ATTENTION_HEAD_MAX / 2 };

/* cos and sin of a Rope for the rows of the step: computed by the first layer that asks. */
typedef struct RopeTable {
    const Rope *rope;
    float *cosines, *sines; /* [rows_max][CPU_ROPE_PAIRS at most] */
} RopeTable;

struct CpuBackend {
    Backend base;
    BackendOps ops; /* the table under the instruction set's name */
    Pool *pool;
    bool own_pool;
    bool precise; /* activations as 16 bits: two int8 lines per row */
    const CpuKernels *kernels;
    /* Work space of the products: quantised activations, panels. Anonymous memory, page-aligned, linear_work_bytes().
     */
    uint8_t *work;
    size_t work_bytes;
    Step step;
    float *scratch;
    size_t scratch_count, scratch_used;
    RopeTable ropes[CPU_ROPES];
    int rope_count;          /* valid in this step */
    uint8_t *attention;      /* attention_shared_bytes, then attention_thread_bytes per thread */
    uint8_t *recurrent;      /* recurrent_scratch_bytes() per thread */
    struct BiasTurns *turns; /* [BIAS_FREQUENCIES] rotations of key biases; attention_codes.c */
    int turn_count;
};

static inline CpuBackend *cpu_backend(Backend *backend) { return (CpuBackend *)backend; }

/* vector_linear.c: the operations that multiply */
void cpu_embed(Backend *, const Embed *);
void cpu_matmul(Backend *, const Matmul *);
void cpu_glu(Backend *, const Glu *);
void cpu_matmul_add(Backend *, const MatmulAdd *);
void cpu_low_rank_matmul(Backend *, const LowRankMatmul *);
size_t linear_work_bytes(int rows_max, int threads);

/* linear/heads.c */
void cpu_mla(Backend *, const Mla *);

/* recurrent/recurrent.c */
void cpu_conv(Backend *, const Conv *);
void cpu_recurrence(Backend *, const Recurrence *);
void cpu_mamba(Backend *, const Mamba *);
void cpu_rg_lru(Backend *, const RgLru *);
void cpu_gated_norm(Backend *, const GatedNorm *);

/* vector.c: a backend over one table of kernels */
NODISCARD Backend *vector_open(const CpuKernels *kernels, const BackendOptions *options, Error *error);
