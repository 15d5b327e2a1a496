/* Products of many rows on Hopper (sm_90a alone): wgmma on weights that a warp turns into f16 in its registers. A block
 * has eight tile rows, a warp's each, and a tile of 32, 64 or 128 rows of inputs; one warp orders copies of weights, one
 * of inputs. The sums are many.cu's in the same order, and wgmma's are those of mma.sync, so the bits are the same.
 * Where that makes few blocks, they share out the slices of the sums as well, and another kernel adds those up. */
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/finish.cuh"

enum { WEIGHT_SLOTS = 3, WIDE_MULTIPLIERS = 8, WIDE_WARPS = 12, WEIGHT_SLOT_BYTES = 37 << 10 };

struct WideRing {
    int share, pieces, slot_bytes; /* groups of a run in a slot, slots of a run */
    int units;                     /* tile rows of all weights */
    int blocks, tokens, splits;    /* of the grid: tile rows, tiles of inputs, parts of the slices */
    float *partials;               /* splits > 1: [slice][row of inputs][tile row of all weights, row] */
};

/* Steps that fill whole tiles make blocks enough. */
__host__ __device__ constexpr bool wide_splits(int tile) { return tile < INPUT_TILE; }

/* N: rows of inputs in a tile. */
template <int N> struct WideInputs {
    static constexpr int BYTES = N * TILE_COLS * 2, SLOTS = N == 128 ? 6 : N == 64 ? 10 : 16;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* d += a · b, of 64 rows by 128, 64 or 32 columns; a: 16 columns of this lane's rows. */
__device__ __forceinline__ void multiply_wide(float (&d)[64], const uint32_t a[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void multiply_wide(float (&d)[32], const uint32_t a[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void multiply_wide(float (&d)[16], const uint32_t a[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
/* Eight rows by 16 bytes lie together; along the columns they are a tile's rows apart. Low word; the high one is the
 * same for all. */
template <int N> __device__ __forceinline__ uint32_t input_matrix(uint32_t at) {
    return (at & 0x3ffff) >> 4 | (uint32_t)(N * 16 >> 4) << 16;
}
__device__ __forceinline__ uint64_t matrix_of(uint32_t low) { return (uint64_t)(128 >> 4) << 32 | low; }
#endif

/* A run of groups after the other in canonical order: of each slice its rounds, of each round pieces that fill a slot. */
struct Pieces {
    int slice, round, piece;
    __device__ __forceinline__ void next(const Columns &c, const WideRing &ring) {
        if (++piece < ring.pieces) return;
        piece = 0;
        if (++round < c.rounds) return;
        round = 0;
        slice++;
    }
    __device__ __forceinline__ int first(const Columns &c, const WideRing &ring) const {
        return (round * SLICES + slice) * c.run + piece * ring.share;
    }
    __device__ __forceinline__ int count(const Columns &c, const WideRing &ring) const {
        return min(min(ring.share, c.run - piece * ring.share), c.groups - first(c, ring));
    }
};

/* Which weight's tile row a warp has. */
struct Place {
    int index, tile_row, unit; /* unit: of all tile rows; up's are behind the gate's */
    bool on;
};
template <bool GLU> __device__ __forceinline__ Place place_of(const ProductWork &p, int block, int warp) {
    Place place;
    const int unit = GLU ? block * 4 + warp % 4 : block * 8 + warp;
    place.on = unit < p.units;
    place.index = weight_of(p, place.on ? unit : 0, place.tile_row) + (GLU ? warp / 4 : 0);
    place.unit = unit + (GLU ? warp / 4 * p.units : 0);
    return place;
}

template <int KIND, bool GLU, int N>
__global__ void __launch_bounds__(32 * WIDE_WARPS, 1)
    wide_kernel(const __grid_constant__ ProductWork p, const __grid_constant__ WideRing ring) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr int INPUT_BYTES = WideInputs<N>::BYTES, INPUT_SLOTS = WideInputs<N>::SLOTS, NUMBERS = N / 2;
    constexpr bool SPLITS = wide_splits(N);
    extern __shared__ __align__(1024) uint8_t memory[]; /* inputs, weights */
    __shared__ uint64_t barriers[2 * INPUT_SLOTS + 2 * WEIGHT_SLOTS];
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int block = blockIdx.x % ring.blocks, token = blockIdx.x / ring.blocks % ring.tokens * N;
    const int splits = SPLITS ? ring.splits : 1, slices = SLICES / splits,
              first_slice = SPLITS ? blockIdx.x / (ring.blocks * ring.tokens) * slices : 0,
              end_slice = first_slice + slices;
    const uint32_t inputs = shared_address(memory), weights = inputs + INPUT_SLOTS * INPUT_BYTES;
    const uint32_t in_full = shared_address(barriers), in_empty = in_full + 8 * INPUT_SLOTS,
                   full = in_empty + 8 * INPUT_SLOTS, empty = full + 8 * WEIGHT_SLOTS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < INPUT_SLOTS; i++) {
            barrier_make(in_full + 8 * i, 1);
            barrier_make(in_empty + 8 * i, WIDE_MULTIPLIERS);
        }
        for (int i = 0; i < WEIGHT_SLOTS; i++) {
            barrier_make(full + 8 * i, 1);
            barrier_make(empty + 8 * i, WIDE_MULTIPLIERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const Columns columns(p.groups);
    const int bytes = p.weight[0].bytes;
    if (warp >= WIDE_MULTIPLIERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        Turn turn;
        if (warp == WIDE_MULTIPLIERS && lane == 0) {
            for (Pieces at = {first_slice}; at.slice < end_slice; at.next(columns, ring)) {
                const int count = at.count(columns, ring), first = at.first(columns, ring);
                if (count <= 0) continue;
                barrier_wait(empty + turn.at * 8, turn.phase ^ 1);
                int rows = 0;
                for (int i = 0; i < WIDE_MULTIPLIERS; i++) rows += place_of<GLU>(p, block, i).on;
                barrier_expect(full + turn.at * 8, rows * count * bytes);
                for (int i = 0; i < WIDE_MULTIPLIERS; i++) {
                    const Place place = place_of<GLU>(p, block, i);
                    if (place.on)
                        copy_bulk(weights + turn.at * ring.slot_bytes + i * ring.share * bytes,
                            p.weight[place.index].data + ((int64_t)place.tile_row * p.groups + first) * bytes,
                            count * bytes, full + turn.at * 8);
                }
                turn.next(WEIGHT_SLOTS);
            }
        }
        wait_for_previous();
        if (warp == WIDE_MULTIPLIERS + 1 && lane == 0) {
            for (Pieces at = {first_slice}; at.slice < end_slice; at.next(columns, ring)) {
                const int count = at.count(columns, ring), first = at.first(columns, ring);
                for (int i = 0; i < count; i++) {
                    barrier_wait(in_empty + turn.at * 8, turn.phase ^ 1);
                    barrier_expect(in_full + turn.at * 8, INPUT_BYTES);
                    copy_bulk(inputs + turn.at * INPUT_BYTES,
                        p.inputs + input_chunk(p.groups, token, first + i, 0, N) * 8, INPUT_BYTES,
                        in_full + turn.at * 8);
                    turn.next(INPUT_SLOTS);
                }
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const Place place = place_of<GLU>(p, block, warp);
    const Tiles &w = p.weight[place.index];
    const int scales = scale_offset<KIND>(lane, w.subs);
    wait_for_previous();
    float total[NUMBERS], c[NUMBERS];
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) total[i] = c[i] = 0;
    uint32_t one[16], other[16];
    Turn slot, in;
    Pieces at = {first_slice};
    /* Of the slot that the warp is at: the groups that are left, and where its next tile is. */
    int left = 0;
    const uint8_t *own_tiles = memory + INPUT_SLOTS * INPUT_BYTES + warp * ring.share * bytes, *tile = own_tiles;
    uint32_t last_used = 0; /* the barrier of the inputs that the multiplications under way read */
    /* The next group's weights, as f16. */
    const auto prepare = [&](uint32_t(&a)[16]) {
        if (left == 0) {
            while ((left = at.count(columns, ring)) <= 0) at.next(columns, ring);
            at.next(columns, ring);
            tile = own_tiles + slot.at * ring.slot_bytes;
            barrier_wait(full + slot.at * 8, slot.phase);
        }
        Piece<KIND> numbers;
        piece_take(numbers, tile, lane, scales);
        tile += bytes;
        if (--left == 0) {
            __syncwarp();
            if (lane == 0) barrier_arrive(empty + slot.at * 8);
            slot.next(WEIGHT_SLOTS);
        }
#pragma unroll
        for (int s = 0; s < 4; s++) piece_numbers(numbers, s, a + 4 * s);
    };
    const auto issue = [&](const uint32_t(&a)[16]) {
        const uint32_t matrix = input_matrix<N>(inputs + in.at * INPUT_BYTES);
        barrier_wait(in_full + in.at * 8, in.phase);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int s = 0; s < 4; s++) multiply_wide(c, a + 4 * s, matrix_of(matrix + s * 2 * N));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (lane == 0 && last_used) barrier_arrive(last_used);
        last_used = in_empty + in.at * 8;
        in.next(INPUT_SLOTS);
    };
    const auto groups_of = [&](int slice) {
        int groups = 0;
        for (int round = 0; round < columns.rounds; round++)
            groups += max(0, min(columns.run, columns.groups - (round * SLICES + slice) * columns.run));
        return groups;
    };
    int remaining = 0;
    for (int slice = first_slice; slice < end_slice; slice++) remaining += groups_of(slice);
    if (remaining > 0) prepare(one);
    for (int slice = first_slice; slice < end_slice; slice++) {
        const int groups = groups_of(slice);
        if (groups == 0) continue;
        /* What comes next is prepared before the last multiplications of a slice are waited for. */
        for (int i = 0; i < groups / 2; i++) {
            issue(one);
            prepare(other);
            issue(other);
            if ((remaining -= 2) > 0) prepare(one);
        }
        if (groups % 2) issue(one);
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (groups % 2 && --remaining > 0) prepare(one);
        if (splits > 1 && place.on) {
            const int64_t width = (int64_t)ring.units * TILE_ROWS;
            float *to = ring.partials + ((int64_t)slice * p.rows + token) * width + place.unit * TILE_ROWS + g;
#pragma unroll
            for (int i = 0; i < NUMBERS; i++) {
                const int k = i / 4 * 8 + 2 * t + i % 2;
                if (token + k < p.rows) to[k * width + i / 2 % 2 * 8] = c[i];
            }
        }
#pragma unroll
        for (int i = 0; i < NUMBERS; i++) {
            total[i] = slice == 0 ? c[i] : total[i] + c[i];
            c[i] = 0;
        }
    }
    if (splits > 1) return;

    float *exchange = (float *)memory; /* GLU: of up, [number][thread] */
    if constexpr (GLU) asm volatile("bar.sync 1, %0;" ::"n"(32 * WIDE_MULTIPLIERS) : "memory");
    const int row = place.tile_row * TILE_ROWS + g;
    const float factor = __ldg(w.factors + place.tile_row);
    const bool biased = w.bias != nullptr;
    float bias[2] = {0, 0};
    if (biased)
        for (int h = 0; h < 2; h++)
            if (row + 8 * h < w.rows) bias[h] = __ldg(w.bias + row + 8 * h);
    /* Number i of a thread is of input i / 4 · 8 + 2t + i % 2 and row + i / 2 % 2 · 8. */
#pragma unroll
    for (int j = 0; j < NUMBERS / 4; j++) {
        const float2 f = __ldcg((const float2 *)(p.input_factors + token + 8 * j + 2 * t));
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i++)
            total[i] = product_sum(total[i], i % 2 ? f.y : f.x, factor, biased, bias[i / 2 % 2]);
    }
    if constexpr (GLU) {
        /* up hands its numbers over; gate's pass through memory, so that there is one copy of the activations' code. */
        float *own = exchange + (warp / 4 ? NUMBERS * 128 : 0) + threadIdx.x % 128;
#pragma unroll
        for (int i = 0; i < NUMBERS; i++) own[i * 128] = total[i];
        asm volatile("bar.sync 1, %0;" ::"n"(32 * WIDE_MULTIPLIERS) : "memory");
        if (warp >= 4) return;
#pragma unroll 4
        for (int i = 0; i < NUMBERS; i++) own[i * 128] = gated(p.activation, own[i * 128], own[(NUMBERS + i) * 128]);
#pragma unroll
        for (int i = 0; i < NUMBERS; i++) total[i] = own[i * 128];
    }
    if (!place.on) return;
    float *out = p.out[GLU ? 0 : place.index] + row;
    const int64_t stride = w.rows;
    const bool here[2] = {row < w.rows, row + 8 < w.rows};
    float old[NUMBERS]; /* all under way together */
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) {
        const int k = token + i / 4 * 8 + 2 * t + i % 2, h = i / 2 % 2;
        old[i] = p.mode == PRODUCT_ADD && k < p.rows && here[h] ? load(out + k * stride + 8 * h) : 0;
    }
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) {
        const int k = token + i / 4 * 8 + 2 * t + i % 2, h = i / 2 % 2;
        if (k < p.rows && here[h])
            out[k * stride + 8 * h] = p.mode == PRODUCT_ADD ? old[i] + p.scale * total[i] : total[i];
    }
#endif
}

/* Slices' sums in order, and what follows them; a thread per row of weights. */
template <bool GLU>
__global__ void __launch_bounds__(BLOCK)
    add_slices_kernel(const __grid_constant__ ProductWork p, const float *partials, int units) {
    let_next_begin();
    const int at = blockIdx.x * BLOCK + threadIdx.x, token = blockIdx.y;
    const int64_t width = (int64_t)units * TILE_ROWS, slice = p.rows * width;
    wait_for_previous();
    if (at >= p.units * TILE_ROWS) return;
    int tile_row;
    const int index = weight_of(p, at / TILE_ROWS, tile_row), row = tile_row * TILE_ROWS + at % TILE_ROWS;
    const Tiles &w = p.weight[index];
    if (row >= w.rows) return;
    const int run = slice_run(p.groups);
    const float factor = load(p.input_factors + token), *from = partials + token * width + at;
    float v[GLU ? 2 : 1];
#pragma unroll
    for (int part = 0; part < (GLU ? 2 : 1); part++, from += (int64_t)p.units * TILE_ROWS) {
        float sum = load(from);
        for (int s = 1; s < SLICES && s * run < p.groups; s++) sum += load(from + s * slice);
        v[part] = product_of(p.weight[index + part], row, sum, factor);
    }
    float *out = p.out[index] + (int64_t)token * w.rows + row;
    if constexpr (GLU)
        *out = gated_usually(p.activation, v[0], v[1]);
    else
        *out = p.mode == PRODUCT_ADD ? load(out) + p.scale * v[0] : v[0];
}

/* Into how many parts to cut the slices. A wave of blocks takes as long as its groups of columns and what beginning
 * costs, about five groups' time. */
static int splits_of(int blocks, int multiprocessors, int groups, int64_t sums) {
    constexpr int BEGINNING = 5;
    int best = 1, least = 0;
    for (int splits = 1; splits <= SLICES; splits *= 2) {
        if (splits > 1 && sums * (int64_t)sizeof(float) > PRODUCT_PARTIAL_BYTES) break;
        const int waves = (blocks * splits + multiprocessors - 1) / multiprocessors;
        const int time = waves * (groups / splits + BEGINNING) + (splits > 1 ? 2 * BEGINNING : 0);
        if (splits == 1 || time < least) {
            best = splits;
            least = time;
        }
    }
    return best;
}

struct Wide {
    cudaStream_t stream;
    const ProductWork *work;
    const Product *product;
    bool *fits;
    template <int KIND, bool GLU, int N> cudaError_t go() const {
        const ProductWork &w = *work;
        const auto kernel = wide_kernel<KIND, GLU, N>;
        const int run = slice_run(w.groups), bytes = w.weight[0].bytes;
        WideRing ring = {run};
        while (ring.share > 1 && WIDE_MULTIPLIERS * ring.share * bytes > WEIGHT_SLOT_BYTES)
            ring.share = (ring.share + 1) / 2;
        ring.pieces = (run + ring.share - 1) / ring.share;
        ring.slot_bytes = WIDE_MULTIPLIERS * ring.share * bytes;
        const size_t shared =
            (size_t)WideInputs<N>::SLOTS * WideInputs<N>::BYTES + (size_t)WEIGHT_SLOTS * ring.slot_bytes;
        *fits = shared + 1024 <= (size_t)product->shared_bytes;
        if (!*fits) return cudaSuccess;
        cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (error) return error;
        const int each = GLU ? WIDE_MULTIPLIERS / 2 : WIDE_MULTIPLIERS;
        ring.units = w.units * (GLU ? 2 : 1);
        ring.blocks = (w.units + each - 1) / each;
        ring.tokens = (w.rows + N - 1) / N;
        ring.splits = !wide_splits(N) ? 1
                                      : splits_of(ring.blocks * ring.tokens, product->multiprocessors, w.groups,
                                            (int64_t)SLICES * w.rows * ring.units * TILE_ROWS);
        ring.partials = product->partials;
        const dim3 grid(ring.blocks * ring.tokens * ring.splits);
        error = launch(stream, kernel, grid, 32 * WIDE_WARPS, shared, w, ring);
        if (error || ring.splits == 1) return error;
        return launch(stream, add_slices_kernel<GLU>, dim3((w.units * TILE_ROWS + BLOCK - 1) / BLOCK, w.rows), BLOCK, 0,
            w, (const float *)ring.partials, ring.units);
    }
    template <int KIND, bool GLU> cudaError_t sized() const {
        if (work->tile == 32) return go<KIND, GLU, 32>();
        if (work->tile == 64) return go<KIND, GLU, 64>();
        return go<KIND, GLU, 128>();
    }
    template <int KIND> cudaError_t operator()() const {
        return work->mode == PRODUCT_GLU ? sized<KIND, true>() : sized<KIND, false>();
    }
};
cudaError_t product_wide(cudaStream_t stream, int kind, const ProductWork &work, const Product &product, bool *fits) {
    return with_kind(kind, Wide{stream, &work, &product, fits});
}

#ifdef APUS_CUDA_WIDE
extern "C" int kernels_have_wide(void) { return 1; }
#else
extern "C" int kernels_have_wide(void) { return 0; }
#endif
