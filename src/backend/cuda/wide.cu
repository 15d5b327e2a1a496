/* Products of prompts: tiles of 128 inputs. Blocks stay and take tile after tile; while six warps finish what the
 * multiplying ones have left them in shared memory, those are at the next. A block's last tile those finish themselves. */
#include "backend/cuda/wide.cuh"

enum { PROMPT_TILE = INPUT_TILE, PROMPT_INPUTS = 5, PROMPT_WEIGHTS = 2, PROMPT_SLOT_BYTES = 37 << 10 };
enum { FINISHERS = 6, PROMPT_WARPS = WIDE_MULTIPLIERS + 2 + FINISHERS };
enum { SUMS_BYTES = PROMPT_TILE * SUMS_STRIDE * 4 };

/* What a block has to do, one after the other. */
struct Item {
    int block, token, first_slice;
};
__device__ __forceinline__ Item item_at(const WideRing &ring, int i) {
    const int tiles = ring.blocks * ring.tokens, tile = i % tiles, first = tile / (ring.band * ring.tokens) * ring.band,
              width = min(ring.band, ring.blocks - first), rest = tile - first * ring.tokens;
    return {first + rest % width, rest / width * PROMPT_TILE, i / tiles * (SLICES / ring.splits)};
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
struct PromptBarriers {
    uint64_t inputs_full[PROMPT_INPUTS], inputs_empty[PROMPT_INPUTS], full[PROMPT_WEIGHTS], empty[PROMPT_WEIGHTS],
        sums_full, sums_empty;
};
#endif

template <int KIND, bool GLU>
__global__ void __launch_bounds__(32 * PROMPT_WARPS, 1)
    prompt_kernel(const __grid_constant__ ProductWork p, const __grid_constant__ WideRing ring) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr int N = PROMPT_TILE, INPUT_BYTES = N * TILE_COLS * 2, NUMBERS = N / 2;
    extern __shared__ __align__(128) uint8_t memory[]; /* inputs, sums, weights */
    __shared__ PromptBarriers b;
    let_next_begin();
    const int warp = threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    asm volatile("" : "+r"(lane)); /* or it would be made anew wherever it is used */
    float *const sums = (float *)(memory + PROMPT_INPUTS * INPUT_BYTES);
    uint8_t *const weights = memory + PROMPT_INPUTS * INPUT_BYTES + SUMS_BYTES;
    const int items = ring.blocks * ring.tokens * ring.splits, slices = SLICES / ring.splits;
    if (threadIdx.x == 0) {
        for (int i = 0; i < PROMPT_INPUTS; i++) {
            barrier_make(shared_address(b.inputs_full + i), 1);
            barrier_make(shared_address(b.inputs_empty + i), WIDE_MULTIPLIERS);
        }
        for (int i = 0; i < PROMPT_WEIGHTS; i++) {
            barrier_make(shared_address(b.full + i), 1);
            barrier_make(shared_address(b.empty + i), WIDE_MULTIPLIERS);
        }
        barrier_make(shared_address(&b.sums_full), WIDE_MULTIPLIERS);
        barrier_make(shared_address(&b.sums_empty), FINISHERS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const Columns columns(p.groups);
    const int bytes = p.weight[0].bytes;
    if (warp >= WIDE_MULTIPLIERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        Turn turn;
        if (warp == WIDE_MULTIPLIERS) {
#pragma unroll 1
            for (int i = blockIdx.x; i < items; i += gridDim.x) {
                const Item item = item_at(ring, i);
                const Place place = place_of<GLU>(p, item.block, lane % WIDE_MULTIPLIERS);
                const bool copies = place.on && lane < WIDE_MULTIPLIERS;
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
                    turn.next(PROMPT_WEIGHTS);
                }
            }
        }
        wait_for_previous();
        if (warp == WIDE_MULTIPLIERS + 1 && lane == 0) {
#pragma unroll 1
            for (int i = blockIdx.x; i < items; i += gridDim.x) {
                const Item item = item_at(ring, i);
#pragma unroll 1
                for (Pieces at = {item.first_slice}; at.slice < item.first_slice + slices; at.next(columns, ring)) {
                    const int count = at.count(columns, ring), first = at.first(columns, ring);
                    for (int j = 0; j < count; j++) {
                        const uint32_t full = shared_address(b.inputs_full + turn.at);
                        barrier_wait(shared_address(b.inputs_empty + turn.at), turn.phase ^ 1);
                        barrier_expect(full, INPUT_BYTES);
                        copy_bulk(shared_address(memory + turn.at * INPUT_BYTES),
                            p.inputs + input_chunk(p.groups, item.token, first + j, 0, N) * 8, INPUT_BYTES, full);
                        turn.next(PROMPT_INPUTS);
                    }
                }
            }
        }
        if (warp >= PROMPT_WARPS - FINISHERS) {
            uint32_t phase = 0;
            const auto taken = [&] {
                __syncwarp();
                if (lane == 0) barrier_arrive(shared_address(&b.sums_empty));
                phase ^= 1;
            };
#pragma unroll 1
            for (int i = blockIdx.x; i < items; i += gridDim.x) {
                const Item item = item_at(ring, i);
                if (ring.splits == 1) {
                    if (i + gridDim.x >= items) break; /* the last one */
                    barrier_wait(shared_address(&b.sums_full), phase);
                    finish_sums<GLU, N, FINISHERS>(p, item.block, item.token, sums, warp - (PROMPT_WARPS - FINISHERS));
                    taken();
                    continue;
                }
#pragma unroll 1
                for (int slice = item.first_slice; slice < item.first_slice + slices; slice++) {
                    if (slice * columns.run >= columns.groups) break;
                    barrier_wait(shared_address(&b.sums_full), phase);
                    leave_slice<GLU, N, FINISHERS>(p, ring, item.block, item.token, slice, sums, warp - (PROMPT_WARPS - FINISHERS));
                    taken();
                }
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 200;");
    const int scales = scale_offset<KIND>(lane, p.weight[0].subs);
    /* Kept in registers, where the compiler would make them anew each time. */
    uint32_t inputs = shared_address(memory), inputs_full = shared_address(b.inputs_full);
    asm volatile("" : "+r"(inputs), "+r"(inputs_full));
    const uint32_t inputs_empty = inputs_full + sizeof b.inputs_full, full = inputs_empty + sizeof b.inputs_empty,
                   empty = full + sizeof b.full;
    wait_for_previous();
    float total[NUMBERS], c[NUMBERS];
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) total[i] = c[i] = 0;
    uint32_t one[16], other[16];
    Turn slot, in;
    int next_item = blockIdx.x, end_slice = 0; /* of the weights that are prepared, ahead of the products */
    Pieces at = {0};
    /* Of the slot that the warp is at: the groups that are left, and where its next tile is. */
    int left = 0;
    const uint8_t *own_tiles = weights + warp * ring.share * bytes, *tile = own_tiles;
    uint32_t last_used = 0; /* the barrier of the inputs that the multiplications under way read */
    constexpr bool EARLY = Kind<KIND>::WORDS <= 8; /* others would take too many registers */
    Piece<KIND> numbers;
    /* The next group's weights. */
    const auto take = [&] {
        if (left == 0) {
            while (true) {
                if (at.slice >= end_slice) {
                    if (next_item >= items) return;
                    at = {item_at(ring, next_item).first_slice};
                    end_slice = at.slice + slices;
                    next_item += gridDim.x;
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
            slot.next(PROMPT_WEIGHTS);
        }
    };
    /* Those as f16, and the ones after them on their way. */
    const auto prepare = [&](uint32_t(&a)[16]) {
        if (!EARLY) take();
#pragma unroll
        for (int s = 0; s < 4; s++) piece_numbers(numbers, s, a + 4 * s);
        if (EARLY) take();
    };
    const auto issue = [&](const uint32_t(&a)[16]) {
        const uint32_t matrix = input_matrix<N>(inputs + in.at * INPUT_BYTES);
        barrier_wait(inputs_full + 8 * in.at, in.phase);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int s = 0; s < 4; s++) multiply_wide(c, a + 4 * s, matrix_of(matrix + s * 2 * N));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (lane == 0 && last_used) barrier_arrive(last_used);
        last_used = inputs_empty + 8 * in.at;
        in.next(PROMPT_INPUTS);
    };
    uint32_t phase = 1;
    const auto hand_over = [&](const float(&v)[NUMBERS]) {
        barrier_wait(shared_address(&b.sums_empty), phase);
        sums_put(sums, v);
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&b.sums_full));
        phase ^= 1;
    };
    if (EARLY) take();
    prepare(one);
#pragma unroll 1
    for (int i = blockIdx.x; i < items; i += gridDim.x) {
        const int first_slice = item_at(ring, i).first_slice;
#pragma unroll 1
        for (int slice = first_slice; slice < first_slice + slices; slice++) {
            int groups = 0;
            for (int round = 0; round < columns.rounds; round++)
                groups += max(0, min(columns.run, columns.groups - (round * SLICES + slice) * columns.run));
            if (groups == 0) break;
#pragma unroll 1
            for (int j = 0; j < groups / 2; j++) {
                issue(one);
                prepare(other);
                issue(other);
                prepare(one);
            }
            /* What comes next is prepared before the last multiplications of a slice are waited for. */
            if (groups % 2) {
                issue(one);
                prepare(other);
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (groups % 2)
#pragma unroll
                for (int j = 0; j < 16; j++) one[j] = other[j];
            if (ring.splits > 1) hand_over(c);
#pragma unroll
            for (int j = 0; j < NUMBERS; j++) {
                total[j] = slice == first_slice ? c[j] : total[j] + c[j];
                c[j] = 0;
            }
        }
        if (ring.splits > 1) continue;
        if (i + gridDim.x < items) {
            hand_over(total);
            continue;
        }
        barrier_wait(shared_address(&b.sums_empty), phase);
        sums_put(sums, total);
        asm volatile("bar.sync 1, %0;" ::"n"(32 * WIDE_MULTIPLIERS) : "memory");
        const Item item = item_at(ring, i);
        finish_sums<GLU, N, WIDE_MULTIPLIERS>(p, item.block, item.token, sums, warp);
    }
#endif
}

struct Prompt {
    cudaStream_t stream;
    const ProductWork *work;
    const Product *product;
    bool *fits;
    template <int KIND, bool GLU> cudaError_t go() const {
        enum { BAND_BYTES = 16 << 20 }; /* of weights, beside inputs in the L2 */
        const ProductWork &w = *work;
        const auto kernel = prompt_kernel<KIND, GLU>;
        const int run = slice_run(w.groups), bytes = w.weight[0].bytes, tile_rows = w.units * (GLU ? 2 : 1);
        WideRing ring = ring_of(run, bytes, PROMPT_SLOT_BYTES);
        const size_t shared =
            PROMPT_INPUTS * PROMPT_TILE * TILE_COLS * 2 + SUMS_BYTES + (size_t)PROMPT_WEIGHTS * ring.slot_bytes;
        *fits = shared + 1024 <= (size_t)product->shared_bytes;
        if (!*fits) return cudaSuccess;
        cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (error) return error;
        ring.units = tile_rows;
        ring.blocks = (tile_rows + WIDE_MULTIPLIERS - 1) / WIDE_MULTIPLIERS;
        ring.tokens = (w.rows + PROMPT_TILE - 1) / PROMPT_TILE;
        const int64_t block_bytes = (int64_t)WIDE_MULTIPLIERS * w.groups * bytes;
        const int bands = (int)((ring.blocks * block_bytes + BAND_BYTES - 1) / BAND_BYTES);
        ring.band = (ring.blocks + bands - 1) / bands;
        ring.splits = splits_of(ring.blocks * ring.tokens, product->multiprocessors, w.groups,
            (int64_t)SLICES * w.rows * ring.units * TILE_ROWS);
        ring.partials = product->partials;
        const int items = ring.blocks * ring.tokens * ring.splits;
        error = launch(stream, kernel, dim3(min(items, product->multiprocessors)), 32 * PROMPT_WARPS, shared, w, ring);
        return error || ring.splits == 1 ? error : slices_add(stream, w, ring);
    }
    template <int KIND> cudaError_t operator()() const {
        return work->mode == PRODUCT_GLU ? go<KIND, true>() : go<KIND, false>();
    }
};
cudaError_t product_wide(cudaStream_t stream, int kind, const ProductWork &work, const Product &product, bool *fits) {
    if (work.tile < PROMPT_TILE) return product_narrow(stream, kind, work, product, fits);
    return with_kind(kind, Prompt{stream, &work, &product, fits});
}

#ifdef APUS_CUDA_WIDE
extern "C" int kernels_have_wide(void) { return 1; }
#else
extern "C" int kernels_have_wide(void) { return 0; }
#endif
