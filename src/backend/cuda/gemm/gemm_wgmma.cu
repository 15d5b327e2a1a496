/* Products of more than 64 rows by wgmma: tiles of 128 or 256 inputs. Blocks are persistent: finishing warps write the
 * results of a tile from shared memory while the multiplying warps compute the next; the last tile is finished by the
 * multiplying warps. With 256 inputs the sums of a chain wait in shared memory for those of the next chain. */
#include "backend/cuda/gemm/gemm_wgmma.cuh"

/* N: inputs of a tile. Inputs are copied in pieces of STEPS times 16 columns. */
template <int N> struct PrefillShape {
    static constexpr bool LARGE = N > INPUT_TILE;
    static constexpr int STEPS = LARGE ? 2 : 4, INPUTS = LARGE ? 4 : 5, INPUT_BYTES = N * STEPS * 16 * 2;
    static constexpr int WEIGHTS = LARGE ? 3 : 2, SLOT_BYTES = (LARGE ? 10 : 37) << 10;
    static constexpr int SUMS_BYTES = N * SUMS_STRIDE * 4;
    static constexpr int FINISHERS = LARGE ? 2 : 6, WARPS = WGMMA_MULTIPLIERS + 2 + FINISHERS;
};

/* The work items of a block, one after the other. */
struct Item {
    int block, token, first_slice;
};
__device__ __forceinline__ Item item_at(const WgmmaRing &ring, int tile_rows, int i) {
    const int tiles = ring.blocks * ring.tokens, tile = i % tiles, first = tile / (ring.band * ring.tokens) * ring.band,
              width = min(ring.band, ring.blocks - first), rest = tile - first * ring.tokens;
    return {first + rest % width, rest / width * tile_rows, i / tiles * (SLICES / ring.splits)};
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* In a product that is repeated for some tiles: true for the other tiles. */
template <bool GLU, int N> __device__ __forceinline__ bool is_left_out(const ProductWork &p, const Item &item) {
    if constexpr (GLU && N == INPUT_TILE_MOST) return p.marks && !__ldcg(p.marks + 1 + item.token / N);
    return false;
}

template <int INPUTS, int WEIGHTS> struct PrefillBarriers {
    uint64_t inputs_full[INPUTS], inputs_empty[INPUTS], full[WEIGHTS], empty[WEIGHTS], sums_full, sums_empty;
};
#endif

template <int KIND, bool GLU, int N>
__global__ void __launch_bounds__(32 * PrefillShape<N>::WARPS, 1)
    gemm_wgmma_kernel(const __grid_constant__ ProductWork p, const __grid_constant__ WgmmaRing ring) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using Shape = PrefillShape<N>;
    constexpr int INPUTS = Shape::INPUTS, WEIGHTS = Shape::WEIGHTS, INPUT_BYTES = Shape::INPUT_BYTES,
                  STEPS = Shape::STEPS, NUMBERS = N / 2, FINISHERS = Shape::FINISHERS;
    extern __shared__ __align__(128) uint8_t memory[]; /* inputs, sums, weights */
    using Barriers = PrefillBarriers<INPUTS, WEIGHTS>;
    __shared__ Barriers b;
    let_next_begin();
    if (GLU && Shape::LARGE && p.marks) { /* the second time */
        wait_for_previous();
        if (!__ldcg(p.marks)) return;
    }
    const int warp = threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    asm volatile("" : "+r"(lane)); /* keeps the compiler from recomputing it at each use */
    float *const sums = (float *)(memory + INPUTS * INPUT_BYTES);
    uint8_t *const weights = memory + INPUTS * INPUT_BYTES + Shape::SUMS_BYTES;
    const int items = ring.blocks * ring.tokens * ring.splits, slices = SLICES / ring.splits;
    if (threadIdx.x == 0) {
        for (int i = 0; i < INPUTS; i++) {
            barrier_make(shared_address(b.inputs_full + i), 1);
            barrier_make(shared_address(b.inputs_empty + i), WGMMA_MULTIPLIERS);
        }
        for (int i = 0; i < WEIGHTS; i++) {
            barrier_make(shared_address(b.full + i), 1);
            barrier_make(shared_address(b.empty + i), WGMMA_MULTIPLIERS);
        }
        barrier_make(shared_address(&b.sums_full), WGMMA_MULTIPLIERS);
        barrier_make(shared_address(&b.sums_empty), FINISHERS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const Columns columns(p.groups);
    const int bytes = p.weight[0].bytes;
    if (warp >= WGMMA_MULTIPLIERS) {
        if constexpr (Shape::LARGE)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
        else
            asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        Turn turn;
        if (warp == WGMMA_MULTIPLIERS) {
#pragma unroll 1
            for (int i = blockIdx.x; i < items; i += gridDim.x) {
                const Item item = item_at(ring, N, i);
                if (is_left_out<GLU, N>(p, item)) continue;
                const Place place = place_of<GLU>(p, item.block, lane % WGMMA_MULTIPLIERS);
                const bool copies = place.on && lane < WGMMA_MULTIPLIERS;
                const int rows = __popc(__ballot_sync(~0u, copies));
                const uint8_t *from = p.weight[place.index].data + (int64_t)place.tile_row * p.groups * bytes;
#pragma unroll 1
                for (Pieces at = {item.first_slice}; at.slice < item.first_slice + slices; at.next(columns, ring)) {
                    const int count = at.count(columns, ring);
                    if (count <= 0) continue;
                    const uint32_t full = shared_address(b.full + turn.at);
                    barrier_wait(shared_address(b.empty + turn.at), turn.phase ^ 1);
                    if (lane == 0) barrier_expect(full, rows * count * bytes);
                    __syncwarp();
                    if (copies)
                        copy_bulk(shared_address(weights + turn.at * ring.slot_bytes + lane * ring.share * bytes),
                            from + (int64_t)at.first(columns, ring) * bytes, count * bytes, full);
                    turn.next(WEIGHTS);
                }
            }
        }
        wait_for_previous();
        if (warp == WGMMA_MULTIPLIERS + 1 && lane == 0) {
#pragma unroll 1
            for (int i = blockIdx.x; i < items; i += gridDim.x) {
                const Item item = item_at(ring, N, i);
                if (is_left_out<GLU, N>(p, item)) continue;
#pragma unroll 1
                for (Pieces at = {item.first_slice}; at.slice < item.first_slice + slices; at.next(columns, ring)) {
                    const int count = at.count(columns, ring), first = at.first(columns, ring);
                    for (int j = 0; j < count * (4 / STEPS); j++) {
                        const uint32_t full = shared_address(b.inputs_full + turn.at);
                        barrier_wait(shared_address(b.inputs_empty + turn.at), turn.phase ^ 1);
                        barrier_expect(full, INPUT_BYTES);
                        copy_bulk(shared_address(memory + turn.at * INPUT_BYTES),
                            p.inputs + input_chunk(p.groups, item.token, first, j * 2 * STEPS, N) * 8, INPUT_BYTES,
                            full);
                        turn.next(INPUTS);
                    }
                }
            }
        }
        if (warp >= Shape::WARPS - FINISHERS) {
            uint32_t phase = 0;
            const auto taken = [&] {
                __syncwarp();
                if (lane == 0) barrier_arrive(shared_address(&b.sums_empty));
                phase ^= 1;
            };
#pragma unroll 1
            for (int i = blockIdx.x; i < items; i += gridDim.x) {
                const Item item = item_at(ring, N, i);
                if (is_left_out<GLU, N>(p, item)) continue;
                if (ring.splits == 1) {
                    if (i + gridDim.x >= items) break; /* the last one */
                    barrier_wait(shared_address(&b.sums_full), phase);
                    finish_sums<GLU, N, FINISHERS>(p, item.block, item.token, sums, warp - (Shape::WARPS - FINISHERS));
                    taken();
                    continue;
                }
#pragma unroll 1
                for (int slice = item.first_slice; slice < item.first_slice + slices; slice += ring.chain) {
                    if (slice * columns.run >= columns.groups) break;
                    barrier_wait(shared_address(&b.sums_full), phase);
                    leave_chain<GLU, N, FINISHERS>(
                        p, ring, item.block, item.token, slice / ring.chain, sums, warp - (Shape::WARPS - FINISHERS));
                    taken();
                }
            }
        }
        return;
    }
    if constexpr (Shape::LARGE)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
    else
        asm volatile("setmaxnreg.inc.sync.aligned.u32 200;");
    const int scales = scale_offset<KIND>(lane, p.weight[0].subs);
    /* Kept in registers; the compiler would recompute them at each use. */
    uint32_t inputs = shared_address(memory), inputs_full = shared_address(b.inputs_full);
    asm volatile("" : "+r"(inputs), "+r"(inputs_full));
    const uint32_t inputs_empty = inputs_full + sizeof b.inputs_full, full = inputs_empty + sizeof b.inputs_empty,
                   empty = full + sizeof b.full;
    wait_for_previous();
    float total[Shape::LARGE ? 1 : NUMBERS], c[NUMBERS];
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) c[i] = 0;
    uint32_t one[16], other[16];
    Turn slot, in;
    int next_item = blockIdx.x, end_slice = 0; /* the weights that are prepared, ahead of the products */
    Pieces at = {0};
    /* State of the warp's current slot: the groups that are left, and the address of its next tile. */
    int left = 0;
    const uint8_t *own_tiles = weights + warp * ring.share * bytes, *tile = own_tiles;
    uint32_t last_used = 0; /* the barrier of the inputs that the multiplications in flight read */
    constexpr bool EARLY = Kind<KIND>::WORDS <= 8; /* other kinds would take too many registers */
    Piece<KIND> numbers;
    /* The next group's weights. */
    const auto take = [&] {
        if (left == 0) {
            while (true) {
                if (at.slice >= end_slice) {
                    if (next_item >= items) return;
                    const Item item = item_at(ring, N, next_item);
                    next_item += gridDim.x;
                    if (is_left_out<GLU, N>(p, item)) continue;
                    at = {item.first_slice};
                    end_slice = at.slice + slices;
                }
                left = max(0, at.count(columns, ring));
                at.next(columns, ring);
                if (left > 0) break;
            }
            tile = own_tiles + slot.at * ring.slot_bytes;
            barrier_wait(full + 8 * slot.at, slot.phase);
        }
        piece_take(numbers, tile, lane, scales);
        tile += bytes;
        if (--left == 0) {
            __syncwarp();
            if (lane == 0) barrier_arrive(empty + 8 * slot.at);
            slot.next(WEIGHTS);
        }
    };
    const auto release = [&] {
        if (lane == 0 && last_used) barrier_arrive(last_used);
    };
    /* Multiplies by a group of columns while the next one's weights are expanded to f16, and those after them are in
     * flight.
     */
    const auto step = [&](const uint32_t(&a)[16], uint32_t(&next)[16]) {
#pragma unroll
        for (int first = 0; first < 4; first += STEPS) {
            const uint32_t matrix = input_matrix<N>(inputs + in.at * INPUT_BYTES);
            barrier_wait(inputs_full + 8 * in.at, in.phase);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int s = 0; s < STEPS; s++) wgmma_multiply(c, a + 4 * (first + s), matrix_of(matrix + s * 2 * N));
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            release();
            last_used = inputs_empty + 8 * in.at;
            in.next(INPUTS);
            if (!EARLY && first == 0) take();
#pragma unroll
            for (int s = 0; s < STEPS; s++) piece_numbers(numbers, first + s, next + 4 * (first + s));
        }
        if (EARLY) take();
    };
    uint32_t phase = 1;
    const auto hand_over = [&](const auto &v) {
        barrier_wait(shared_address(&b.sums_empty), phase);
        sums_put(sums, v);
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&b.sums_full));
        phase ^= 1;
    };
    take();
#pragma unroll
    for (int j = 0; j < 4; j++) piece_numbers(numbers, j, one + 4 * j);
    if (EARLY) take();
#pragma unroll 1
    for (int i = blockIdx.x; i < items; i += gridDim.x) {
        const Item item = item_at(ring, N, i);
        if (is_left_out<GLU, N>(p, item)) continue;
        const int first_slice = item.first_slice;
#pragma unroll 1
        for (int slice = first_slice; slice < first_slice + slices; slice += ring.chain) {
            const int groups = chain_groups(columns, slice, ring.chain);
            if (groups == 0) break;
#pragma unroll 1
            for (int j = 0; j < groups / 2; j++) {
                step(one, other);
                step(other, one);
            }
            /* The next weights are prepared before the wait for the last multiplications of a chain. */
            if (groups % 2) step(one, other);
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            release();
            last_used = 0;
            if (groups % 2)
#pragma unroll
                for (int j = 0; j < 16; j++) one[j] = other[j];
            if constexpr (Shape::LARGE) {
                if (slice == first_slice) {
                    barrier_wait(shared_address(&b.sums_empty), phase);
                    phase ^= 1;
                    sums_put(sums, c);
                } else {
                    sums_add(sums, c);
                }
            } else {
                if (ring.splits > 1) hand_over(c);
#pragma unroll
                for (int j = 0; j < NUMBERS; j++) total[j] = slice == first_slice ? c[j] : total[j] + c[j];
            }
#pragma unroll
            for (int j = 0; j < NUMBERS; j++) c[j] = 0;
        }
        if (ring.splits > 1) continue;
        if (i + gridDim.x < items) {
            if constexpr (Shape::LARGE) {
                __syncwarp();
                if (lane == 0) barrier_arrive(shared_address(&b.sums_full));
            } else {
                hand_over(total);
            }
            continue;
        }
        if constexpr (!Shape::LARGE) {
            barrier_wait(shared_address(&b.sums_empty), phase);
            sums_put(sums, total);
        }
        asm volatile("bar.sync 1, %0;" ::"n"(32 * WGMMA_MULTIPLIERS) : "memory");
        finish_sums<GLU, N, WGMMA_MULTIPLIERS>(p, item.block, item.token, sums, warp);
    }
#endif
}

struct GemmWgmmaLaunch {
    cudaStream_t stream;
    const ProductWork *work;
    const Product *product;
    bool *fits;
    template <int KIND, bool GLU, int N> cudaError_t go() const {
        enum { BAND_BYTES = 16 << 20 }; /* weights of a band, beside inputs in the L2 */
        using Shape = PrefillShape<N>;
        const ProductWork &w = *work;
        const auto kernel = gemm_wgmma_kernel<KIND, GLU, N>;
        const int run = slice_run(w.groups), bytes = w.weight[0].bytes, tile_rows = w.units * (GLU ? 2 : 1);
        WgmmaRing ring = ring_of(run, bytes, Shape::SLOT_BYTES);
        const size_t shared =
            Shape::INPUTS * Shape::INPUT_BYTES + Shape::SUMS_BYTES + (size_t)Shape::WEIGHTS * ring.slot_bytes;
        *fits = shared + 1024 <= (size_t)product->shared_bytes;
        if (!*fits) return cudaSuccess;
        cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (error) return error;
        ring.units = tile_rows;
        ring.blocks = (tile_rows + WGMMA_MULTIPLIERS - 1) / WGMMA_MULTIPLIERS;
        ring.tokens = (w.rows + N - 1) / N;
        const int64_t block_bytes = (int64_t)WGMMA_MULTIPLIERS * w.groups * bytes;
        const int bands = (int)((ring.blocks * block_bytes + BAND_BYTES - 1) / BAND_BYTES);
        ring.band = (ring.blocks + bands - 1) / bands;
        ring.chain = SLICES / w.chains;
        ring.splits = Shape::LARGE ? 1
                                   : splits_of(ring.blocks * ring.tokens, product->multiprocessors, w.groups,
                                         (int64_t)w.chains * w.rows * ring.units * TILE_ROWS, w.chains);
        ring.partials = product->partials;
        const int items = ring.blocks * ring.tokens * ring.splits;
        error = launch(stream, kernel, dim3(min(items, product->multiprocessors)), 32 * Shape::WARPS, shared, w, ring);
        return error || ring.splits == 1 ? error : slices_add(stream, w, ring);
    }
    template <int KIND, bool GLU> cudaError_t sized() const {
        if constexpr (wgmma_tiles_fit(KIND))
            if (work->tile > INPUT_TILE) return go<KIND, GLU, INPUT_TILE_MOST>();
        return go<KIND, GLU, INPUT_TILE>();
    }
    template <int KIND> cudaError_t operator()() const {
        return work->mode == PRODUCT_GLU ? sized<KIND, true>() : sized<KIND, false>();
    }
};
cudaError_t product_gemm_wgmma(
    cudaStream_t stream, int kind, const ProductWork &work, const Product &product, bool *fits) {
    return with_kind(kind, GemmWgmmaLaunch{stream, &work, &product, fits});
}

int gemm_wgmma_tile(const Product &product, int groups) {
    /* Measured times: half a tile's columns with INPUT_TILE inputs; with twice as many inputs; adding two halves. */
    constexpr int TIME = 16, ADDING = 20;
    const int widest = product.mode == PRODUCT_GLU ? 29 : groups >= 128 ? 31 : 34;
    int units = 0;
    for (int i = 0; i < product.count; i++) {
        if (!wgmma_tiles_fit(product.weight[i].kind)) return INPUT_TILE;
        units += (product.weight[i].rows + TILE_ROWS - 1) / TILE_ROWS;
    }
    const int blocks = (units + WGMMA_MULTIPLIERS - 1) / WGMMA_MULTIPLIERS;
    const auto waves = [&](int tiles) { return (tiles + product.multiprocessors - 1) / product.multiprocessors; };
    const auto tiles = [&](int rows) { return blocks * ((product.rows + rows - 1) / rows); };
    const int splits = splits_of(tiles(INPUT_TILE), product.multiprocessors, groups,
        (int64_t)PREFILL_CHAINS * product.rows * units * TILE_ROWS, PREFILL_CHAINS);
    const int time =
        splits == 1 ? waves(tiles(INPUT_TILE)) * 2 * TIME : waves(tiles(INPUT_TILE) * splits) * TIME + ADDING;
    return waves(tiles(INPUT_TILE_MOST)) * 2 * widest <= time ? INPUT_TILE_MOST : INPUT_TILE;
}

#ifdef APUS_CUDA_SM90A
extern "C" int kernels_have_sm90a(void) { return 1; }
#else
extern "C" int kernels_have_sm90a(void) { return 0; }
#endif
