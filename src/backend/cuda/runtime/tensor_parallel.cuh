/* Words between two GPUs (tensor_parallel.cu): a number and the mark of its sum, written and read as one. */
#pragma once
#include "backend/cuda/runtime/common.cuh"

__device__ __forceinline__ void word_put(uint64_t *to, float v, uint32_t mark) {
    const uint64_t word = (uint64_t)mark << 32 | __float_as_uint(v);
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ uint64_t word_get(const uint64_t *from) {
    uint64_t word;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    return word;
}

static constexpr unsigned long long RANK_PATIENCE_NS = 10000000000;

/* Waits until get() is true, or until the time limit, after which the other GPU counts as lost. */
template <class Get> static __device__ __noinline__ void rank_wait_long(const RankPlace &p, const Get &get) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    for (int i = 1; !get(); i++) {
        if (i % 256) continue;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (now - begin < RANK_PATIENCE_NS && __ldcv(p.lost) == 0) continue;
        *p.lost = 1;
        *p.lost_host = 1;
        __threadfence_system();
        return;
    }
}
template <class Get> __device__ __forceinline__ void rank_wait(const RankPlace &p, const Get &get) {
    if (!get()) rank_wait_long(p, get);
}

/* Valid after the kernel has waited: reads the step's number. */
__device__ __forceinline__ uint32_t rank_mark(const RankPlace &p) {
    return (uint32_t)__ldcg(p.ticket) * RANK_SUMS_MAX + (uint32_t)p.number;
}
__device__ __forceinline__ int64_t rank_slot(const RankPlace &p) {
    return (p.number ? p.number & 1 : 2 + (__ldcg(p.ticket) & 1)) * p.slot_bytes;
}
__device__ __forceinline__ float rank_add(const RankPlace &p, float own, float other) {
    return p.index ? other + own : own + other;
}
/* Own terms and the other's, as a thread exchanges them. slot, mark: as above. */
__device__ __forceinline__ float rank_word(const RankPlace &p, int64_t slot, uint32_t mark, int64_t at) {
    uint64_t word = 0;
    const uint64_t *from = (const uint64_t *)(p.mine + slot) + at;
    rank_wait(p, [&] {
        word = word_get(from);
        return (uint32_t)(word >> 32) == mark;
    });
    return __uint_as_float((uint32_t)word);
}
