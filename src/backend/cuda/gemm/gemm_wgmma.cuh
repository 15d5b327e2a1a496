/* Shared by gemm_wgmma.cu and gemm_small_n.cu (sm_90a): wgmma on weights that a warp expands to f16 in its registers.
 * The sums are those of gemm_mma.cu in the same order, and wgmma's are those of mma.sync, so the bits are the same. A
 * block multiplies eight tile rows, one a warp, by a tile of inputs; two other warps issue copies, of weights and of
 * inputs. */
#pragma once
#include "backend/cuda/runtime/bulk.cuh"
#include "backend/cuda/gemm/epilogue.cuh"

enum { WGMMA_MULTIPLIERS = 8, WGMMA_WARPS = 12 };

struct WgmmaRing {
    int share, pieces, slot_bytes; /* groups of a run in a slot, slots of a run */
    int units;                     /* tile rows of all weights */
    int blocks, tokens, splits;    /* shape of the grid: tile rows, tiles of inputs, parts of the slices */
    int band;                      /* blocks' weights that stay in the L2 while all inputs pass */
    float *partials;               /* splits > 1: [chain][row of inputs][tile row of all weights, row] */
    int chain;                     /* slices of a chain of multiplications, whose sum is added to the next one's */
    int slots;                     /* gemm_small_n.cu: slots of weights */
    int together;                  /* gemm_small_n.cu: 1: the parts of the slices are a cluster, each one chain */
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* d += a · b, of 64 rows by 256, 128, 64 or 32 columns; a: 16 columns of this lane's rows. */
__device__ __forceinline__ void wgmma_multiply(float (&d)[128], const uint32_t a[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
                 "{%128,%129,%130,%131}, %132, 1, 1, 1, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
                 "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
                 "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
                 "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
                 "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
                 "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]),
                 "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]),
                 "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]),
                 "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]),
                 "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_multiply(float (&d)[64], const uint32_t a[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_multiply(float (&d)[32], const uint32_t a[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma_multiply(float (&d)[16], const uint32_t a[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
/* Eight rows by 16 bytes lie together; along the columns they are a tile's rows apart. Low word; the high one is the
 * same for all. */
template <int N> __device__ __forceinline__ uint32_t input_matrix(uint32_t at) {
    return (at & 0x3ffff) >> 4 | (uint32_t)(N * 16 >> 4) << 16;
}
__device__ __forceinline__ uint64_t matrix_of(uint32_t low) { return (uint64_t)(128 >> 4) << 32 | low; }
#endif

/* Walks runs of groups in canonical order: the slices, the rounds of a slice, the pieces of a round, which fill a slot
 * each.
 */
struct Pieces {
    int slice, round, piece;
    __device__ __forceinline__ void next(const Columns &c, const WgmmaRing &ring) {
        if (++piece < ring.pieces) return;
        piece = 0;
        if (++round < c.rounds) return;
        round = 0;
        slice++;
    }
    __device__ __forceinline__ int first(const Columns &c, const WgmmaRing &ring) const {
        return (round * SLICES + slice) * c.run + piece * ring.share;
    }
    __device__ __forceinline__ int count(const Columns &c, const WgmmaRing &ring) const {
        return min(min(ring.share, c.run - piece * ring.share), c.groups - first(c, ring));
    }
};

/* The weight and tile row of a warp. */
struct Place {
    int index, tile_row, unit; /* unit: number among all tile rows; those of up follow those of the gate */
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

/* Layout of the sums before the epilogue, [input][row]; four words of padding put neighbours into different banks. */
enum { SUMS_STRIDE = WGMMA_MULTIPLIERS * TILE_ROWS + 4 };

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* Groups of a chain that begins with this slice. */
__device__ __forceinline__ int chain_groups(const Columns &c, int slice, int chain) {
    int groups = 0;
    for (int s = slice; s < slice + chain; s++)
        for (int round = 0; round < c.rounds; round++)
            groups += max(0, min(c.run, c.groups - (round * SLICES + s) * c.run));
    return groups;
}

/* Number i of a thread is of input i / 4 · 8 + 2t + i % 2 and row i / 2 % 2 · 8 + g of its warp's. */
template <int NUMBERS> __device__ __forceinline__ void sums_put(float *sums, const float (&v)[NUMBERS]) {
    const int lane = threadIdx.x % 32;
    float *to = sums + lane % 4 * 2 * SUMS_STRIDE + threadIdx.x / 32 * TILE_ROWS + lane / 4;
#pragma unroll
    for (int i = 0; i < NUMBERS; i++) to[(i / 4 * 8 + i % 2) * SUMS_STRIDE + i / 2 % 2 * 8] = v[i];
}

/* Adds to the sums that the thread has stored. */
template <int NUMBERS> __device__ __forceinline__ void sums_add(float *sums, const float (&v)[NUMBERS]) {
    const int lane = threadIdx.x % 32;
    float *to = sums + lane % 4 * 2 * SUMS_STRIDE + threadIdx.x / 32 * TILE_ROWS + lane / 4;
    constexpr int BATCH = 16;
#pragma unroll
    for (int first = 0; first < NUMBERS; first += BATCH) {
        float old[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) old[i] = to[((first + i) / 4 * 8 + i % 2) * SUMS_STRIDE + i / 2 % 2 * 8];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            to[((first + i) / 4 * 8 + i % 2) * SUMS_STRIDE + i / 2 % 2 * 8] = old[i] + v[first + i];
    }
}

/* Four rows of weights of a lane. */
struct Rows {
    int index, row, left; /* index of the weight; its first row; its rows from there on */
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

/* A lane's four rows of weights and all inputs of a tile. */
template <int N, int STEP, int AHEAD, bool ADD>
__device__ __forceinline__ void finish_whole(
    float *out, int stride, float factor, float scale, const float *sums, int turn) {
    float4 next[AHEAD];
    const auto at = [&](int k) { return (float4 *)(out + (int64_t)k * stride); };
#pragma unroll
    for (int i = 0; i < AHEAD && ADD; i++) next[i] = __ldcg(at(turn * AHEAD + i));
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int first = turn * AHEAD; first < N; first += STEP) {
        float4 v[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const float *from = sums + (first + i) * SUMS_STRIDE;
            const float f = from[WGMMA_MULTIPLIERS * TILE_ROWS - lane * 4] * factor;
            v[i] = *(const float4 *)from;
            v[i] = make_float4(v[i].x * f, v[i].y * f, v[i].z * f, v[i].w * f);
        }
        if (ADD) {
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                v[i] = make_float4(next[i].x + scale * v[i].x, next[i].y + scale * v[i].y, next[i].z + scale * v[i].z,
                    next[i].w + scale * v[i].w);
            if (first + STEP < N)
#pragma unroll
                for (int i = 0; i < AHEAD; i++) next[i] = __ldcg(at(first + STEP + i));
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) *at(first + i) = v[i];
    }
}

/* Finishes N inputs from `token` on: sums of all slices and the epilogue. By one of FINISHERS warps. */
template <int N, int FINISHERS>
__device__ __forceinline__ void finish_tile(const ProductWork &p, int block, int token, float *sums, int turn) {
    constexpr int AHEAD = FINISHERS > 2 ? 2 : 4, STEP = FINISHERS * AHEAD; /* inputs at a time: of a warp, of all */
    const int lane = threadIdx.x % 32, end = min(N, p.rows - token);
    const Place place = place_of<false>(p, block, lane / 4);
    const Rows rows(p, place.index, place.tile_row, lane % 4 * 4, place.on);
    const int stride = p.weight[place.index].rows;
    float *out = p.out[place.index] + rows.row + (int64_t)token * stride;
    const bool whole = rows.left == 4 && stride % 4 == 0 && ((uintptr_t)p.out[place.index] & 15) == 0;
    /* Factors of the warp's inputs are stored behind their sums. */
    for (int i = lane, k; k = i / AHEAD * STEP + turn * AHEAD + i % AHEAD, k < end; i += 32)
        sums[k * SUMS_STRIDE + WGMMA_MULTIPLIERS * TILE_ROWS] = load(p.input_factors + token + k);
    __syncwarp();
    /* Nearly all tiles are whole. As two warps serve eight, the number of instructions matters. */
    if (FINISHERS <= 2 && end == N && __all_sync(~0u, whole && !rows.biased)) {
        if (p.mode == PRODUCT_ADD)
            finish_whole<N, STEP, AHEAD, true>(out, stride, rows.factor, p.scale, sums + lane * 4, turn);
        else
            finish_whole<N, STEP, AHEAD, false>(out, stride, rows.factor, p.scale, sums + lane * 4, turn);
        return;
    }
    float4 old[AHEAD], next[AHEAD];
    const auto take = [&](float4(&v)[AHEAD], int first) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            v[i] = p.mode == PRODUCT_ADD && first + i < end
                ? four_at(out + (int64_t)(first + i) * stride, rows.left, whole)
                : make_float4(0, 0, 0, 0);
    };
    take(next, turn * AHEAD);
#pragma unroll 1
    for (int first = turn * AHEAD; first < end; first += STEP) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) old[i] = next[i];
        take(next, first + STEP);
        float4 v[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const float *from = sums + (first + i) * SUMS_STRIDE; /* there is room for all of a tile */
            v[i] = rows.product(*(const float4 *)(from + lane * 4), from[WGMMA_MULTIPLIERS * TILE_ROWS]);
            if (p.mode == PRODUCT_ADD)
                v[i] = make_float4(old[i].x + p.scale * v[i].x, old[i].y + p.scale * v[i].y,
                    old[i].z + p.scale * v[i].z, old[i].w + p.scale * v[i].w);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (first + i < end) four_put(out + (int64_t)(first + i) * stride, v[i], rows.left, whole);
    }
}
/* The same of gate and up, two inputs at a time: little code, as more would evict that of the multiplying warps from
 * the instruction cache. */
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
        float4 u = up.product(*(const float4 *)(from + WGMMA_MULTIPLIERS / 2 * TILE_ROWS), factor);
        if (p.activation.kind == ACT_SILU && p.chains == PREFILL_CHAINS) { /* SiLU, as nearly all models have it */
            v = make_float4(
                silu_prefill(v.x, u.x), silu_prefill(v.y, u.y), silu_prefill(v.z, u.z), silu_prefill(v.w, u.w));
        } else if (p.activation.kind == ACT_SILU) {
            const Activation silu = {ACT_SILU};
            v = make_float4(gated(silu, v.x, u.x), gated(silu, v.y, u.y), gated(silu, v.z, u.z), gated(silu, v.w, u.w));
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
/* The same as inputs of the next product, of which a block has a group of columns; eight inputs at a time, a lane one's
 * chunks. */
template <int N, int FINISHERS, bool BIASED>
__device__ __forceinline__ void finish_passed(const ProductWork &p, int block, int token, const float *sums, int turn) {
    const int lane = threadIdx.x % 32, part = lane / 8, groups = p.weight[0].rows / TILE_COLS;
    const bool again = p.marks != nullptr;
    float factors[2][4];
#pragma unroll
    for (int i = 0; i < 8; i++) factors[i / 4][i % 4] = __ldg(p.weight[i / 4].factors + block * 4 + i % 4);
    int k = turn * 8 + lane % 8;
    float next = token + k < p.rows ? load(p.input_factors + token + k) : 0;
#pragma unroll 1
    for (; k < N; k += FINISHERS * 8) {
        const bool on = token + k < p.rows;
        const int then = token + k + FINISHERS * 8;
        const float factor = next, up = on && again ? 1 / load(p.pass_factors + token + k) : 1;
        float most = 0;
        next = k + FINISHERS * 8 < N && then < p.rows ? load(p.input_factors + then) : 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int chunk = part + 4 * half;
            uint32_t words[4];
#pragma unroll
            for (int u = 0; u < 4; u++) {
                const float *from = sums + k * SUMS_STRIDE + u * TILE_ROWS + 2 * chunk;
                const float2 gate = *(const float2 *)from,
                             other = *(const float2 *)(from + WGMMA_MULTIPLIERS / 2 * TILE_ROWS);
                float2 bias[2] = {};
                if (BIASED)
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        if (p.weight[i].bias) {
                            const float *b = p.weight[i].bias + block * TILE_COLS + u * TILE_ROWS + 2 * chunk;
                            bias[i] = make_float2(__ldg(b), __ldg(b + 1));
                        }
                const bool biased[2] = {BIASED && p.weight[0].bias, BIASED && p.weight[1].bias};
                const float one = silu_prefill(product_sum(gate.x, factor, factors[0][u], biased[0], bias[0].x),
                                product_sum(other.x, factor, factors[1][u], biased[1], bias[1].x)),
                            two = silu_prefill(product_sum(gate.y, factor, factors[0][u], biased[0], bias[0].y),
                                product_sum(other.y, factor, factors[1][u], biased[1], bias[1].y));
                most = fmaxf(most, fmaxf(fabsf(one), fabsf(two)));
                words[u] = as_word(__floats2half2_rn(one * up, two * up));
            }
            if (on)
                *(uint4 *)(p.passes + input_chunk(groups, token + k, block, chunk, N) * 8) =
                    make_uint4(words[0], words[1], words[2], words[3]);
        }
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 8));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 16));
        if (part == 0 && on && !again) atomicMax(p.most + token + k, __float_as_uint(most));
    }
}
template <bool GLU, int N, int FINISHERS>
__device__ __forceinline__ void finish_sums(const ProductWork &p, int block, int token, float *sums, int turn) {
    if constexpr (GLU && N == INPUT_TILE_MOST) {
        if (p.passes && (p.weight[0].bias || p.weight[1].bias))
            return finish_passed<N, FINISHERS, true>(p, block, token, sums, turn);
        if (p.passes) return finish_passed<N, FINISHERS, false>(p, block, token, sums, turn);
    }
    if constexpr (GLU)
        finish_gated<N, FINISHERS>(p, block, token, sums, turn);
    else
        finish_tile<N, FINISHERS>(p, block, token, sums, turn);
}
/* One chain's sums, for slices_add(). */
template <bool GLU, int N, int FINISHERS>
__device__ __forceinline__ void leave_chain(
    const ProductWork &p, const WgmmaRing &ring, int block, int token, int chain, const float *sums, int turn) {
    const int lane = threadIdx.x % 32, end = min(N, p.rows - token);
    const Place place = place_of<GLU>(p, block, lane / 4);
    if (!place.on) return;
    const int64_t width = (int64_t)ring.units * TILE_ROWS;
    float *to = ring.partials + ((int64_t)chain * p.rows + token) * width + place.unit * TILE_ROWS + lane % 4 * 4;
    for (int k = turn; k < end; k += FINISHERS)
        *(float4 *)(to + k * width) = *(const float4 *)(sums + k * SUMS_STRIDE + lane * 4);
}
#endif

static inline WgmmaRing ring_of(int run, int bytes, int slot_bytes) {
    WgmmaRing ring = {run};
    while (ring.share > 1 && WGMMA_MULTIPLIERS * ring.share * bytes > slot_bytes) ring.share = (ring.share + 1) / 2;
    ring.pieces = (run + ring.share - 1) / ring.share;
    ring.slot_bytes = WGMMA_MULTIPLIERS * ring.share * bytes;
    return ring;
}

/* The number of parts to split the slices into. A wave of blocks takes the time of its groups of columns plus a
 * start-up cost of about five groups. bytes_each: bytes of sums that are stored or read in the time of a group; 0: that
 * costs nothing. */
static inline int splits_of(
    int blocks, int multiprocessors, int groups, int64_t sums, int most = SLICES, int64_t bytes_each = 0) {
    constexpr int BEGINNING = 5;
    const int64_t bytes = sums * (int64_t)sizeof(float);
    const int passing = bytes_each ? (int)(2 * bytes / bytes_each) : 0;
    int best = 1, least = 0;
    for (int splits = 1; splits <= most; splits *= 2) {
        if (splits > 1 && bytes > PRODUCT_PARTIAL_BYTES) break;
        const int waves = (blocks * splits + multiprocessors - 1) / multiprocessors;
        const int time = waves * (groups / splits + BEGINNING) + (splits > 1 ? 2 * BEGINNING + passing : 0);
        if (splits == 1 || time < least) {
            best = splits;
            least = time;
        }
    }
    return best;
}

/* Adds the sums in ring.partials and applies the epilogue. */
cudaError_t slices_add(cudaStream_t stream, const ProductWork &work, const WgmmaRing &ring);
