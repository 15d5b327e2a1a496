/* Products of many rows: a block takes eight tile rows by 8·NT rows of inputs. A warp takes one tile row and walks its
 * columns in the canonical order; inputs pass through shared memory, a group of columns at a time. */
#include "backend/cuda/gemm/gemm.cuh"

constexpr int STAGES = 4;

__device__ __forceinline__ void copy_async(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copies_close() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* The groups of a row of tiles in canonical order. */
struct Walk {
    int slice, round, in_run;
    __device__ __forceinline__ int group(int run) const { return (round * SLICES + slice) * run + in_run; }
    /* Moves to the next existing group. */
    __device__ __forceinline__ void next(int run, int rounds, int groups) {
        do {
            if (++in_run == run) {
                in_run = 0;
                if (++round == rounds) {
                    round = 0;
                    slice++;
                }
            }
        } while (slice < SLICES && group(run) >= groups);
    }
};

template <int KIND, int NT, bool GLU>
__global__ void __launch_bounds__(BLOCK) gemm_mma_kernel(const __grid_constant__ ProductWork p) {
    constexpr int WORDS = Kind<KIND>::WORDS + 2, AHEAD = WORDS > 12 ? 2 : 4, TOKENS = 8 * NT;
    constexpr int STAGE = TOKENS * 128;
    __shared__ __align__(128) uint8_t stages[STAGES * STAGE];
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int run = slice_run(p.groups), rounds = slice_rounds(p.groups), first = blockIdx.x * TOKENS;
    /* GLU: even warps have the gate, odd ones up. */
    int unit = GLU ? blockIdx.y * (WARPS / 2) + warp / 2 : blockIdx.y * WARPS + warp, tile_row = unit,
        index = GLU ? warp % 2 : 0;
    const bool on = unit < p.units;
    if (!GLU)
        for (; index + 1 < p.count; index++) {
            const int here = (p.weight[index].rows + TILE_ROWS - 1) / TILE_ROWS;
            if (tile_row < here) break;
            tile_row -= here;
        }
    const Tiles &w = p.weight[index];
    const int bytes = w.bytes, scales = scale_offset<KIND>(lane, w.subs);
    const uint8_t *tiles = w.data + (int64_t)tile_row * p.groups * bytes;

    Piece<KIND> piece[AHEAD];
    Walk fetch = {0, 0, 0}, copy = fetch, use = fetch;
    const auto prefetch = [&](Piece<KIND> &into) {
        if (fetch.slice < SLICES) {
            if (on) piece_load(into, tiles + (int64_t)fetch.group(run) * bytes, lane, scales);
            fetch.next(run, rounds, p.groups);
        }
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) prefetch(piece[i]);
    wait_for_previous();

    const uint32_t base = (uint32_t)__cvta_generic_to_shared(stages);
    const auto bring = [&](int stage) {
        if (copy.slice < SLICES) {
            const __half *from = p.inputs + input_chunk(p.groups, first, copy.group(run), 0, INPUT_TILE) * 8;
            for (int i = threadIdx.x; i < TOKENS * 8; i += BLOCK) {
                const int chunk = i / TOKENS, row = first + i % TOKENS;
                copy_async(base + stage * STAGE + i * 16,
                    from + (chunk * INPUT_TILE + (row < p.rows ? row - first : 0)) * 8, row < p.rows ? 16 : 0);
            }
            copy.next(run, rounds, p.groups);
        }
        copies_close();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) bring(i);

    float total[NT][4], c[NT][4];
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) total[n][k] = c[n][k] = 0;
    int stage = 0;
    const uint32_t lane_offset = (uint32_t)(lane / 8 * TOKENS + lane % 8) * 16;
    while (use.slice < SLICES) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (use.slice >= SLICES) break;
            copies_wait<STAGES - 2>();
            __syncthreads();
            bring((stage + STAGES - 1) % STAGES);
            const uint32_t at = base + stage * STAGE + lane_offset;
            uint32_t a[4][4];
#pragma unroll
            for (int s = 0; s < 4; s++) piece_numbers(piece[i], s, a[s]);
            prefetch(piece[i]);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                uint32_t b[4];
                load_matrices(b, at + n * 128);
                multiply(c[n], a[0], b[0], b[1]);
                multiply(c[n], a[1], b[2], b[3]);
                load_matrices(b, at + n * 128 + TOKENS * 64);
                multiply(c[n], a[2], b[0], b[1]);
                multiply(c[n], a[3], b[2], b[3]);
            }
            stage = (stage + 1) % STAGES;
            const int slice = use.slice;
            use.next(run, rounds, p.groups);
            if (use.slice == slice) continue;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    total[n][k] = slice == 0 ? c[n][k] : total[n][k] + c[n][k];
                    c[n][k] = 0;
                }
        }
    }
    copies_wait<0>();

    float *exchange = (float *)stages; /* GLU: [pair][NT][4][lane] of up */
    constexpr int LANES = 32;
    if constexpr (GLU) __syncthreads();
#pragma unroll
    for (int round = GLU ? 0 : 1; round < 2; round++) {
        if (GLU && round == 1) __syncthreads();
        if (!on || (GLU && warp % 2 == round)) continue;
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int token = first + n * 8 + 2 * t + k % 2, row = tile_row * TILE_ROWS + g + k / 2 * 8;
                if (token >= p.rows || row >= w.rows) continue;
                const float v = product_of(w, row, total[n][k], load(p.input_factors + token));
                float *other = exchange + ((warp / 2 * NT + n) * 4 + k) * LANES + lane;
                float *to = p.out[GLU ? 0 : index] + (int64_t)token * w.rows + row;
                if (GLU && round == 0)
                    *other = v;
                else if (GLU)
                    *to = gated(p.activation, v, *other);
                else if (p.mode == PRODUCT_ADD)
                    *to = load(to) + p.scale * v;
                else
                    *to = v;
            }
    }
}

struct GemmMmaLaunch {
    cudaStream_t stream;
    const ProductWork *work;
    template <int KIND, int NT> cudaError_t go() const {
        const bool glu = work->mode == PRODUCT_GLU;
        const int each = glu ? WARPS / 2 : WARPS;
        const dim3 grid((work->rows + 8 * NT - 1) / (8 * NT), (work->units + each - 1) / each);
        return launch(
            stream, glu ? gemm_mma_kernel<KIND, NT, true> : gemm_mma_kernel<KIND, NT, false>, grid, BLOCK, 0, *work);
    }
    template <int KIND> cudaError_t operator()() const {
        return work->rows <= 8 ? go<KIND, 1>() : work->rows <= 32 ? go<KIND, 4>() : go<KIND, 8>();
    }
};
cudaError_t product_gemm_mma(cudaStream_t stream, int kind, const ProductWork &work) {
    return with_kind(kind, GemmMmaLaunch{stream, &work});
}
