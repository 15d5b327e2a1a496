/* Products of up to 64 rows by wgmma: tiles of 32 or 64 inputs, two blocks to a multiprocessor. A warp expands a group
 * of weights while it multiplies by the one before. Where that makes few blocks, blocks split the slices of the sums as
 * well. If each of them has one chain, they are a cluster and add the chains together; else another kernel adds them.
 */
#include "backend/cuda/gemm/gemm_wgmma.cuh"
#include "backend/cuda/runtime/cluster.cuh"

/* N: rows of inputs in a tile. */
template <int N> struct GemmSmallN {
    static constexpr int INPUT_BYTES = N * TILE_COLS * 2, INPUTS = 256 / N, WEIGHTS = 4, WEIGHT_BYTES = 47 << 10,
                         SUMS_BYTES = N * SUMS_STRIDE * 4;
    /* Sums wait in registers for those of the next chain; more of them would leave no room for two groups of weights.
     */
    static constexpr bool KEEPS = N <= 32;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* Adds the chains of a cluster's blocks in order and applies the epilogue: each block for some inputs. */
template <int N>
__device__ __forceinline__ void finish_cluster(
    const ProductWork &p, const WgmmaRing &ring, int block, const float *sums, int warp, int lane) {
    const int rank = (int)cluster_rank(), each = N / ring.splits, end = min((rank + 1) * each, p.rows);
    const int run = slice_run(p.groups) * ring.chain, chains = min(ring.splits, (p.groups + run - 1) / run);
    const Place place = place_of<false>(p, block, lane / 4);
    const Rows rows(p, place.index, place.tile_row, lane % 4 * 4, place.on);
    const int stride = p.weight[place.index].rows;
    float *out = p.out[place.index] + rows.row;
    const bool whole = rows.left == 4 && stride % 4 == 0 && ((uintptr_t)p.out[place.index] & 15) == 0;
    float factor = 0;
    float4 old = make_float4(0, 0, 0, 0);
    const auto take = [&](int k) {
        if (k >= end) return;
        factor = load(p.input_factors + k);
        if (p.mode == PRODUCT_ADD) old = four_at(out + (int64_t)k * stride, rows.left, whole);
    };
    int k = rank * each + warp;
    cluster_arrive();
    take(k);
    cluster_wait();
#pragma unroll 1
    for (; k < end; k += WGMMA_MULTIPLIERS, take(k)) {
        float4 part[SLICES];
#pragma unroll
        for (int s = 0; s < SLICES; s++)
            if (s < chains) part[s] = cluster_load4(cluster_address(sums + k * SUMS_STRIDE + lane * 4, s));
        float4 v = part[0];
#pragma unroll
        for (int s = 1; s < SLICES; s++)
            if (s < chains) v = make_float4(v.x + part[s].x, v.y + part[s].y, v.z + part[s].z, v.w + part[s].w);
        v = rows.product(v, factor);
        if (p.mode == PRODUCT_ADD)
            v = make_float4(old.x + p.scale * v.x, old.y + p.scale * v.y, old.z + p.scale * v.z, old.w + p.scale * v.w);
        four_put(out + (int64_t)k * stride, v, rows.left, whole);
    }
    cluster_arrive(); /* a block's memory is read until here */
    cluster_wait();
}
#endif

template <int KIND, bool GLU, int N>
__global__ void __launch_bounds__(32 * WGMMA_WARPS, 2)
    gemm_small_n_kernel(const __grid_constant__ ProductWork p, const __grid_constant__ WgmmaRing ring) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using Shape = GemmSmallN<N>;
    constexpr int INPUT_BYTES = Shape::INPUT_BYTES, INPUTS = Shape::INPUTS, NUMBERS = N / 2;
    extern __shared__ __align__(128) uint8_t memory[]; /* inputs, sums, weights */
    __shared__ uint64_t barriers[2 * INPUTS + 2 * Shape::WEIGHTS];
    let_next_begin();
    const int warp = threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    asm volatile("" : "+r"(lane)); /* keeps the compiler from recomputing it at each use */
    const int block = blockIdx.x / ring.splits, slices = SLICES / ring.splits,
              first_slice = blockIdx.x % ring.splits * slices, end_slice = first_slice + slices;
    float *const sums = (float *)(memory + INPUTS * INPUT_BYTES);
    const uint8_t *const weights = memory + INPUTS * INPUT_BYTES + Shape::SUMS_BYTES;
    /* Kept in registers; the compiler would recompute them at each use. */
    uint32_t inputs = shared_address(memory), in_full = shared_address(barriers);
    asm volatile("" : "+r"(inputs), "+r"(in_full));
    const uint32_t in_empty = in_full + 8 * INPUTS, full = in_empty + 8 * INPUTS, empty = full + 8 * Shape::WEIGHTS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < INPUTS; i++) {
            barrier_make(in_full + 8 * i, 1);
            barrier_make(in_empty + 8 * i, WGMMA_MULTIPLIERS);
        }
        for (int i = 0; i < Shape::WEIGHTS; i++) {
            barrier_make(full + 8 * i, 1);
            barrier_make(empty + 8 * i, WGMMA_MULTIPLIERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const Columns columns(p.groups);
    const int bytes = p.weight[0].bytes;
    if (warp >= WGMMA_MULTIPLIERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        Turn turn;
        if (warp == WGMMA_MULTIPLIERS) {
            const Place place = place_of<GLU>(p, block, lane % WGMMA_MULTIPLIERS);
            const bool copies = place.on && lane < WGMMA_MULTIPLIERS;
            const int rows = __popc(__ballot_sync(~0u, copies));
            const uint8_t *from = p.weight[place.index].data + (int64_t)place.tile_row * p.groups * bytes;
#pragma unroll 1
            for (Pieces at = {first_slice}; at.slice < end_slice; at.next(columns, ring)) {
                const int count = at.count(columns, ring);
                if (count <= 0) continue;
                barrier_wait(empty + turn.at * 8, turn.phase ^ 1);
                if (lane == 0) barrier_expect(full + turn.at * 8, rows * count * bytes);
                __syncwarp();
                if (copies)
                    copy_bulk(shared_address(weights + turn.at * ring.slot_bytes + lane * ring.share * bytes),
                        from + (int64_t)at.first(columns, ring) * bytes, count * bytes, full + turn.at * 8);
                turn.next(ring.slots);
            }
        }
        wait_for_previous();
        if (warp == WGMMA_MULTIPLIERS + 1 && lane == 0) {
#pragma unroll 1
            for (Pieces at = {first_slice}; at.slice < end_slice; at.next(columns, ring)) {
                const int count = at.count(columns, ring), first = at.first(columns, ring);
                for (int i = 0; i < count; i++) {
                    barrier_wait(in_empty + turn.at * 8, turn.phase ^ 1);
                    barrier_expect(in_full + turn.at * 8, INPUT_BYTES);
                    copy_bulk(inputs + turn.at * INPUT_BYTES, p.inputs + input_chunk(p.groups, 0, first + i, 0, N) * 8,
                        INPUT_BYTES, in_full + turn.at * 8);
                    turn.next(INPUTS);
                }
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
    const int scales = scale_offset<KIND>(lane, p.weight[0].subs);
    float total[Shape::KEEPS ? NUMBERS : 1], c[NUMBERS];
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) c[i] = 0;
    float4 *const waiting = (float4 *)sums + threadIdx.x; /* sums of earlier chains, unless registers keep them */
    uint32_t one[16], other[16];
    Turn slot, in;
    Pieces at = {first_slice};
    /* Groups whose weights have not been taken; those left in the warp's current slot, and the address of its next
     * tile. */
    int untaken = chain_groups(columns, first_slice, slices), left = 0;
    const uint8_t *own_tiles = weights + warp * ring.share * bytes, *tile = own_tiles;
    uint32_t last_used = 0; /* the barrier of the inputs that the multiplications in flight read */
    constexpr bool EARLY = Kind<KIND>::WORDS <= 8; /* other kinds would take too many registers */
    Piece<KIND> numbers;
    /* The next group's weights. */
    const auto take = [&] {
        if (untaken == 0) return;
        untaken--;
        if (left == 0) {
            while ((left = at.count(columns, ring)) <= 0) at.next(columns, ring);
            at.next(columns, ring);
            tile = own_tiles + slot.at * ring.slot_bytes;
            barrier_wait(full + slot.at * 8, slot.phase);
        }
        piece_take(numbers, tile, lane, scales);
        tile += bytes;
        if (--left == 0) {
            __syncwarp();
            if (lane == 0) barrier_arrive(empty + slot.at * 8);
            slot.next(ring.slots);
        }
    };
    const auto release = [&] {
        if (lane == 0 && last_used) barrier_arrive(last_used);
    };
    /* Multiplies by a group of columns while the next one's weights are expanded to f16, and those after them are in
     * flight. */
    const auto step = [&](const uint32_t(&a)[16], uint32_t(&next)[16]) {
        const uint32_t matrix = input_matrix<N>(inputs + in.at * INPUT_BYTES);
        barrier_wait(in_full + in.at * 8, in.phase);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int s = 0; s < 4; s++) wgmma_multiply(c, a + 4 * s, matrix_of(matrix + s * 2 * N));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        release();
        last_used = in_empty + in.at * 8;
        in.next(INPUTS);
        if (!EARLY) take();
#pragma unroll
        for (int s = 0; s < 4; s++) piece_numbers(numbers, s, next + 4 * s);
        if (EARLY) take();
    };
    take();
#pragma unroll
    for (int s = 0; s < 4; s++) piece_numbers(numbers, s, one + 4 * s);
    if (EARLY) take();
    wait_for_previous();
#pragma unroll 1
    for (int slice = first_slice; slice < end_slice; slice += ring.chain) {
        const int groups = chain_groups(columns, slice, ring.chain);
        if (groups == 0) break;
#pragma unroll 1
        for (int i = 0; i < groups / 2; i++) {
            step(one, other);
            step(other, one);
        }
        if (groups % 2) step(one, other);
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        release();
        last_used = 0;
        if (groups % 2)
#pragma unroll
            for (int i = 0; i < 16; i++) one[i] = other[i];
        if (ring.together) break; /* the only chain */
        if (ring.splits > 1) {
            const Place place = place_of<GLU>(p, block, warp);
            const int64_t width = (int64_t)ring.units * TILE_ROWS;
            float *to =
                ring.partials + (int64_t)(slice / ring.chain) * p.rows * width + place.unit * TILE_ROWS + lane / 4;
#pragma unroll
            for (int i = 0; i < NUMBERS; i++) {
                const int k = i / 4 * 8 + lane % 4 * 2 + i % 2;
                if (place.on && k < p.rows) to[k * width + i / 2 % 2 * 8] = c[i];
            }
        } else if constexpr (Shape::KEEPS) {
#pragma unroll
            for (int i = 0; i < NUMBERS; i++) total[i] = slice == first_slice ? c[i] : total[i] + c[i];
        } else {
#pragma unroll
            for (int i = 0; i < NUMBERS; i += 4) {
                float4 sum = make_float4(c[i], c[i + 1], c[i + 2], c[i + 3]),
                       *to = waiting + i / 4 * 32 * WGMMA_MULTIPLIERS;
                if (slice > first_slice) {
                    const float4 v = *to;
                    sum = make_float4(v.x + sum.x, v.y + sum.y, v.z + sum.z, v.w + sum.w);
                }
                *to = sum;
            }
        }
#pragma unroll
        for (int i = 0; i < NUMBERS; i++) c[i] = 0;
    }
    if (ring.splits > 1 && !ring.together) return;
    if (!Shape::KEEPS && !ring.together) {
#pragma unroll
        for (int i = 0; i < NUMBERS; i += 4) {
            const float4 v = waiting[i / 4 * 32 * WGMMA_MULTIPLIERS];
            c[i] = v.x, c[i + 1] = v.y, c[i + 2] = v.z, c[i + 3] = v.w;
        }
        asm volatile("bar.sync 1, %0;" ::"n"(32 * WGMMA_MULTIPLIERS) : "memory");
    }
    if (Shape::KEEPS && !ring.together)
        sums_put(sums, total);
    else
        sums_put(sums, c);
    if constexpr (!GLU) {
        if (ring.together) return finish_cluster<N>(p, ring, block, sums, warp, lane);
    }
    asm volatile("bar.sync 1, %0;" ::"n"(32 * WGMMA_MULTIPLIERS) : "memory");
    finish_sums<GLU, N, WGMMA_MULTIPLIERS>(p, block, 0, sums, warp);
#endif
}

/* Adds the chains' sums in order and applies the epilogue; a thread per row of weights. */
template <bool GLU>
__global__ void __launch_bounds__(BLOCK)
    add_slices_kernel(const __grid_constant__ ProductWork p, const float *partials, int units, int chain) {
    let_next_begin();
    const int at = blockIdx.x * BLOCK + threadIdx.x, token = blockIdx.y;
    const int64_t width = (int64_t)units * TILE_ROWS, slice = p.rows * width;
    wait_for_previous();
    if (at >= p.units * TILE_ROWS) return;
    int tile_row;
    const int index = weight_of(p, at / TILE_ROWS, tile_row), row = tile_row * TILE_ROWS + at % TILE_ROWS;
    const Tiles &w = p.weight[index];
    if (row >= w.rows) return;
    const int run = slice_run(p.groups) * chain;
    const float factor = load(p.input_factors + token), *from = partials + token * width + at;
    float v[GLU ? 2 : 1];
#pragma unroll
    for (int part = 0; part < (GLU ? 2 : 1); part++, from += (int64_t)p.units * TILE_ROWS) {
        float sum = load(from);
        for (int s = 1; s < SLICES / chain && s * run < p.groups; s++) sum += load(from + s * slice);
        v[part] = product_of(p.weight[index + part], row, sum, factor);
    }
    float *out = p.out[index] + (int64_t)token * w.rows + row;
    if constexpr (GLU)
        *out = p.activation.kind == ACT_SILU && p.chains == PREFILL_CHAINS ? silu_prefill(v[0], v[1])
                                                                           : gated_usually(p.activation, v[0], v[1]);
    else
        *out = p.mode == PRODUCT_ADD ? load(out) + p.scale * v[0] : v[0];
}

cudaError_t slices_add(cudaStream_t stream, const ProductWork &work, const WgmmaRing &ring) {
    return launch(stream, work.mode == PRODUCT_GLU ? add_slices_kernel<true> : add_slices_kernel<false>,
        dim3((work.units * TILE_ROWS + BLOCK - 1) / BLOCK, work.rows), BLOCK, 0, work, (const float *)ring.partials,
        ring.units, ring.chain);
}

/* Sums of 64 inputs are many: those of a wide weight take longer to store and to add than to compute. */
constexpr int64_t PASSED_BYTES = 1536 << 10;

struct GemmSmallNLaunch {
    cudaStream_t stream;
    const ProductWork *work;
    const Product *product;
    bool *fits;
    template <int KIND, bool GLU, int N> cudaError_t go() const {
        const ProductWork &w = *work;
        const auto kernel = gemm_small_n_kernel<KIND, GLU, N>;
        using Shape = GemmSmallN<N>;
        WgmmaRing ring = ring_of(slice_run(w.groups), w.weight[0].bytes, Shape::WEIGHT_BYTES / 2);
        ring.slots = min(Shape::WEIGHT_BYTES / ring.slot_bytes, (int)Shape::WEIGHTS);
        const size_t shared =
            (size_t)Shape::INPUTS * Shape::INPUT_BYTES + Shape::SUMS_BYTES + (size_t)ring.slots * ring.slot_bytes;
        *fits = shared + 1024 <= (size_t)product->shared_bytes;
        if (!*fits) return cudaSuccess;
        cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (error) return error;
        ring.units = w.units * (GLU ? 2 : 1);
        ring.blocks = (ring.units + WGMMA_MULTIPLIERS - 1) / WGMMA_MULTIPLIERS;
        ring.chain = SLICES / w.chains;
        ring.splits = splits_of(ring.blocks, 2 * product->multiprocessors, w.groups,
            (int64_t)w.chains * w.rows * ring.units * TILE_ROWS, w.chains, PASSED_BYTES);
        ring.partials = product->partials;
        ring.together = !GLU && ring.splits > 1 && ring.splits == w.chains;
        error = launch_clusters(stream, kernel, dim3(ring.blocks * ring.splits), 32 * WGMMA_WARPS, shared,
            ring.together ? ring.splits : 1, w, ring);
        return error || ring.splits == 1 || ring.together ? error : slices_add(stream, w, ring);
    }
    template <int KIND, bool GLU> cudaError_t sized() const {
        return work->tile == 32 ? go<KIND, GLU, 32>() : go<KIND, GLU, 64>();
    }
    template <int KIND> cudaError_t operator()() const {
        return work->mode == PRODUCT_GLU ? sized<KIND, true>() : sized<KIND, false>();
    }
};
cudaError_t product_gemm_small_n(
    cudaStream_t stream, int kind, const ProductWork &work, const Product &product, bool *fits) {
    return with_kind(kind, GemmSmallNLaunch{stream, &work, &product, fits});
}
