/* Products with weights: the kernel by the dispatch table, and inputs as f16 for kernels that do not prepare them. */
#include "backend/cuda/dispatch.h"
#include "backend/cuda/gemm/gemm_int.cuh"

enum {
    GEMV_INT_ROWS = 4,      /* the row count up to which the table prefers gemv_int */
    GEMV_PREPARES_ROWS = 2, /* with more rows a separate kernel costs less than preparing them in every block */
};

/* State of the rows that a gated product leaves as inputs of the next one: the greatest element and the inverse scale
 * of each; marks, first one for all rows, then one per tile of INPUT_TILE_MOST rows, say that some row is to be scaled.
 */
struct Passing {
    unsigned *most;
    float *factors;
    int *marks;
};

/* Beside f16 inputs a factor per row: [row][column]. */
__global__ void __launch_bounds__(BLOCK)
    prepare_kernel(const float *x, int cols, int groups, RowNorm norm, __half *inputs, float *factors) {
    __shared__ Reductions shared;
    let_next_begin();
    const int row = blockIdx.x;
    inputs_prepare(
        x + (int64_t)row * cols, 1, cols, Columns(groups), norm, shared, [] { wait_for_previous(); },
        [=](int, int at, uint2 v) { *(uint2 *)(inputs + (int64_t)row * groups * 64 + at) = v; },
        [&](int, float factor) {
            if (threadIdx.x == 0) factors[row] = factor;
        });
}

/* The same in the order of input_chunk(). A block has a few rows (each) and gathers them in shared memory, so that it
 * writes longer pieces; or one row, which it writes directly. passing: cleared for the result; empty: none. ROUNDS:
 * rounds of plain rows, 0: any rows. */
template <int ROUNDS, bool NORMED>
__global__ void __launch_bounds__(BLOCK) prepare_tiles_kernel(const float *x, int rows, int cols, int groups, int tile,
    int each, RowNorm norm, __half *inputs, float *factors, Passing passing) {
    extern __shared__ __align__(16) uint8_t pieces[]; /* [chunk][row], 16 bytes of each */
    __shared__ Reductions shared;
    let_next_begin();
    const int first = blockIdx.x * each, count = min(each, rows - first), stride = each * 16 + 16;
    const auto ready = [] { wait_for_previous(); };
    const auto store = [=](int row, int at, uint2 v) {
        if (each == 1) {
            uint32_t *to =
                (uint32_t *)(inputs + input_chunk(groups, first, at / 64, at % 16 / 4 * 2, tile) * 8) + at % 64 / 16;
            *to = v.x;
            to[tile * 4] = v.y;
            return;
        }
        uint32_t *to = (uint32_t *)(pieces + (at / 64 * 8 + at % 16 / 4 * 2) * stride + row * 16 + at % 64 / 16 * 4);
        *to = v.x;
        to[stride / 4] = v.y;
    };
    const auto done = [&](int row, float factor) {
        if (threadIdx.x == 0) factors[first + row] = factor;
    };
    const float *rows_at = x + (int64_t)first * cols;
    if constexpr (ROUNDS > 0)
        plain_rows<ROUNDS, NORMED, true>(rows_at, count, cols, Columns(groups), norm, shared, ready, store, done);
    else
        inputs_prepare(rows_at, count, cols, Columns(groups), norm, shared, ready, store, done);
    __syncthreads();
    for (int i = threadIdx.x; i < groups * 8 * each && each > 1; i += BLOCK) {
        const int chunk = i / each, row = i % each;
        if (row < count)
            *(uint4 *)(inputs + input_chunk(groups, first + row, chunk / 8, chunk % 8, tile) * 8) =
                *(const uint4 *)(pieces + chunk * stride + row * 16);
    }
    const int row = first + threadIdx.x;
    if (!passing.most || threadIdx.x >= count) return;
    passing.most[row] = 0;
    if (row % INPUT_TILE_MOST == 0) passing.marks[1 + row / INPUT_TILE_MOST] = 0;
    if (row == 0) passing.marks[0] = 0;
}

/* Computes the inverse scales of rows that have been passed on, and the marks of those to be scaled. A block per tile
 * of inputs. */
__global__ void __launch_bounds__(INPUT_TILE_MOST) passed_kernel(int rows, Passing passing) {
    const int row = blockIdx.x * INPUT_TILE_MOST + threadIdx.x;
    let_next_begin();
    wait_for_previous();
    if (row >= rows) return;
    const float most = __uint_as_float(__ldcg(passing.most + row));
    const bool good = half_range(most);
    passing.factors[row] = good ? 1 : ldexpf(1, -half_shift(most));
    if (good) return;
    atomicOr(passing.marks + 1 + blockIdx.x, 1);
    atomicOr(passing.marks, 1);
}

static int groups_of(int64_t cols) { return (int)((cols + TILE_COLS - 1) / TILE_COLS); }

/* Words per prefill row before the inputs: its factor; its share of Passing. */
enum { PREFILL_WORDS = 4 };
static size_t whole_tiles(int rows) { return ((size_t)rows + INPUT_TILE_MOST - 1) / INPUT_TILE_MOST * INPUT_TILE_MOST; }

extern "C" size_t product_input_bytes(int rows, int64_t cols) {
    const size_t whole = whole_tiles(rows);
    return whole * ((size_t)groups_of(cols) * TILE_COLS * sizeof(__half) + PREFILL_WORDS * sizeof(float)) +
        (size_t)gemm_int_bytes(groups_of(cols));
}

static int tile_rows(const Tiles &w) { return (w.rows + TILE_ROWS - 1) / TILE_ROWS; }

/* The content of `inputs`. */
enum Prepared { PREPARED_NOTHING, PREPARED_HALVES, PREPARED_NORMED };

/* A norm that gemm_int.cuh does not take behind the sum is computed before, once for all parts of a product. */
static cudaError_t norm_before(cudaStream_t stream, const Product *p, ProductWork *work, Prepared *prepared) {
    work->x = p->x;
    if (!work->norm.width || integer_norm(work->norm)) return cudaSuccess;
    if (*prepared != PREPARED_NORMED) {
        const cudaError_t error = rows_norm(stream, p->rows, p->x, p->norm, (float *)p->inputs);
        if (error) return error;
        *prepared = PREPARED_NORMED;
    }
    work->x = (const float *)p->inputs;
    work->norm = RowNorm{};
    return cudaSuccess;
}

/* Up to GEMV_ROWS_MAX rows at a time, as many as fit. */
static cudaError_t run_gemv_int(cudaStream_t stream, const Product *p, int kind, const ProductWork &work, bool *fits) {
    ProductWork piece = work;
    piece.rows = work.rows < GEMV_ROWS_MAX ? work.rows : GEMV_ROWS_MAX;
    while (piece.rows > 1 && !gemv_int_fits(piece, p->shared_bytes)) piece.rows = (piece.rows + 1) / 2;
    for (int row = 0, rows = piece.rows; row < work.rows; row += rows) {
        piece.rows = work.rows - row < rows ? work.rows - row : rows;
        piece.x = work.x + (int64_t)row * work.cols;
        for (int i = 0; i < work.count; i++) piece.out[i] = work.out[i] + (int64_t)row * work.weight[i].rows;
        const cudaError_t error = product_gemv_int(stream, kind, piece, p->multiprocessors, p->shared_bytes, fits);
        if (error) return error;
    }
    return cudaSuccess;
}

static Passing passing_of(const Product *p) {
    const size_t whole = whole_tiles(p->rows);
    float *factors = (float *)p->inputs + whole;
    return {(unsigned *)(factors + whole), factors, (int *)(factors + 2 * whole)};
}

static cudaError_t prepare_tiles(cudaStream_t stream, const Product *p, const ProductWork &work) {
    constexpr size_t ROOM = 90 << 10; /* bytes per block; two share a multiprocessor */
    constexpr int ROWS_LEAST = 1024;  /* fewer would make few blocks */
    int each = p->rows < ROWS_LEAST ? 1 : 4;
    const auto bytes = [&] { return (size_t)work.groups * 8 * (each * 16 + 16); };
    while (each > 1 && bytes() > ROOM) each /= 2;
    const bool plain = slice_rounds(work.groups) == 1 && row_is_plain(p->x, p->cols, work.norm);
    const auto kernel = !plain ? prepare_tiles_kernel<0, false>
        : work.norm.width      ? prepare_tiles_kernel<1, true>
                               : prepare_tiles_kernel<1, false>;
    const size_t shared = each > 1 ? bytes() : 0; /* the widest rows are written as they come */
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    return error ? error
                 : launch(stream, kernel, dim3((unsigned)((p->rows + each - 1) / each)), BLOCK, shared, p->x, p->rows,
                       p->cols, work.groups, work.tile, each, work.norm, (__half *)work.inputs,
                       (float *)work.input_factors, work.passes ? passing_of(p) : Passing{});
}

static KernelPhase phase_of(const Product *p) {
    if (!p->sm90a) return PHASE_UNIFORM;
    return p->decode_rows ? PHASE_DECODE : p->sliced ? PHASE_UNIFORM : PHASE_PREFILL;
}
static KernelArch arch_of(const Product *p) { return p->sm90a ? ARCH_SM90A : launch_early ? ARCH_SM90 : ARCH_SM80; }

/* Whether f16 inputs of all rows fit a gemv's shared memory. */
static bool halves_fit(const Product *p) {
    enum { BESIDES = 18 << 10 }; /* upper bound of a block's shared memory besides inputs */
    return (int64_t)p->rows * gemv_stride(groups_of(p->cols)) + BESIDES <= p->shared_bytes;
}

/* Whether a kernel takes these shapes, as far as that is known before its launch; work: the weight is weight[0]. */
static bool takes(const KernelRow *row, const Product *p, const ProductWork &work) {
    switch (row->kernel) {
    case KERNEL_GEMV_INT:
        return integer_fits(work.weight[0]) &&
            (row->rows_max == KERNEL_ROWS_ANY || gemv_int_fits(work, p->shared_bytes));
    case KERNEL_GEMM_INT_WGMMA: return integer_fits(work.weight[0]) && gemm_int_fits(*p);
    case KERNEL_GEMV_RING:
    case KERNEL_GEMV_MMA: return halves_fit(p);
    default: return true;
    }
}

/* The first row of the dispatch table behind `after` that takes the product; NULL: none. */
static const KernelRow *next_kernel(const Product *p, const ProductWork &work, const KernelRow *after) {
    const KernelQuery query = {KERNEL_MATMUL, phase_of(p), p->rows, arch_of(p), work.weight[0].kind};
    const KernelRow *row = kernel_next(&query, after);
    while (row && !takes(row, p, work)) row = kernel_next(&query, row);
    return row;
}

static bool is_gemv(Kernel kernel) { return kernel == KERNEL_GEMV_RING || kernel == KERNEL_GEMV_MMA; }
static bool is_integer(Kernel kernel) { return kernel == KERNEL_GEMV_INT || kernel == KERNEL_GEMM_INT_WGMMA; }

/* Inputs as f16: rows side by side for a gemv, which prepares one or two rows itself; tiles for the others. */
static cudaError_t prepare(
    cudaStream_t stream, const Product *p, Kernel kernel, ProductWork *work, Prepared *prepared) {
    const bool own = is_gemv(kernel) && p->rows <= GEMV_PREPARES_ROWS;
    work->x = own ? p->x : nullptr;
    if (own || *prepared == PREPARED_HALVES) return cudaSuccess;
    *prepared = PREPARED_HALVES;
    if (!is_gemv(kernel)) return prepare_tiles(stream, p, *work);
    return launch(stream, prepare_kernel, dim3(p->rows), BLOCK, 0, p->x, p->cols, work->groups, work->norm,
        (__half *)work->inputs, (float *)work->input_factors);
}

static cudaError_t run_wgmma(cudaStream_t stream, const Product *p, int kind, ProductWork work, bool *fits) {
    cudaError_t error = product_gemm_wgmma(stream, kind, work, *p, fits);
    if (error || !*fits || !work.passes) return error;
    /* Rows too large or too small for f16 are rare, and they are known only when all rows are complete. */
    const Passing passing = passing_of(p);
    error = launch(stream, passed_kernel, dim3((unsigned)(whole_tiles(p->rows) / INPUT_TILE_MOST)), INPUT_TILE_MOST, 0,
        p->rows, passing);
    work.marks = passing.marks;
    return error ? error : product_gemm_wgmma(stream, kind, work, *p, fits);
}

/* fits: false if the launch finds too little shared memory. */
static cudaError_t run_kernel(
    cudaStream_t stream, const Product *p, Kernel kernel, ProductWork work, Prepared *prepared, bool *fits) {
    const int kind = work.weight[0].kind;
    *fits = true;
    const cudaError_t error =
        is_integer(kernel) ? norm_before(stream, p, &work, prepared) : prepare(stream, p, kernel, &work, prepared);
    if (error) return error;
    switch (kernel) {
    case KERNEL_GEMV_INT: return run_gemv_int(stream, p, kind, work, fits);
    case KERNEL_GEMM_INT_WGMMA: return product_gemm_int(stream, kind, work, *p, fits);
    case KERNEL_GEMV_RING: return product_gemv_ring(stream, kind, work, p->multiprocessors, p->shared_bytes, fits);
    case KERNEL_GEMV_MMA: return product_gemv_mma(stream, kind, work, p->multiprocessors, p->shared_bytes, fits);
    case KERNEL_GEMM_SMALL_N: return product_gemm_small_n(stream, kind, work, *p, fits);
    case KERNEL_GEMM_WGMMA: return run_wgmma(stream, p, kind, work, fits);
    default: return product_gemm_mma(stream, kind, work);
    }
}

/* Weights first … end − 1, which are packed alike. */
static cudaError_t run_part(
    cudaStream_t stream, const Product *p, int first, int end, ProductWork work, Prepared *prepared) {
    const bool glu = p->mode == PRODUCT_GLU;
    work.count = end - first;
    work.units = 0;
    for (int i = first; i < end; i++) {
        work.weight[i - first] = p->weight[i];
        work.out[i - first] = p->out[glu ? 0 : i];
        work.units += glu && i > first ? 0 : tile_rows(p->weight[i]);
    }
    for (const KernelRow *row = next_kernel(p, work, nullptr); row; row = next_kernel(p, work, row)) {
        bool fits;
        const cudaError_t error = run_kernel(stream, p, row->kernel, work, prepared, &fits);
        if (error || fits) return error;
        if (row->kernel != KERNEL_GEMV_RING) break; /* takes() has checked the other kernels */
    }
    return cudaErrorInvalidConfiguration;
}

static ProductWork work_of(const Product *p) {
    ProductWork work = {};
    work.rows = p->rows;
    work.cols = p->cols;
    work.groups = groups_of(p->cols);
    work.mode = p->mode;
    work.weight[0] = p->weight[0];
    return work;
}
static Kernel first_kernel(const Product *p) { return next_kernel(p, work_of(p), nullptr)->kernel; }

extern "C" int product_is_gemv(const Product *p) {
    const Kernel kernel = first_kernel(p);
    return is_gemv(kernel) || (kernel == KERNEL_GEMV_INT && gemv_int_fits(work_of(p), p->shared_bytes));
}

/* Prefill rows: sets the address of the inputs, and whether the result is left as inputs. */
static void take_prefill(Product *p, ProductWork *work) {
    const size_t whole = whole_tiles(p->rows);
    const Tiles &w = p->weight[0];
    if (p->rows > INPUT_TILE) work->tile = gemm_wgmma_tile(*p, work->groups);
    work->input_factors = (const float *)p->inputs;
    work->inputs = (const __half *)((const float *)p->inputs + PREFILL_WORDS * whole);
    if (p->mode != PRODUCT_GLU) {
        if (!p->passed) return;
        work->tile = INPUT_TILE_MOST;
        work->inputs = (const __half *)p->x;
        work->input_factors = passing_of(p).factors;
        return;
    }
    p->passed = p->then && work->tile == INPUT_TILE_MOST && wgmma_tiles_fit(p->then->kind) &&
        p->activation.kind == ACT_SILU && p->then->cols == w.rows && w.rows % TILE_COLS == 0 &&
        p->rows >= INPUT_TILE_MOST && ((uintptr_t)p->out[0] & 15) == 0;
    if (!p->passed) return;
    const Passing passing = passing_of(p);
    work->passes = (__half *)p->out[0];
    work->most = passing.most;
    work->pass_factors = passing.factors;
}

extern "C" cudaError_t product_run(cudaStream_t stream, Product *p) {
    ProductWork work = work_of(p);
    work.activation = p->activation;
    work.scale = p->scale;
    work.room = p->room;
    work.has_moe = p->has_moe;
    if (p->norm) work.norm = *p->norm;
    work.inputs = (const __half *)p->inputs;
    work.input_factors =
        (const float *)((const uint8_t *)p->inputs + whole_tiles(p->rows) * work.groups * TILE_COLS * sizeof(__half));
    const Kernel kernel = first_kernel(p);
    const bool integer = is_integer(kernel), gemv = product_is_gemv(p), prefill = phase_of(p) == PHASE_PREFILL;
    Prepared prepared = p->mode != PRODUCT_GLU && p->passed ? PREPARED_HALVES : PREPARED_NOTHING;
    work.tile = !p->sm90a || p->rows > 64 ? INPUT_TILE : p->rows > 32 ? 64 : 32;
    work.chains = prefill ? PREFILL_CHAINS : SLICES;
    if (prefill) take_prefill(p, &work);
    /* Whether the kernel leaves its result as inputs, and the next product's kernel can take it: the same number of
     * rows selects the same kernel there. */
    if (integer ? p->rows <= GEMV_INT_ROWS || !gemm_int_fits(*p) : !is_gemv(kernel) || p->rows > GEMV_PREPARES_ROWS)
        p->hands = p->handed = 0;
    if (integer && p->hands) p->hands = gemm_int_hands(*p);
    if (!gemv) p->copy = nullptr;
    if (!gemv) p->rank.theirs = nullptr;
    work.rank = p->rank;
    work.copy = p->copy;
    if (p->handed) work.handed = (const __half *)p->inputs;
    if (p->hands) work.hands = (__half *)p->inputs;
    for (int first = 0, end; first < p->count; first = end) {
        const Tiles &w = p->weight[first];
        for (end = first + 1; end < p->count && p->weight[end].kind == w.kind && p->weight[end].bytes == w.bytes;
             end++) {}
        const cudaError_t error = run_part(stream, p, first, end, work, &prepared);
        if (error) return error;
    }
    return cudaSuccess;
}
