/* Products of many rows on Hopper (sm_90a alone): wgmma on weights that a warp turns into f16 in its registers. The sums
 * are many.cu's in the same order, and wgmma's are those of mma.sync, so the bits are the same. A block multiplies eight
 * tile rows, a warp's each, by a tile of inputs; other warps order copies, one of weights and one of inputs. */
#pragma once
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/finish.cuh"

enum { WIDE_MULTIPLIERS = 8, WIDE_WARPS = 12 };

struct WideRing {
    int share, pieces, slot_bytes; /* groups of a run in a slot, slots of a run */
    int units;                     /* tile rows of all weights */
    int blocks, tokens, splits;    /* of the grid: tile rows, tiles of inputs, parts of the slices */
    int band;                      /* blocks' weights that stay in the L2 while all inputs pass */
    float *partials;               /* splits > 1: [slice][row of inputs][tile row of all weights, row] */
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

/* Sums wait for what follows as [input][row]; four words more put neighbours into other banks. */
enum { SUMS_STRIDE = WIDE_MULTIPLIERS * TILE_ROWS + 4 };

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* Number i of a thread is of input i / 4 · 8 + 2t + i % 2 and row i / 2 % 2 · 8 + g of its warp's. */
template <int NUMBERS> __device__ __forceinline__ void sums_put(float *sums, const float (&v)[NUMBERS]) {
    const int lane = threadIdx.x % 32;
    float *to = sums + lane % 4 * 2 * SUMS_STRIDE + threadIdx.x / 32 * TILE_ROWS + lane / 4;
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) to[(i / 4 * 8 + i % 2) * SUMS_STRIDE + i / 2 % 2 * 8] = v[i];
}

/* Four rows of weights that a lane looks after. */
struct Rows {
    int index, row, left; /* of the weight, its rows from there on */
    float factor, bias[4];
    bool biased;
    __device__ __forceinline__ Rows(const ProductWork &p, int weight, int tile_row, int within, bool on)
        : index(weight), row(tile_row * TILE_ROWS + within) {
        const Tiles &w = p.weight[index];
        left = on ? min(4, w.rows - row) : 0;
        factor = on ? __ldg(w.factors + tile_row) : 0;
        biased = w.bias != nullptr;
        for (int i = 0; i < 4; i++) bias[i] = biased && i < left ? __ldg(w.bias + row + i) : 0;
    }
    __device__ __forceinline__ float4 product(const float4 &v, float f) const {
        return make_float4(product_sum(v.x, f, factor, biased, bias[0]), product_sum(v.y, f, factor, biased, bias[1]),
            product_sum(v.z, f, factor, biased, bias[2]), product_sum(v.w, f, factor, biased, bias[3]));
    }
};
__device__ __forceinline__ float4 four_at(const float *from, int count, bool whole) {
    if (whole) return __ldcg((const float4 *)from);
    return make_float4(count > 0 ? load(from) : 0, count > 1 ? load(from + 1) : 0, count > 2 ? load(from + 2) : 0,
        count > 3 ? load(from + 3) : 0);
}
__device__ __forceinline__ void four_put(float *to, const float4 &v, int count, bool whole) {
    if (whole) {
        *(float4 *)to = v;
        return;
    }
    if (count > 0) to[0] = v.x;
    if (count > 1) to[1] = v.y;
    if (count > 2) to[2] = v.z;
    if (count > 3) to[3] = v.w;
}

/* Of N inputs as of `token`: sums of all slices and what follows them. One of FINISHERS warps. */
template <int N, int FINISHERS>
__device__ __forceinline__ void finish_tile(const ProductWork &p, int block, int token, const float *sums, int turn) {
    constexpr int AHEAD = N / FINISHERS < 4 ? N / FINISHERS : 4; /* inputs at a time */
    const int lane = threadIdx.x % 32, end = min(N, p.rows - token);
    const Place place = place_of<false>(p, block, lane / 4);
    const Rows rows(p, place.index, place.tile_row, lane % 4 * 4, place.on);
    const int stride = p.weight[place.index].rows;
    float *out = p.out[place.index] + rows.row + (int64_t)token * stride;
    const bool whole = rows.left == 4 && stride % 4 == 0 && ((uintptr_t)p.out[place.index] & 15) == 0;
#pragma unroll 1
    for (int first = turn * AHEAD; first < end; first += FINISHERS * AHEAD) {
        float4 old[AHEAD];
        float factors[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int k = first + i;
            factors[i] = k < end ? load(p.input_factors + token + k) : 0;
            old[i] = p.mode == PRODUCT_ADD && k < end ? four_at(out + (int64_t)k * stride, rows.left, whole)
                                                      : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int k = first + i;
            if (k >= end) break;
            float4 v = rows.product(*(const float4 *)(sums + k * SUMS_STRIDE + lane * 4), factors[i]);
            if (p.mode == PRODUCT_ADD)
                v = make_float4(old[i].x + p.scale * v.x, old[i].y + p.scale * v.y, old[i].z + p.scale * v.z,
                    old[i].w + p.scale * v.w);
            four_put(out + (int64_t)k * stride, v, rows.left, whole);
        }
    }
}
/* The same of gate and up, two inputs at a time: little code, as it would drive out that of the multiplying warps. */
template <int N, int FINISHERS>
__device__ __forceinline__ void finish_gated(const ProductWork &p, int block, int token, const float *sums, int turn) {
    const int lane = threadIdx.x % 16, end = min(N, p.rows - token);
    const Place place = place_of<true>(p, block, lane / 4);
    const Rows gate(p, 0, place.tile_row, lane % 4 * 4, place.on), up(p, 1, place.tile_row, lane % 4 * 4, place.on);
    const int stride = p.weight[0].rows;
    float *out = p.out[0] + gate.row + (int64_t)token * stride;
    const bool whole = gate.left == 4 && stride % 4 == 0 && ((uintptr_t)p.out[0] & 15) == 0;
    int k = 2 * turn + threadIdx.x % 32 / 16;
    float next = k < end ? load(p.input_factors + token + k) : 0;
#pragma unroll 1
    for (; k < end; k += 2 * FINISHERS) {
        const float factor = next, *from = sums + k * SUMS_STRIDE + lane * 4;
        if (k + 2 * FINISHERS < end) next = load(p.input_factors + token + k + 2 * FINISHERS);
        float4 v = gate.product(*(const float4 *)from, factor);
        float4 u = up.product(*(const float4 *)(from + WIDE_MULTIPLIERS / 2 * TILE_ROWS), factor);
        if (p.activation == 0) { /* SiLU, as nearly all models have it */
            v = make_float4(gated(0, v.x, u.x), gated(0, v.y, u.y), gated(0, v.z, u.z), gated(0, v.w, u.w));
        } else {
#pragma unroll 1
            for (int i = 0; i < 4; i++) { /* one after the other at the first's place */
                v = make_float4(v.y, v.z, v.w, gated(p.activation, v.x, u.x));
                u = make_float4(u.y, u.z, u.w, 0);
            }
        }
        four_put(out + (int64_t)k * stride, v, gate.left, whole);
    }
}
template <bool GLU, int N, int FINISHERS>
__device__ __forceinline__ void finish_sums(const ProductWork &p, int block, int token, const float *sums, int turn) {
    if constexpr (GLU)
        finish_gated<N, FINISHERS>(p, block, token, sums, turn);
    else
        finish_tile<N, FINISHERS>(p, block, token, sums, turn);
}
/* One slice's sums, for slices_add(). */
template <bool GLU, int N, int FINISHERS>
__device__ __forceinline__ void leave_slice(
    const ProductWork &p, const WideRing &ring, int block, int token, int slice, const float *sums, int turn) {
    const int lane = threadIdx.x % 32, end = min(N, p.rows - token);
    const Place place = place_of<GLU>(p, block, lane / 4);
    if (!place.on) return;
    const int64_t width = (int64_t)ring.units * TILE_ROWS;
    float *to = ring.partials + ((int64_t)slice * p.rows + token) * width + place.unit * TILE_ROWS + lane % 4 * 4;
    for (int k = turn; k < end; k += FINISHERS) *(float4 *)(to + k * width) = *(const float4 *)(sums + k * SUMS_STRIDE + lane * 4);
}
#endif

static inline WideRing ring_of(int run, int bytes, int slot_bytes) {
    WideRing ring = {run};
    while (ring.share > 1 && WIDE_MULTIPLIERS * ring.share * bytes > slot_bytes) ring.share = (ring.share + 1) / 2;
    ring.pieces = (run + ring.share - 1) / ring.share;
    ring.slot_bytes = WIDE_MULTIPLIERS * ring.share * bytes;
    return ring;
}

/* Into how many parts to cut the slices. A wave of blocks takes as long as its groups of columns and what beginning
 * costs, about five groups' time. */
static inline int splits_of(int blocks, int multiprocessors, int groups, int64_t sums) {
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

/* Adds up what is in ring.partials, and what follows that. */
cudaError_t slices_add(cudaStream_t stream, const ProductWork &work, const WideRing &ring);
/* 9 to 64 rows */
cudaError_t product_narrow(cudaStream_t stream, int kind, const ProductWork &work, const Product &product, bool *fits);
