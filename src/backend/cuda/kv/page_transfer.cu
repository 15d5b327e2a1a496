/* Tokens of a page to and from canonical order (backend.h, page_read). */
#include "backend/cuda/attention/attention.cuh"
#include "backend/cuda/kv/kv.h"

__global__ void page_transfer_kernel(
    uint8_t *page, uint8_t *canonical, int tokens, int heads, int head_dim, int value_dim, int bytes, int in) {
    let_next_begin();
    wait_for_previous();
    const int64_t keys = (int64_t)tokens * heads * head_dim, all = keys + (int64_t)tokens * heads * value_dim;
    const int64_t first = blockIdx.x * (int64_t)BLOCK + threadIdx.x, step = (int64_t)gridDim.x * BLOCK;
    for (int64_t i = first; i < all; i += step) {
        const bool value = i >= keys;
        const int64_t at = value ? i - keys : i;
        const int width = value ? value_dim : head_dim, dim = (int)(at % width);
        const int head = (int)(at / width % heads), token = (int)(at / width / heads);
        const int64_t there = (int64_t)head * PAGE_TOKENS * (head_dim + value_dim) +
            (value ? (int64_t)PAGE_TOKENS * head_dim : 0) + (int64_t)token * width + dim;
        uint8_t *from = in ? canonical + i * bytes : page + there * bytes,
                *to = in ? page + there * bytes : canonical + i * bytes;
        if (bytes == 4)
            *(uint32_t *)to = __ldcg((const unsigned *)from);
        else
            *(uint16_t *)to = __ldcg((const unsigned short *)from);
    }
    /* Energies: [token][head] behind a possibly odd number of halves; in pages [head][token]. */
    float *energies = (float *)(page + (int64_t)PAGE_TOKENS * heads * (head_dim + value_dim) * bytes);
    uint16_t *order = (uint16_t *)(canonical + all * bytes);
    for (int64_t i = first; i < (int64_t)tokens * heads; i += step) {
        float *at = energies + i % heads * PAGE_TOKENS + i / heads;
        if (in) {
            *at = __uint_as_float(__ldcg(order + 2 * i) | (uint32_t)__ldcg(order + 2 * i + 1) << 16);
        } else {
            const uint32_t bits = __float_as_uint(load(at));
            order[2 * i] = (uint16_t)bits;
            order[2 * i + 1] = (uint16_t)(bits >> 16);
        }
    }
}
extern "C" cudaError_t page_transfer(cudaStream_t stream, uint8_t *page, uint8_t *canonical, int tokens, int kv_heads,
    int head_dim, int value_dim, int bytes, int in) {
    return launch(stream, page_transfer_kernel, dim3(264), BLOCK, 0, page, canonical, tokens, kv_heads, head_dim,
        value_dim, bytes, in);
}
