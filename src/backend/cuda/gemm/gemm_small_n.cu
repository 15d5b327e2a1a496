/* Products of up to 64 rows by wgmma: tiles of 32 or 64 inputs, two blocks to a multiprocessor. Where that makes few
 * blocks, blocks split the slices of the sums as well, and another kernel adds them. */
#include "backend/cuda/gemm/gemm_wgmma.cuh"

/* N: rows of inputs in a tile. */
template <int N> struct GemmSmallN {
    static constexpr int INPUT_BYTES = N * TILE_COLS * 2, INPUTS = 256 / N, WEIGHTS = 4, SLOT_BYTES = 19 << 10;
};

template <int KIND, bool GLU, int N>
__global__ void __launch_bounds__(32 * WGMMA_WARPS, 2)
    gemm_small_n_kernel(const __grid_constant__ ProductWork p, const __grid_constant__ WgmmaRing ring) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr int INPUT_BYTES = GemmSmallN<N>::INPUT_BYTES, INPUTS = GemmSmallN<N>::INPUTS,
                  WEIGHTS = GemmSmallN<N>::WEIGHTS, NUMBERS = N / 2;
    extern __shared__ __align__(128) uint8_t memory[]; /* inputs, weights; then sums */
    __shared__ uint64_t barriers[2 * INPUTS + 2 * WEIGHTS];
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int block = blockIdx.x % ring.blocks, slices = SLICES / ring.splits,
              first_slice = blockIdx.x / ring.blocks * slices, end_slice = first_slice + slices;
    const uint32_t inputs = shared_address(memory), weights = inputs + INPUTS * INPUT_BYTES;
    const uint32_t in_full = shared_address(barriers), in_empty = in_full + 8 * INPUTS, full = in_empty + 8 * INPUTS,
                   empty = full + 8 * WEIGHTS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < INPUTS; i++) {
            barrier_make(in_full + 8 * i, 1);
            barrier_make(in_empty + 8 * i, WGMMA_MULTIPLIERS);
        }
        for (int i = 0; i < WEIGHTS; i++) {
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
                    copy_bulk(weights + turn.at * ring.slot_bytes + lane * ring.share * bytes,
                        from + (int64_t)at.first(columns, ring) * bytes, count * bytes, full + turn.at * 8);
                turn.next(WEIGHTS);
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
    wait_for_previous();
    float total[NUMBERS], c[NUMBERS];
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) total[i] = c[i] = 0;
    Turn slot, in;
    Pieces at = {first_slice};
    int left = 0; /* groups left in the warp's current slot */
    const uint8_t *own_tiles = memory + INPUTS * INPUT_BYTES + warp * ring.share * bytes, *tile = own_tiles;
    Piece<KIND> numbers;
    /* The next group's weights. */
    const auto take = [&] {
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
            slot.next(WEIGHTS);
        }
    };
    int remaining = chain_groups(columns, first_slice, slices);
    if (remaining > 0) take();
#pragma unroll 1
    for (int slice = first_slice; slice < end_slice; slice += ring.chain) {
        const int groups = chain_groups(columns, slice, ring.chain);
        if (groups == 0) break;
#pragma unroll 1
        for (int i = 0; i < groups; i++) {
            uint32_t a[16];
#pragma unroll
            for (int s = 0; s < 4; s++) piece_numbers(numbers, s, a + 4 * s);
            const uint32_t matrix = input_matrix<N>(inputs + in.at * INPUT_BYTES);
            barrier_wait(in_full + in.at * 8, in.phase);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int s = 0; s < 4; s++) wgmma_multiply(c, a + 4 * s, matrix_of(matrix + s * 2 * N));
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            /* No other instruction may come between: it could overwrite registers that are still being read. */
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (lane == 0) barrier_arrive(in_empty + in.at * 8);
            in.next(INPUTS);
            if (--remaining > 0) take();
        }
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
        }
#pragma unroll
        for (int i = 0; i < NUMBERS; i++) {
            total[i] = slice == first_slice ? c[i] : total[i] + c[i];
            c[i] = 0;
        }
    }
    if (ring.splits > 1) return;
    asm volatile("bar.sync 1, %0;" ::"n"(32 * WGMMA_MULTIPLIERS) : "memory");
    sums_put((float *)memory, total);
    asm volatile("bar.sync 1, %0;" ::"n"(32 * WGMMA_MULTIPLIERS) : "memory");
    finish_sums<GLU, N, WGMMA_MULTIPLIERS>(p, block, 0, (float *)memory, warp);
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
        WgmmaRing ring = ring_of(slice_run(w.groups), w.weight[0].bytes, GemmSmallN<N>::SLOT_BYTES);
        const size_t shared = (size_t)GemmSmallN<N>::INPUTS * GemmSmallN<N>::INPUT_BYTES +
            (size_t)GemmSmallN<N>::WEIGHTS * ring.slot_bytes;
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
        error = launch(stream, kernel, dim3(ring.blocks * ring.splits), 32 * WGMMA_WARPS, shared, w, ring);
        return error || ring.splits == 1 ? error : slices_add(stream, w, ring);
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
