/* Bulk copies from global to shared memory, and the mbarriers that count their bytes. Compute capability 9.0 and later.
 */
#pragma once
#include "backend/cuda/gemm/tile.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void barrier_make(uint32_t b, uint32_t count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(b), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t b) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(b) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t b, uint32_t phase) {
    asm volatile(
        "{\n.reg .pred p;\nW: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra W;\n}" ::"r"(b), "r"(phase)
        : "memory");
}
__device__ __forceinline__ void copy_bulk(
    uint32_t to, const void *from, uint32_t bytes, uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                 "[%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ void copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/* Cache policy for data that is read once: first to be evicted from the L2. */
__device__ __forceinline__ uint64_t policy_first() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* A slot of a ring and the number of times it was passed. */
struct Turn {
    int at = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next(int count) {
        if (++at == count) {
            at = 0;
            phase ^= 1;
        }
    }
};
#endif

/* A tile that lies in shared memory. */
template <int KIND>
__device__ __forceinline__ void piece_take(Piece<KIND> &p, const uint8_t *tile, int lane, int scales) {
    using K = Kind<KIND>;
    constexpr int QUADS = K::FOURS + K::EIGHTS + K::PLAIN;
#pragma unroll
    for (int i = 0; i < QUADS / 4; i++) {
        const uint4 v = *(const uint4 *)(tile + i * 512 + lane * 16);
        p.w[4 * i] = v.x, p.w[4 * i + 1] = v.y, p.w[4 * i + 2] = v.z, p.w[4 * i + 3] = v.w;
    }
    if constexpr (K::TWOS > 0) {
        const uint2 v = *(const uint2 *)(tile + K::FOURS * 128 + lane * 8);
        p.w[QUADS] = v.x, p.w[QUADS + 1] = v.y;
    }
    if constexpr (K::ONES > 0) p.w[QUADS + K::TWOS] = *(const uint32_t *)(tile + (K::FOURS + K::TWOS) * 128 + lane * 4);
    if constexpr (!K::PLAIN) p.scales = *(const uint2 *)(tile + scales);
}
