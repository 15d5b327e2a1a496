/* Products of rows with a matrix for each head: MLA's way to the latents and back (Mla of backend.h). A warp has a tile
 * row of a head's matrix and up to eight rows, all columns in one chain; it loads weights before the previous kernel
 * has ended, and prepares its inputs itself. So a row has the same bits alone and beside others. */
#include "backend/backend.h"
#include "backend/cuda/attention/flash_group.cuh"
#include "backend/cuda/gemm/gemm.cuh"

enum { HEADS_BLOCK = 128, HEADS_WARPS = HEADS_BLOCK / 32, SEGMENT = 8 /* groups that registers keep */ };
static_assert(4 * HEADS_BLOCK >= GROUP_DIM_MAX, "a block merges a head's results");

/* A lane's 16 columns of some groups as f16, in the order of multiply(). */
struct HeadInputs {
    uint32_t w[SEGMENT][8];
};

/* Four elements of a row from `at` on, zeros beyond its end. MERGED: in shared memory */
template <bool MERGED> __device__ __forceinline__ float4 head_four(const float *x, int at, int cols) {
    if (MERGED) return at < cols ? *(const float4 *)(x + at) : make_float4(0, 0, 0, 0);
    if (((uintptr_t)x & 15) == 0 && at + 4 <= cols) return __ldcg((const float4 *)(x + at));
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = at + i < cols ? load(x + at + i) : 0;
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* Groups first … of row x, times `up`; the largest element. */
template <bool MERGED>
__device__ __forceinline__ float inputs_take(
    HeadInputs &in, const float *x, bool on, int first, int groups, int cols, float up) {
    const int t = threadIdx.x % 4;
    float most = 0;
#pragma unroll
    for (int i = 0; i < SEGMENT; i++) {
        if (first + i >= groups) break;
        float4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[j] = on ? head_four<MERGED>(x, (first + i) * TILE_COLS + 16 * t + 4 * j, cols) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            most = four_most(most, v[j]);
            const uint2 h = half_four(v[j], up);
            in.w[i][2 * j] = h.x;
            in.w[i][2 * j + 1] = h.y;
        }
    }
    return most;
}

template <int KIND, bool MERGED>
__global__ void __launch_bounds__(HEADS_BLOCK)
    heads_kernel(const __grid_constant__ HeadsProduct p, const __grid_constant__ Attend merge) {
    constexpr int WORDS = Kind<KIND>::WORDS + 2, AHEAD = WORDS > 12 ? 2 : WORDS > 6 ? 4 : SEGMENT;
    __shared__ __align__(16) float merged[MERGED ? GROUP_DIM_MAX : 4];
    if (!MERGED) let_next_begin();
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int unit = blockIdx.x * HEADS_WARPS + threadIdx.x / 32, head = min(unit / p.tile_rows, p.heads - 1);
    const bool multiplies = unit < p.heads * p.tile_rows;
    const int tile_row = unit % p.tile_rows, first_row = blockIdx.y * GEMV_ROWS_MAX,
              count = min((int)GEMV_ROWS_MAX, p.rows - first_row);
    const Tiles w = p.bank[head];
    const uint8_t *tile = w.data + (int64_t)tile_row * w.groups * w.bytes;
    const int scales = scale_offset<KIND>(lane, w.subs);
    Piece<KIND> piece[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (i < w.groups) piece_load(piece[i], tile + i * w.bytes, lane, scales);
    const float factor = __ldg(w.factors + tile_row);
    float bias[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (w.bias && tile_row * TILE_ROWS + g + 8 * i < w.rows)
            bias[i] = __ldg(w.bias + tile_row * TILE_ROWS + g + 8 * i);
    const int row = first_row + g;
    const Seen seen = MERGED ? keys_of(merge, 0) : Seen{0, 0};
    const float *x = p.x + ((int64_t)row * p.heads + head) * p.x_width;
    wait_for_previous();
    if constexpr (MERGED) {
        let_next_begin(); /* now: kernels of the next step load what this step has appended */
        const int at = 4 * threadIdx.x;
        const float4 v = spans_merge(merge, seen, 0, head, p.spans, at);
        if (at < merge.value_dim) *(float4 *)(merged + at) = v;
        __syncthreads();
        x = merged;
    }
    if (!multiplies) return;
    const bool on = g < count;
    HeadInputs in;
    float most = 0, up = 1, down = 1;
    for (int first = 0; first < w.groups; first += SEGMENT)
        most = fmaxf(most, inputs_take<MERGED>(in, x, on, first, w.groups, w.cols, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    if (!half_range(most)) {
        const int shift = half_shift(most);
        up = ldexpf(1, shift);
        down = ldexpf(1, -shift);
    }
    const bool again = w.groups > SEGMENT || __any_sync(~0u, up != 1);
    float c[4] = {};
    for (int first = 0; first < w.groups; first += SEGMENT) {
        if (again) inputs_take<MERGED>(in, x, on, first, w.groups, w.cols, up);
#pragma unroll
        for (int i = 0; i < SEGMENT; i++) {
            if (first + i >= w.groups) break;
            Piece<KIND> &own = piece[i % AHEAD];
            if (i >= AHEAD || first > 0) piece_load(own, tile + (int64_t)(first + i) * w.bytes, lane, scales);
#pragma unroll
            for (int s = 0; s < 4; s++) {
                uint32_t a[4];
                piece_numbers(own, s, a);
                multiply(c, a, in.w[i][2 * s], in.w[i][2 * s + 1]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int n = 2 * t + i % 2, at = tile_row * TILE_ROWS + g + i / 2 * 8;
        const float input_factor = __shfl_sync(~0u, down, 4 * n);
        if (n < count && at < w.rows)
            p.out[((int64_t)(first_row + n) * p.heads + head) * p.out_width + at] =
                product_sum(c[i], input_factor, factor, w.bias != nullptr, bias[i / 2]);
    }
}

struct HeadsLaunch {
    cudaStream_t stream;
    const HeadsProduct *p;
    template <int KIND> cudaError_t operator()() const {
        const dim3 grid((unsigned)((p->heads * p->tile_rows + HEADS_WARPS - 1) / HEADS_WARPS),
            (p->rows + GEMV_ROWS_MAX - 1) / GEMV_ROWS_MAX);
        if (p->merge) return launch(stream, heads_kernel<KIND, true>, grid, HEADS_BLOCK, 0, *p, *p->merge);
        return launch(stream, heads_kernel<KIND, false>, grid, HEADS_BLOCK, 0, *p, Attend{});
    }
};
extern "C" cudaError_t heads_product(cudaStream_t stream, const HeadsProduct *product) {
    return with_kind(product->kind, HeadsLaunch{stream, product});
}
extern "C" int heads_merge(const HeadsProduct *p) { return p->rows == 1 && p->tile_rows % HEADS_WARPS == 0; }
