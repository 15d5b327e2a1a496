/* Shared by the attention kernels: addresses in pages, and the visible range of a row. */
#pragma once
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/runtime/common.cuh"

enum { PAGE_TOKENS = 128, HEAD_MAX = 1024, PAIRS_MAX = HEAD_MAX / 2, CHUNK = 32 };
enum { F32 = 0, F16 = 1, BF16 = 2 }; /* DType */
enum { TILE_CHUNK_LEAST = ATTENTION_LONG_CHUNK };

__device__ __forceinline__ int dtype_size(int dtype) { return dtype == F32 ? 4 : 2; }

/* The keys of a kv head in the page of a position. */
__device__ __forceinline__ uint8_t *head_at(const Attend &a, const int32_t *table, int position, int kv_head) {
    const int64_t page = __ldcg(table + position / PAGE_TOKENS);
    return a.pages + page * a.page_stride +
        (int64_t)kv_head * PAGE_TOKENS * (a.head_dim + a.value_dim) * dtype_size(a.dtype);
}

/* Beside the keys of a page [kv_head][token], the energy of the queries of their rows (backend.h, page_read). */
__device__ __forceinline__ float *energies_at(const Attend &a, const int32_t *table, int position) {
    return (float *)head_at(a, table, position, a.kv_heads);
}

/* The first key that the window of a position has. */
__device__ __forceinline__ int window_begin(const Attend &a, int place) {
    if (!a.window || place < a.window) return 0;
    return a.chunked ? place / a.window * a.window : place - a.window + 1;
}

struct Seen {
    int first, end;
};
__device__ __forceinline__ Seen seen_by(const Attend &a, int row) {
    const int place = __ldcg(a.step.places + row);
    Seen s = {window_begin(a, place), place + 1};
    const int begin = __ldcg(a.step.span_begins + row), end = __ldcg(a.step.span_ends + row);
    if (begin < end && a.span_rule != SPANS_IGNORED) {
        s.end = end;
        if (a.span_rule == SPANS_WHOLE) s.first = begin;
    }
    return s;
}

/* The keys that a row reads, in order: those of the chosen blocks one after another, or all visible ones. */
__device__ __forceinline__ bool keys_chosen(const Attend &a) { return a.keys.block && !a.keys.stride; }
__device__ __forceinline__ Seen keys_of(const Attend &a, int row) {
    if (!keys_chosen(a)) return seen_by(a, row);
    const int place = __ldcg(a.step.places + row);
    return {0, place < 0 ? 0 : min(a.keys.top_k, place / a.keys.block + 1) * a.keys.block};
}
/* The position of a key; −1: none. */
__device__ __forceinline__ int key_position(const Attend &a, int row, int kv_head, int key) {
    if (!keys_chosen(a)) return key;
    const int32_t *chosen =
        a.keys.chosen + ((int64_t)row * a.keys.groups + (a.keys.groups > 1 ? kv_head : 0)) * a.keys.top_k;
    const int block = __ldcg(chosen + key / a.keys.block), position = block * a.keys.block + key % a.keys.block;
    return block >= 0 && position <= __ldcg(a.step.places + row) ? position : -1;
}
/* Whether a head of the row at `place` reads a visible position by the pattern. */
__device__ __forceinline__ bool key_in_pattern(const Attend &a, int place, int head, int position) {
    if (!a.keys.stride) return true;
    const int block = position / a.keys.block;
    return block > place / a.keys.block - a.keys.local ||
        (int)(((int64_t)block + 1 + (int64_t)a.keys.head_step * head) % a.keys.stride) == 0;
}

/* What ALiBi adds to the score of a key (backend.h, alibi_bias). */
__device__ __forceinline__ float slope_bias(const Attend &a, int head, int key, int place) {
    const float slope = __ldg(a.slopes + head);
    if (a.slopes_bf16 == 0) return slope * (float)(key - place);
    return a.slopes_bf16 *
        (__bfloat162float(__float2bfloat16_rn(slope * (float)key)) -
            __bfloat162float(__float2bfloat16_rn(slope * (float)place)));
}

/* flash_prefill_mma.cu: true if it has kernels for the layer; rows of short chunks; rows of longer ones. */
bool attention_has_tiles(const Attend &a);
cudaError_t attention_scan_tiles(cudaStream_t stream, const Attend &a);
cudaError_t attention_chunk_tiles(cudaStream_t stream, const Attend &a);
/* flash_decode_rows.cu: true if the rows give enough blocks for it. */
bool attention_fills_device(const Attend &a);
