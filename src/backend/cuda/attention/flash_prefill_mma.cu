/* Attention of long chunks: a tile of rows walks all its slices (flash_slice.cuh), which pass through shared memory. */
#include "backend/cuda/attention/flash_slice.cuh"

__device__ __forceinline__ void copy_async(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* In shared memory rows of keys and values are HD halves; their pieces of 16 bytes trade places so that the eight lanes
 * that read together find eight banks: keys by (g, t) in rows g, values by (t, g) in rows 2t. */
__device__ __forceinline__ int key_piece(int row, int piece) { return piece ^ (row & 1) << 2; }
__device__ __forceinline__ int value_piece(int row, int piece) { return piece ^ (row & 6); }

template <int HD, int NT, int TW>
__global__ void __launch_bounds__(32 * TW) tile_kernel(const __grid_constant__ Attend a) {
    constexpr int COLUMNS = TW * NT * 8, ROW_BYTES = HD * 2, HALF = SLICE * ROW_BYTES, STAGE = 2 * HALF,
                  PIECES = HD / 8;
    extern __shared__ __align__(128) uint8_t stages[]; /* [2][keys, values] */
    let_next_begin();
    wait_for_previous();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4,
              group = a.heads / a.kv_heads;
    const int rows = COLUMNS / group, kv_head = blockIdx.y,
              first = a.step.rows - 1 - (int)blockIdx.x; /* long ones first */
    const int chunk_rows = __ldcg(a.step.chunk_rows + first), within = __ldcg(a.step.chunk_offsets + first);
    if (chunk_rows < TILE_CHUNK_LEAST || within % rows || first < a.decode_rows) return;
    const int count = min(rows, chunk_rows - within);
    const int32_t *table = a.tables + (int64_t)__ldcg(a.step.chunks + first) * a.table_stride;

    /* Visible range of the tile: neither end decreases from row to row. */
    const Seen head_row = seen_by(a, first), tail_row = seen_by(a, first + count - 1);
    const int begin = head_row.first / SLICE, end = (tail_row.end - 1) / SLICE + 1, tokens = tail_row.end;

    Query<HD> query[NT];
    Sight sight[NT];
    float most[NT][2], sum[NT][2], o[NT][HD / 16][4];
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const int base = (warp * NT + n) * 8, column = base + g, row = first + column / group;
        query_load<HD>(query[n],
            column / group < count ? a.q + ((int64_t)row * a.heads + kv_head * group + column % group) * HD : nullptr,
            a.scale * LOG2E, t);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int mine = base + 2 * t + c;
            const Seen seen = mine / group < count ? seen_by(a, first + mine / group) : Seen{0, 0};
            sight[n].first[c] = seen.first;
            sight[n].end[c] = seen.end;
            const int head = kv_head * group + mine % group;
            most[n][c] = a.sinks ? __ldg(a.sinks + head) * LOG2E : NONE;
            sum[n][c] = a.sinks ? 1 : 0;
        }
#pragma unroll
        for (int d = 0; d < HD / 16; d++) o[n][d][0] = o[n][d][1] = o[n][d][2] = o[n][d][3] = 0;
    }

    const uint32_t base = (uint32_t)__cvta_generic_to_shared(stages);
    const auto bring = [&](int slice) {
        if (slice < end) {
            const int token = slice * SLICE;
            const __half *keys = half_head(a, table, token, kv_head) + token % PAGE_TOKENS * HD,
                         *values = keys + PAGE_TOKENS * HD;
            const uint32_t to = base + (slice & 1) * STAGE;
            for (int i = threadIdx.x; i < SLICE * PIECES; i += 32 * TW) {
                const int row = i / PIECES, piece = i % PIECES, bytes = token + row < tokens ? 16 : 0;
                copy_async(to + row * ROW_BYTES + key_piece(row, piece) * 16, keys + (bytes ? i * 8 : 0), bytes);
                copy_async(
                    to + HALF + row * ROW_BYTES + value_piece(row, piece) * 16, values + (bytes ? i * 8 : 0), bytes);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    bring(begin);
    for (int slice = begin; slice < end; slice++) {
        bring(slice + 1);
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        const uint8_t *keys = stages + (slice & 1) * STAGE, *values = keys + HALF;
        uint32_t p[NT][BLOCKS][2];
        float keep[NT][2], take[NT][2];
        {
            float s[NT][BLOCKS][4];
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                uint4 k[HD / 16];
                keys_load<HD>(k, [&](int h, int i) {
                    const int row = b * 16 + g + h;
                    return *(const uint4 *)(keys + row * ROW_BYTES + key_piece(row, 4 * i + t) * 16);
                });
#pragma unroll
                for (int n = 0; n < NT; n++) scores_of<HD>(k, query[n], s[n][b]);
            }
#pragma unroll
            for (int n = 0; n < NT; n++) {
                float slice_most[2], slice_sum[2];
                exponentials(s[n], sight[n], slice * SLICE + g, a.softcap, p[n], slice_most, slice_sum);
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    fold_factors(most[n][c], slice_most[c], keep[n][c], take[n][c]);
                    sum[n][c] = folded(sum[n][c], keep[n][c], slice_sum[c], take[n][c]);
                }
            }
        }
#pragma unroll
        for (int d = 0; d < HD / 64; d++) {
            float part[NT][4][4] = {};
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                Values v;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int row = b * 16 + 2 * t + i % 2 + i / 2 * 8;
                    v.v[i] = *(const uint4 *)(values + row * ROW_BYTES + value_piece(row, 8 * d + g) * 16);
                }
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    uint32_t numbers[4];
                    values_numbers(v, e, numbers);
#pragma unroll
                    for (int n = 0; n < NT; n++) multiply(part[n][e], numbers, p[n][b][0], p[n][b][1]);
                }
            }
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        o[n][4 * d + e][k] = folded(o[n][4 * d + e][k], keep[n][k % 2], part[n][e][k], take[n][k % 2]);
        }
        __syncthreads();
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int mine = (warp * NT + n) * 8 + 2 * t + c;
            if (mine / group >= count) continue;
            float *out = a.out + ((int64_t)(first + mine / group) * a.heads + kv_head * group + mine % group) * HD;
#pragma unroll
            for (int d = 0; d < HD / 16; d++) {
                const int at = d / 4 * 64 + 8 * g + d % 4 * 2;
                *(float2 *)(out + at) = make_float2(o[n][d][c] / sum[n][c], o[n][d][c + 2] / sum[n][c]);
            }
        }
}

static int tile_bytes(int width) { return 2 * 2 * SLICE * width * (int)sizeof(__half); }

bool attention_has_tiles(const Attend &a) {
    const int group = a.heads / a.kv_heads;
    return a.dtype == F16 && !a.q_latent && a.head_dim == a.value_dim &&
        (a.head_dim == 64 || a.head_dim == 128 || a.head_dim == 256) && group <= 32 &&
        tile_bytes(a.head_dim) <= a.shared_bytes;
}

template <int HD> static cudaError_t tiles(cudaStream_t stream, const Attend &a) {
    constexpr int NT = HD > 128 ? 1 : 2, TW = 8;
    const auto kernel = tile_kernel<HD, NT, TW>;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, tile_bytes(HD));
    return error ? error : launch(stream, kernel, dim3(a.step.rows, a.kv_heads), 32 * TW, (size_t)tile_bytes(HD), a);
}

cudaError_t attention_chunk_tiles(cudaStream_t stream, const Attend &a) {
    return a.head_dim == 64 ? tiles<64>(stream, a) : a.head_dim == 128 ? tiles<128>(stream, a) : tiles<256>(stream, a);
}
