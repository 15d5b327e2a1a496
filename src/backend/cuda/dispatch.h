/* Which kernel runs an operation: one table, in order of preference. Selection code takes the first row whose phase,
 * row count, device and weights or pages match and whose kernel fits the shapes (its own *_fits(); `needs` says it in
 * words). `apus info --kernels` prints the table. No CUDA header is needed here. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a matrix is packed into tiles (gemm/gemm.h, Tiles). */
typedef enum TileKind {
    TILE_Q2,
    TILE_Q3,
    TILE_Q4,
    TILE_Q5,
    TILE_Q6,
    TILE_Q8,
    TILE_FP4, /* E2M1 */
    TILE_FP8, /* E4M3 */
    TILE_F16,
    TILE_KIND_COUNT
} TileKind;

/* Contents of the pages of an attention layer. */
typedef enum PageKind {
    PAGE_F16,     /* heads of 64, 128 or 256 */
    PAGE_F16_PAD, /* heads between these, of a multiple of 8 */
    PAGE_KVQ4,    /* quantised, every half of 4 bits */
    PAGE_KVQ,     /* quantised, any form */
    PAGE_F16_ANY, /* f16: heads of other widths, MLA latents */
    PAGE_GENERIC, /* any type and width */
    PAGE_KIND_COUNT
} PageKind;

typedef enum KernelOp { KERNEL_MATMUL, KERNEL_ATTENTION, KERNEL_MOE } KernelOp;

/* Which arithmetic a row has: a row's bits depend on its phase, not on the kernel or on the rows beside it. */
typedef enum KernelPhase {
    PHASE_PREFILL = 1, /* prefill rows, where decode rows have an arithmetic of their own */
    PHASE_DECODE = 2,  /* decode rows there */
    PHASE_UNIFORM = 4, /* every row, where both are computed alike; rows of one expert */
} KernelPhase;

/* Classes of devices, each with all that the ones before it have. */
typedef enum KernelArch {
    ARCH_SM80,  /* mma, cp.async */
    ARCH_SM90,  /* bulk copies, clusters, programmatic launch; also devices after Hopper */
    ARCH_SM90A, /* wgmma: Hopper alone */
} KernelArch;

typedef enum Kernel {
    KERNEL_GEMV_INT,
    KERNEL_GEMM_INT_WGMMA,
    KERNEL_GEMV_RING,
    KERNEL_GEMV_MMA,
    KERNEL_GEMM_SMALL_N,
    KERNEL_GEMM_WGMMA,
    KERNEL_GEMM_MMA,
    KERNEL_FLASH_DECODE,
    KERNEL_FLASH_DECODE_KVQ4,
    KERNEL_FLASH_DECODE_ROWS,
    KERNEL_FLASH_DECODE_CLUSTER,
    KERNEL_FLASH_DECODE_SPLIT,
    KERNEL_FLASH_PREFILL_WGMMA,
    KERNEL_FLASH_PREFILL_MMA,
    KERNEL_FLASH_GROUP,
    KERNEL_KVQ_DECODE,
    KERNEL_KVQ_PREFILL,
    KERNEL_KVQ_GENERIC,
    KERNEL_ATTENTION_GENERIC,
    KERNEL_FUSED_MOE_ROW,
    KERNEL_FUSED_MOE,
    KERNEL_MOE_GEMV,
    KERNEL_MOE_GEMM,
    KERNEL_COUNT
} Kernel;

enum { KERNEL_ROWS_ANY = 1 << 30 };
typedef struct KernelRow {
    KernelOp op;
    unsigned phases;        /* KernelPhase bits */
    int rows_min, rows_max; /* MATMUL, MOE: rows of the call; ATTENTION: rows of one sequence in the step */
    KernelArch arch;        /* the least */
    unsigned kinds;         /* bit per TileKind (MATMUL, MOE) or PageKind (ATTENTION) */
    Kernel kernel;
    const char *name;  /* its file, without folder and ending */
    const char *needs; /* further conditions of its *_fits(); "": none */
} KernelRow;

/* The operation that needs a kernel. */
typedef struct KernelQuery {
    KernelOp op;
    KernelPhase phase;
    int rows;
    KernelArch arch;
    int kind; /* TileKind or PageKind */
} KernelQuery;

/* The first row behind `after` that matches; after NULL: the first of all; NULL: none. */
const KernelRow *kernel_next(const KernelQuery *query, const KernelRow *after);
/* The table as lines of text with a heading, "yes" or "no" for a device of this class; always terminated, cut at size.
 */
void kernels_describe(KernelArch arch, char *text, size_t size);

#ifdef __cplusplus
}
#endif
