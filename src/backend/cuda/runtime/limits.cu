/* A kernel that only reads, as fast as the device can: the roofline of decoding. */
#include "backend/cuda/runtime/common.cuh"

constexpr int READ_BLOCK = 1024, READ_AHEAD = 4, READ_BLOCKS = 4 /* blocks per multiprocessor */;

/* Uses the data read: `out` is written for certain sums, which never occur with zeros. */
__global__ void __launch_bounds__(READ_BLOCK) read_kernel(const uint4 *memory, int64_t count, uint32_t *out) {
    let_next_begin();
    wait_for_previous();
    const int64_t all = (int64_t)gridDim.x * READ_BLOCK;
    int64_t i = (int64_t)blockIdx.x * READ_BLOCK + threadIdx.x;
    uint32_t sum = 0;
    for (; i + (READ_AHEAD - 1) * all < count; i += READ_AHEAD * all) {
        uint4 v[READ_AHEAD];
#pragma unroll
        for (int j = 0; j < READ_AHEAD; j++) v[j] = __ldcs(memory + i + j * all);
#pragma unroll
        for (int j = 0; j < READ_AHEAD; j++) sum += (v[j].x ^ v[j].y) + (v[j].z ^ v[j].w);
    }
    for (; i < count; i += all) sum += __ldcs(memory + i).x;
    if (sum) *out = sum;
}
extern "C" cudaError_t limits_read(cudaStream_t stream, void *memory, size_t bytes, int multiprocessors) {
    return launch(stream, read_kernel, dim3(multiprocessors * READ_BLOCKS), READ_BLOCK, 0, (const uint4 *)memory,
        (int64_t)(bytes / sizeof(uint4)), (uint32_t *)memory);
}
