/* Products of 5 to DECODE_ROWS_MAX decode rows: the sums of gemm_int.cuh by wgmma. A row of inputs is two columns of
 * its operand, the planes of high and of low bytes, so that both sums of a result are in one thread. Scaling the sums
 * costs more than multiplying; four warpgroups share a multiprocessor, so that one hides the other. */
#include "backend/cuda/gemm/gemm_int.cuh"
#include "backend/cuda/gemm/gemm_wgmma.cuh"

/* Inputs of a group, N rows: {unit, offset} of the whole group; planes as [step s of 16 columns][row: high, low][16
 * bytes]; {unit, offset} of its two halves. */
struct GemmIntInputs {
    int rows; /* N */
    __host__ __device__ __forceinline__ int bytes() const { return rows * 152; }
    __host__ __device__ __forceinline__ int planes() const { return rows * 8; }
    __host__ __device__ __forceinline__ int halves() const { return rows * 136; }
    /* Rows p and p + 4 lie together, as a thread needs them. */
    __host__ __device__ __forceinline__ static int place(int row) {
        return ((row / 8 * 4 + row % 4) * 2 + row / 4 % 2) * 8;
    }
    /* part: which 16 columns of the group the lane has. */
    __device__ __forceinline__ void put(const IntegerPart &p, uint8_t *group, int row, int part) const {
        const uint32_t high[4] = {p.high.x, p.high.y, p.high.z, p.high.w},
                       low[4] = {p.low.x, p.low.y, p.low.z, p.low.w};
#pragma unroll
        for (int s = 0; s < 4; s++) {
            uint8_t *plane = group + planes() + (s * rows + row) * 32 + part * 4;
            *(uint32_t *)plane = high[s];
            *(uint32_t *)(plane + 16) = low[s];
        }
        if (part) return;
        const float unit = integer_unit(p.step);
        *(float2 *)(group + place(row)) = make_float2(unit, integer_offset(p.step, p.sum[0] + p.sum[1]));
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(float2 *)(group + halves() + half * rows * 8 + place(row)) =
                make_float2(unit, integer_offset(p.step, p.sum[half]));
    }
};
static inline int gemm_int_tile(int rows) { return rows <= 16 ? 16 : 32; }
static_assert(DECODE_ROWS_MAX <= 32, "");
/* Behind them a factor per row. */
__host__ __device__ __forceinline__ constexpr int64_t gemm_int_factors(int groups, int tile) {
    return (int64_t)groups * tile * 152;
}

__global__ void __launch_bounds__(BLOCK) gemm_int_prepare_kernel(
    const float *x, int cols, int groups, int tile, RowNorm norm, uint8_t *inputs, float *factors) {
    __shared__ float sums[WARPS];
    let_next_begin();
    const int row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = lane % 4;
    const Columns c(groups);
    const GemmIntInputs layout = {tile};
    const bool weighted = norm.width && norm.weight;
    const float *from = x + (int64_t)row * cols;
    const bool aligned = ((uintptr_t)from & 15) == 0 && (!weighted || ((uintptr_t)norm.weight & 15) == 0);
    /* Loads 16 columns, 0 beyond the width; constant data may be loaded early. */
    const auto take = [&](const float *data, int at, float v[16], bool constant) {
        if (aligned && at + 16 <= cols) {
#pragma unroll
            for (int i = 0; i < 16; i += 4) {
                const float4 four =
                    constant ? __ldg((const float4 *)(data + at + i)) : __ldcg((const float4 *)(data + at + i));
                v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
            }
        } else {
#pragma unroll
            for (int i = 0; i < 16; i++) v[i] = at + i < cols ? load(data + at + i) : 0;
        }
    };
    float sum = 0, y[16], weights[16];
    bool waited = false;
#pragma unroll 1
    for (int round = blockIdx.y; round < c.rounds; round += gridDim.y) {
        const int first = (round * SLICES + warp) * c.run, group = first + lane / 4;
        const bool on = lane / 4 < c.run && group < groups;
        const int at = on ? group * TILE_COLS + part * 16 : cols;
        if (weighted) take(norm.weight, at, weights, true);
        if (!waited) wait_for_previous();
        waited = true;
        take(from, at, y, false);
        if (norm.width) sum += integer_square(y);
        if (weighted) {
#pragma unroll
            for (int i = 0; i < 16; i++) y[i] *= weights[i];
        }
        const IntegerPart p = integer_part(y);
        if (on) layout.put(p, inputs + (int64_t)group * layout.bytes(), row, part);
    }
    if (norm.width) sum = slices_sum(sum, sums);
    if (threadIdx.x == 0 && blockIdx.y == 0)
        factors[row] = norm.width ? 1.0f / sqrtf(sum / (float)norm.width + norm.eps) : 1;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* d = a · b of 64 rows by 32 columns: inputs' high and low planes in turn. */
__device__ __forceinline__ void multiply_planes(int (&d)[16], const uint32_t (&a)[8], uint64_t b, uint64_t b_next) {
    asm volatile(
        "wgmma.fence.sync.aligned;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19}, %24, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%20, %21, %22, %23}, %25, 1;\n"
        "wgmma.commit_group.sync.aligned;"
        : "=&r"(d[0]), "=&r"(d[1]), "=&r"(d[2]), "=&r"(d[3]), "=&r"(d[4]), "=&r"(d[5]), "=&r"(d[6]), "=&r"(d[7]),
        "=&r"(d[8]), "=&r"(d[9]), "=&r"(d[10]), "=&r"(d[11]), "=&r"(d[12]), "=&r"(d[13]), "=&r"(d[14]), "=&r"(d[15])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "l"(b), "l"(b_next)
        : "memory");
}
/* All multiplications but the last LEFT are done. */
template <int LEFT> __device__ __forceinline__ void planes_done(int (&d)[16]) {
    asm volatile("wgmma.wait_group.sync.aligned %16;"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
                 "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
                 : "n"(LEFT)
                 : "memory");
}
/* d = a · b of 64 rows by 64 columns: inputs' high and low planes in turn. */
__device__ __forceinline__ void multiply_planes(int (&d)[32], const uint32_t (&a)[8], uint64_t b, uint64_t b_next) {
    asm volatile(
        "wgmma.fence.sync.aligned;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %40, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%36, %37, %38, %39}, %41, 1;\n"
        "wgmma.commit_group.sync.aligned;"
        : "=&r"(d[0]), "=&r"(d[1]), "=&r"(d[2]), "=&r"(d[3]), "=&r"(d[4]), "=&r"(d[5]), "=&r"(d[6]), "=&r"(d[7]),
        "=&r"(d[8]), "=&r"(d[9]), "=&r"(d[10]), "=&r"(d[11]), "=&r"(d[12]), "=&r"(d[13]), "=&r"(d[14]), "=&r"(d[15]),
        "=&r"(d[16]), "=&r"(d[17]), "=&r"(d[18]), "=&r"(d[19]), "=&r"(d[20]), "=&r"(d[21]), "=&r"(d[22]), "=&r"(d[23]),
        "=&r"(d[24]), "=&r"(d[25]), "=&r"(d[26]), "=&r"(d[27]), "=&r"(d[28]), "=&r"(d[29]), "=&r"(d[30]), "=&r"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "l"(b), "l"(b_next)
        : "memory");
}
/* All multiplications but the last LEFT are done. */
template <int LEFT> __device__ __forceinline__ void planes_done(int (&d)[32]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
                 "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]),
                 "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), "+r"(d[23]),
                 "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31])
                 : "n"(LEFT)
                 : "memory");
}
#endif

template <int N> struct Count { static constexpr int value = N; };

/* f(Count<0>), f(Count<1>), … */
template <int END, int AT = 0, class F> __device__ __forceinline__ void steps_upto(const F &f) {
    if constexpr (AT < END) {
        f(Count<AT>());
        steps_upto<END, AT + 1>(f);
    }
}

enum { GEMM_WARPGROUPS = 2, GEMM_TILES = 8, GEMM_SLOTS = 4, GEMM_SHARE = 8, GEMM_BLOCKS = 2 /* on a multiprocessor */ };
/* Registers per thread: of the copying warps, of the multiplying warps. */
constexpr int GEMM_REGISTERS_COPY = 32, GEMM_REGISTERS_MULTIPLY = 104;

/* N: rows of inputs. */
template <int N> struct GemmIntShape {
    static constexpr int DEPTH =
        N == 16 ? 2 : 1; /* multiplications of a warpgroup in flight; more would need too many registers */
    static constexpr int TOTAL_BYTES = GEMM_TILES * TILE_ROWS * N * 4;
    static constexpr int ROOM = (226 << 10) / GEMM_BLOCKS - 2304 * GEMM_WARPGROUPS - 1024; /* bytes of shared memory */
};

/* A block has two warpgroups and eight tile rows, of a gated product four of the gate and four of up. A slot of its
 * ring has the inputs of some groups, then the same groups of each tile row's weights. The sums of slices that are
 * distributed over blocks are stored as [block's tile rows][slice][eight inputs][thread] fours. */
struct GemmIntRing {
    WgmmaRing ring;
    int slots;
};

/* A thread's results of eight inputs: rows g and g + 8 of two tile rows, one of each warpgroup, and inputs t and t + 4.
 */
template <bool GLU> struct GemmIntEpilogue {
    Place place[2];
    float factor[2], bias[2][2];
    float *out[2][2]; /* outputs of the first input */
    bool on[2][2];
    __device__ __forceinline__ GemmIntEpilogue(const ProductWork &p, int block, int warp, int lane) {
#pragma unroll
        for (int m = 0; m < 2; m++) {
            place[m] = place_of<GLU>(p, block, warp + 4 * m);
            const Tiles &w = p.weight[place[m].index];
            factor[m] = place[m].on ? __ldg(w.factors + place[m].tile_row) : 0;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = place[m].tile_row * TILE_ROWS + lane / 4 + 8 * r;
                on[m][r] = place[m].on && row < w.rows;
                bias[m][r] = on[m][r] && w.bias ? __ldg(w.bias + row) : 0;
                out[m][r] = p.out[place[m].index] + (int64_t)(lane % 4) * w.rows + row;
            }
        }
    }
    /* Sums of inputs 8i …, added to the previous values: load() comes first. handed: room for eight inputs' results. */
    struct Before {
        float factor[2], old[2][2][2];
    };
    __device__ __forceinline__ void load_before(const ProductWork &p, int i, int lane, Before &before) const {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int k = 8 * i + lane % 4 + 4 * j;
            before.factor[j] = k < p.rows ? load(p.input_factors + k) : 0;
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    before.old[m][j][r] = p.mode == PRODUCT_ADD && k < p.rows && on[m][r]
                        ? load(out[m][r] + (int64_t)(8 * i + 4 * j) * p.weight[place[m].index].rows)
                        : 0;
        }
    }
    __device__ __forceinline__ void finish(const ProductWork &p, int i, int warp, int lane, const float4 both[2],
        const Before &before, float (*handed)[TILE_COLS + 4]) const {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int k = 8 * i + lane % 4 + 4 * j;
            float v[2][2];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const bool biased = p.weight[place[m].index].bias != nullptr;
                v[m][0] = product_sum(j ? both[m].z : both[m].x, before.factor[j], factor[m], biased, bias[m][0]);
                v[m][1] = product_sum(j ? both[m].w : both[m].y, before.factor[j], factor[m], biased, bias[m][1]);
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if constexpr (GLU) {
                    const float result = gated_usually(p.activation, v[0][r], v[1][r]);
                    if (k < p.rows && on[0][r]) out[0][r][(int64_t)(8 * i + 4 * j) * p.weight[0].rows] = result;
                    handed[lane % 4 + 4 * j][warp * 16 + lane / 4 + 8 * r] = on[0][r] ? result : 0;
                } else {
#pragma unroll
                    for (int m = 0; m < 2; m++)
                        if (k < p.rows && on[m][r])
                            out[m][r][(int64_t)(8 * i + 4 * j) * p.weight[place[m].index].rows] =
                                p.mode == PRODUCT_ADD ? before.old[m][j][r] + p.scale * v[m][r] : v[m][r];
                }
            }
        }
    }
};
/* Stores a gated product's results of eight inputs and 64 rows, a group of the next product's columns. By a warp. */
template <int N>
__device__ __forceinline__ void hand_on(
    const ProductWork &p, int block, int i, int lane, float (*handed)[TILE_COLS + 4]) {
    constexpr GemmIntInputs LAYOUT = {N};
    const int next_groups = (p.weight[0].rows + TILE_COLS - 1) / TILE_COLS;
    if (block >= next_groups) return;
    float y[16];
#pragma unroll
    for (int c = 0; c < 16; c += 4) {
        const float4 v = *(const float4 *)(handed[lane / 4] + lane % 4 * 16 + c);
        y[c] = v.x, y[c + 1] = v.y, y[c + 2] = v.z, y[c + 3] = v.w;
    }
    const IntegerPart part = integer_part(y);
    if (8 * i + lane / 4 >= p.rows) return;
    LAYOUT.put(part, (uint8_t *)p.hands + (int64_t)block * LAYOUT.bytes(), 8 * i + lane / 4, lane % 4);
    if (block == 0 && lane % 4 == 0)
        ((float *)((uint8_t *)p.hands + gemm_int_factors(next_groups, N)))[8 * i + lane / 4] = 1;
}

template <int KIND, int SUBS, bool GLU, int N>
__global__ void __launch_bounds__(128 * (GEMM_WARPGROUPS + 1), GEMM_BLOCKS)
    gemm_int_kernel(const __grid_constant__ ProductWork p, const __grid_constant__ GemmIntRing shape) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using M = GemmIntShape<N>;
    constexpr int BYTES = Kind<KIND>::CODE_BYTES + SUBS * 64, TOGETHER = SUBS == 2 ? 1 : N == 32 ? 2 : 4; /* groups */
    constexpr GemmIntInputs LAYOUT = {N};
    extern __shared__ __align__(128) uint8_t memory[]; /* totals, slots */
    __shared__ uint64_t barriers[2 * GEMM_SLOTS];
    __shared__ __align__(16) float handed[GLU ? GEMM_WARPGROUPS : 1][8][TILE_COLS + 4];
    const WgmmaRing &ring = shape.ring;
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int block = blockIdx.x % ring.blocks, slices = SLICES / ring.splits,
              first_slice = blockIdx.x / ring.blocks * slices, end_slice = first_slice + slices;
    const uint32_t slots = shared_address(memory) + M::TOTAL_BYTES, full = shared_address(barriers),
                   empty = full + 8 * GEMM_SLOTS;
    const int input_bytes = ring.share * LAYOUT.bytes();
    if (threadIdx.x == 0) {
        for (int i = 0; i < shape.slots; i++) {
            barrier_make(full + 8 * i, 2);
            barrier_make(empty + 8 * i, 4 * GEMM_WARPGROUPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const Columns columns(p.groups);
    if (warp >= 4 * GEMM_WARPGROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(GEMM_REGISTERS_COPY));
        Turn turn;
        if (warp == 4 * GEMM_WARPGROUPS) {
            const Place place = place_of<GLU>(p, block, lane % GEMM_TILES);
            const bool copies = place.on && lane < GEMM_TILES;
            const int rows = __popc(__ballot_sync(~0u, copies));
            const uint8_t *from = p.weight[place.index].data + (int64_t)place.tile_row * p.groups * BYTES;
#pragma unroll 1
            for (Pieces at = {first_slice}; at.slice < end_slice; at.next(columns, ring)) {
                const int count = at.count(columns, ring);
                if (count <= 0) continue;
                barrier_wait(empty + turn.at * 8, turn.phase ^ 1);
                if (lane == 0) barrier_expect(full + turn.at * 8, rows * count * BYTES);
                __syncwarp();
                if (copies)
                    copy_bulk(slots + turn.at * ring.slot_bytes + input_bytes + lane * ring.share * BYTES,
                        from + (int64_t)at.first(columns, ring) * BYTES, count * BYTES, full + turn.at * 8);
                turn.next(shape.slots);
            }
        }
        wait_for_previous();
        if (warp == 4 * GEMM_WARPGROUPS + 1 && lane == 0) {
#pragma unroll 1
            for (Pieces at = {first_slice}; at.slice < end_slice; at.next(columns, ring)) {
                const int count = at.count(columns, ring);
                if (count <= 0) continue;
                barrier_wait(empty + turn.at * 8, turn.phase ^ 1);
                barrier_expect(full + turn.at * 8, count * LAYOUT.bytes());
                copy_bulk(slots + turn.at * ring.slot_bytes,
                    (const uint8_t *)p.inputs + (int64_t)at.first(columns, ring) * LAYOUT.bytes(),
                    count * LAYOUT.bytes(), full + turn.at * 8);
                turn.next(shape.slots);
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(GEMM_REGISTERS_MULTIPLY));
    wait_for_previous();
    const int t = lane % 4, g = lane / 4;
    float sum[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) sum[i] = 0;
    /* Computes gemm_int_parts parts of the sums, which are groups or the halves of one. */
    const auto parts = [&](auto gemm_int_parts, uint32_t planes, const uint8_t *inputs, const uint8_t *tiles) {
        constexpr int COUNT = decltype(gemm_int_parts)::value, DEPTH = M::DEPTH < COUNT ? M::DEPTH : COUNT;
        int d[DEPTH][N];
        uint32_t a[DEPTH][8];
        uint2 pairs[DEPTH];
        const uint32_t low = (planes & 0x3ffff) >> 4 | (uint32_t)(2 * N) << 16;
        const auto multiply = [&](auto which) {
            constexpr int part = decltype(which)::value, at = part % DEPTH;
            Piece<KIND> piece;
            piece_take(piece, tiles + part / SUBS * BYTES, lane, Kind<KIND>::CODE_BYTES + part % SUBS * 64 + g * 8);
            pairs[at] = piece.scales;
#pragma unroll
            for (int s = 0; s < 4; s++) {
                integer_codes<KIND>(piece, s, a[at] + 2 * s);
                /* If a group has two parts, lanes of the other part have zeros. */
                if (SUBS == 2 && t / 2 != part % SUBS) a[at][2 * s] = a[at][2 * s + 1] = 0;
            }
            const uint32_t b = low + part / SUBS * (LAYOUT.bytes() / 16);
            multiply_planes(d[at], a[at], matrix_of(b), matrix_of(b + 4 * N));
        };
        steps_upto<DEPTH>(multiply);
        steps_upto<COUNT>([&](auto which) {
            constexpr int part = decltype(which)::value, at = part % DEPTH;
            const float4 *from = (const float4 *)(inputs + part / SUBS * LAYOUT.bytes() +
                                     (SUBS == 2 ? LAYOUT.halves() + part % SUBS * N * 8 : 0)) +
                t;
            float4 factors[N / 8];
#pragma unroll
            for (int i = 0; i < N / 8; i++) factors[i] = from[i * 4];
            const float2 pair[2] = {integer_pair<KIND>(pairs[at].x), integer_pair<KIND>(pairs[at].y)};
            planes_done<(part + DEPTH <= COUNT ? DEPTH : COUNT - part) - 1>(d[at]);
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                const float4 f = factors[i / 4];
                sum[i] = integer_term(
                    sum[i], pair[i % 2], i & 2 ? f.z : f.x, i & 2 ? f.w : f.y, d[at][2 * i], d[at][2 * i + 1]);
            }
            if constexpr (part + DEPTH < COUNT) multiply(Count<part + DEPTH>());
        });
    };
    Turn turn;
#pragma unroll 1
    for (int slice = first_slice; slice < end_slice && slice * columns.run < columns.groups; slice++) {
#pragma unroll 1
        for (Pieces at = {slice}; at.slice == slice; at.next(columns, ring)) {
            const int count = at.count(columns, ring);
            if (count <= 0) continue;
            const uint8_t *inputs = memory + M::TOTAL_BYTES + turn.at * ring.slot_bytes;
            const uint8_t *tiles = inputs + input_bytes + warp * ring.share * BYTES;
            uint32_t planes = slots + turn.at * ring.slot_bytes + LAYOUT.planes();
            barrier_wait(full + turn.at * 8, turn.phase);
            int left = count;
            if constexpr (TOGETHER > 1) {
#pragma unroll 1
                for (; left >= TOGETHER; left -= TOGETHER) {
                    parts(Count<TOGETHER * SUBS>(), planes, inputs, tiles);
                    planes += TOGETHER * LAYOUT.bytes(), inputs += TOGETHER * LAYOUT.bytes(), tiles += TOGETHER * BYTES;
                }
            }
#pragma unroll 1
            for (; left; left--) {
                parts(Count<SUBS>(), planes, inputs, tiles);
                planes += LAYOUT.bytes(), inputs += LAYOUT.bytes(), tiles += BYTES;
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(empty + turn.at * 8);
            turn.next(shape.slots);
        }
        if (ring.splits > 1) {
            float4 *to = (float4 *)ring.partials + ((int64_t)block * SLICES + slice) * (N / 8) * 256 + threadIdx.x;
#pragma unroll
            for (int i = 0; i < N / 8; i++)
                to[i * 256] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
        } else {
            float4 *totals = (float4 *)memory + threadIdx.x;
#pragma unroll
            for (int i = 0; i < N / 8; i++) {
                float4 total = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
                if (slice > 0) {
                    const float4 before = totals[i * 256];
                    total = make_float4(before.x + total.x, before.y + total.y, before.z + total.z, before.w + total.w);
                }
                totals[i * 256] = total;
            }
        }
#pragma unroll
        for (int i = 0; i < N / 2; i++) sum[i] = 0;
    }
    if (ring.splits > 1) return;
    /* The warpgroups finish eight inputs in turn. */
    asm volatile("bar.sync 1, 256;" ::: "memory");
    const int group = warp / 4;
    const float4 *totals = (const float4 *)memory + threadIdx.x % 128;
    const GemmIntEpilogue<GLU> end(p, block, warp % 4, lane);
    typename GemmIntEpilogue<GLU>::Before before, next;
    end.load_before(p, group, lane, before);
#pragma unroll 1
    for (int i = group; i < N / 8 && 8 * i < p.rows; i += 2) {
        end.load_before(p, i + 2, lane, next);
        const float4 both[2] = {totals[i * 256], totals[i * 256 + 128]};
        end.finish(p, i, warp % 4, lane, both, before, handed[GLU ? group : 0]);
        if constexpr (GLU) {
            if (p.hands) {
                asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");
                if (warp % 4 == i / 2 % 4) hand_on<N>(p, block, i, lane, handed[group]);
                asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");
            }
        }
        before = next;
    }
#endif
}

/* Adds the slices' sums in order and applies the epilogue, for eight inputs of a block's tile rows. */
template <bool GLU, int N>
__global__ void __launch_bounds__(128)
    gemm_int_add_kernel(const __grid_constant__ ProductWork p, const float *partials) {
    __shared__ __align__(16) float handed[8][TILE_COLS + 4];
    let_next_begin();
    const int block = blockIdx.x, i = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int run = slice_run(p.groups), slices = min(SLICES, (p.groups + run - 1) / run);
    const GemmIntEpilogue<GLU> end(p, block, warp, lane);
    wait_for_previous();
    const float4 *from = (const float4 *)partials + ((int64_t)block * SLICES * (N / 8) + i) * 256 + threadIdx.x;
    float4 v[SLICES][2], both[2];
#pragma unroll
    for (int s = 0; s < SLICES; s++)
#pragma unroll
        for (int m = 0; m < 2; m++)
            if (s < slices) v[s][m] = __ldcg(from + s * (N / 8) * 256 + m * 128);
    typename GemmIntEpilogue<GLU>::Before before;
    end.load_before(p, i, lane, before);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        both[m] = v[0][m];
#pragma unroll
        for (int s = 1; s < SLICES; s++)
            if (s < slices)
                both[m] = make_float4(
                    both[m].x + v[s][m].x, both[m].y + v[s][m].y, both[m].z + v[s][m].z, both[m].w + v[s][m].w);
    }
    end.finish(p, i, warp, lane, both, before, handed);
    if constexpr (GLU) {
        if (!p.hands) return;
        __syncthreads();
        if (warp == 0) hand_on<N>(p, block, i, lane, handed);
    }
}

struct GemmIntLaunch {
    cudaStream_t stream;
    const ProductWork *work;
    const Product *product;
    template <int KIND, int SUBS, bool GLU, int N> cudaError_t go() const {
        using M = GemmIntShape<N>;
        const ProductWork &w = *work;
        const auto kernel = gemm_int_kernel<KIND, SUBS, GLU, N>;
        const int each = GEMM_TILES * w.weight[0].bytes + GemmIntInputs{N}.bytes(), room = M::ROOM - M::TOTAL_BYTES;
        GemmIntRing shape = {};
        WgmmaRing &ring = shape.ring;
        const int run = slice_run(w.groups);
        ring.share = run < GEMM_SHARE ? run : GEMM_SHARE;
        while (ring.share > 1 && 2 * ring.share * each > room) ring.share = (ring.share + 1) / 2;
        ring.pieces = (run + ring.share - 1) / ring.share;
        ring.slot_bytes = ring.share * each;
        shape.slots = room / ring.slot_bytes < GEMM_SLOTS ? room / ring.slot_bytes : GEMM_SLOTS;
        const size_t shared = M::TOTAL_BYTES + (size_t)shape.slots * ring.slot_bytes;
        cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (error) return error;
        ring.units = w.units * (GLU ? 2 : 1);
        ring.blocks = (ring.units + GEMM_TILES - 1) / GEMM_TILES;
        ring.splits = splits_of(ring.blocks, GEMM_BLOCKS * product->multiprocessors, w.groups,
            (int64_t)SLICES * ring.blocks * GEMM_TILES * TILE_ROWS * N);
        ring.partials = product->partials;
        error = launch(stream, kernel, dim3(ring.blocks * ring.splits), 128 * (GEMM_WARPGROUPS + 1), shared, w, shape);
        if (error || ring.splits == 1) return error;
        return launch(stream, gemm_int_add_kernel<GLU, N>, dim3(ring.blocks, (w.rows + 7) / 8), 128, 0, w,
            (const float *)ring.partials);
    }
    template <int KIND, int SUBS, bool GLU> cudaError_t sized() const {
        return work->tile == 16 ? go<KIND, SUBS, GLU, 16>() : go<KIND, SUBS, GLU, 32>();
    }
    template <int KIND, int SUBS> cudaError_t moded() const {
        return work->mode == PRODUCT_GLU ? sized<KIND, SUBS, true>() : sized<KIND, SUBS, false>();
    }
    template <int KIND> cudaError_t operator()() const {
        if constexpr (integer_kind(KIND)) return work->weight[0].subs == 1 ? moded<KIND, 1>() : moded<KIND, 2>();
        return cudaErrorInvalidValue;
    }
};

static cudaError_t gemm_int_prepare(
    cudaStream_t stream, const ProductWork &w, const float *x, uint8_t *inputs, float *factors) {
    const int rounds = w.norm.width ? 1 : slice_rounds(w.groups);
    return launch(stream, gemm_int_prepare_kernel, dim3(w.rows, rounds), BLOCK, 0, x, w.cols, w.groups, w.tile, w.norm,
        inputs, factors);
}

bool gemm_int_fits(const Product &p) {
    enum { LEAST_SHARED = 227 << 10 };
    return p.sm90a && p.shared_bytes >= LEAST_SHARED && p.rows <= DECODE_ROWS_MAX;
}
bool gemm_int_hands(const Product &p) {
    const int groups = (p.cols + TILE_COLS - 1) / TILE_COLS, next = (p.weight[0].rows + TILE_COLS - 1) / TILE_COLS;
    const int64_t at = gemm_int_at(groups), next_at = gemm_int_at(next);
    return at + gemm_int_bytes(groups) <= next_at || next_at + gemm_int_bytes(next) <= at;
}

cudaError_t product_gemm_int(
    cudaStream_t stream, int kind, const ProductWork &work, const Product &product, bool *fits) {
    *fits = gemm_int_fits(product);
    if (!*fits) return cudaSuccess;
    ProductWork w = work;
    w.tile = gemm_int_tile(w.rows);
    uint8_t *inputs = (uint8_t *)product.inputs + gemm_int_at(w.groups);
    float *factors = (float *)(inputs + gemm_int_factors(w.groups, w.tile));
    w.inputs = (const __half *)inputs;
    w.input_factors = factors;
    const int next_groups = (w.weight[0].rows + TILE_COLS - 1) / TILE_COLS;
    if (w.hands) w.hands = (__half *)((uint8_t *)product.inputs + gemm_int_at(next_groups));
    if (!w.handed) {
        const cudaError_t error = gemm_int_prepare(stream, w, w.x, inputs, factors);
        if (error) return error;
    }
    return with_kind(kind, GemmIntLaunch{stream, &w, &product});
}
