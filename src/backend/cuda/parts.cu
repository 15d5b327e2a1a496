/* Sums of the terms that two GPUs have, each of half of a product's columns (tensor_parallel.h): each writes its terms
 * straight into the other's memory and adds what has come from there, in the order of the parts, so that both have the
 * same bits.
 *
 * A few rows go as words of a number and the sum's own mark, which are written and read as one: nobody waits for
 * anything but the words themselves, which arrive after 0.6 µs (NVLink of H200s). Many go as blocks of plain numbers, with a mark
 * behind each. A mark is the step's number and the place of the sum in it, read from memory, so that graphs can repeat
 * it. Room for two sums in turn is enough: who writes the next but one has received all of the next, which the other
 * sent after it had read the one before. (The first of a step has two places of its own, as steps may have odd numbers of
 * sums.) Who waits for too long says so and goes on; then nothing of it is right, and the step fails. */
#include "backend/cuda/common.cuh"

constexpr int PIECE = 4; /* numbers of a thread in a block of many */
static constexpr unsigned long long PATIENCE_NS = 10000000000;

__device__ __forceinline__ void word_put(uint64_t *to, float v, uint32_t mark) {
    const uint64_t word = (uint64_t)mark << 32 | __float_as_uint(v);
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ uint64_t word_get(const uint64_t *from) {
    uint64_t word;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    return word;
}
__device__ __forceinline__ void mark_put(uint32_t *to, uint32_t mark) {
    asm volatile("fence.acq_rel.sys;\n st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(mark) : "memory");
}
__device__ __forceinline__ uint32_t mark_get(const uint32_t *from) {
    uint32_t mark;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(mark) : "l"(from) : "memory");
    return mark;
}

/* Until get() gives true, or for so long that the other is lost. */
template <class Get> __device__ __forceinline__ void part_wait(const PartExchange &e, const Get &get) {
    if (get()) return;
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    for (int i = 1; !get(); i++) {
        if (i % 1024) continue;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (now - begin < PATIENCE_NS && __ldcv(e.lost) == 0) continue;
        *e.lost = 1;
        *e.lost_host = 1;
        __threadfence_system();
        return;
    }
}

__device__ __forceinline__ uint32_t part_mark(const PartExchange &e) {
    return (uint32_t)__ldcg(e.ticket) * PART_SUMS_MAX + (uint32_t)e.number;
}
__device__ __forceinline__ int64_t part_slot(const PartExchange &e) {
    return (e.number ? e.number & 1 : 2 + (__ldcg(e.ticket) & 1)) * e.slot_bytes;
}

__device__ __forceinline__ void part_finish(const PartExchange &e, int64_t at, float own, float other) {
    const float sum = e.index ? other + own : own + other;
    if (e.residual)
        e.residual[at] = fmaf(e.scale, sum, load(e.residual + at));
    else
        e.terms[at] = sum;
}

__global__ void __launch_bounds__(BLOCK) words_kernel(const __grid_constant__ PartExchange e) {
    let_next_begin();
    wait_for_previous();
    const uint32_t mark = part_mark(e);
    const int64_t slot = part_slot(e), at = blockIdx.x * (int64_t)BLOCK + threadIdx.x;
    if (at >= e.count) return;
    const float own = load(e.terms + at);
    word_put((uint64_t *)(e.theirs + slot) + at, own, mark);
    uint64_t word;
    const uint64_t *from = (const uint64_t *)(e.mine + slot) + at;
    part_wait(e, [&] {
        word = word_get(from);
        return (uint32_t)(word >> 32) == mark;
    });
    part_finish(e, at, own, __uint_as_float((uint32_t)word));
}

__global__ void __launch_bounds__(BLOCK) blocks_kernel(const __grid_constant__ PartExchange e) {
    let_next_begin();
    wait_for_previous();
    const uint32_t mark = part_mark(e);
    const int64_t slot = part_slot(e), first = blockIdx.x * (int64_t)(BLOCK * PIECE) + threadIdx.x;
    float *theirs = (float *)(e.theirs + slot + e.data_offset);
    const float *mine = (const float *)(e.mine + slot + e.data_offset);
    float own[PIECE];
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        const int64_t at = first + i * BLOCK;
        own[i] = at < e.count ? load(e.terms + at) : 0;
        if (at < e.count) theirs[at] = own[i];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mark_put((uint32_t *)(e.theirs + slot + e.marks_offset) + blockIdx.x, mark);
        const uint32_t *from = (const uint32_t *)(e.mine + slot + e.marks_offset) + blockIdx.x;
        part_wait(e, [&] { return mark_get(from) == mark; });
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        const int64_t at = first + i * BLOCK;
        if (at < e.count) part_finish(e, at, own[i], load(mine + at));
    }
}

static int64_t up_to(int64_t size, int64_t align) { return (size + align - 1) / align * align; }

extern "C" int64_t parts_slot_bytes(int rows_max, int64_t width, PartExchange *places) {
    const int64_t most = rows_max * width, few = PART_WORD_ROWS * width;
    places->marks_offset = up_to(few * (int64_t)sizeof(uint64_t), 256);
    places->data_offset =
        up_to(places->marks_offset + (most / (BLOCK * PIECE) + 1) * (int64_t)sizeof(uint32_t), 256);
    places->slot_bytes = up_to(places->data_offset + most * (int64_t)sizeof(float), 256);
    return places->slot_bytes;
}

extern "C" cudaError_t parts_sum(cudaStream_t stream, int rows, const PartExchange *e) {
    if (rows <= PART_WORD_ROWS)
        return launch(stream, words_kernel, dim3((unsigned)((e->count + BLOCK - 1) / BLOCK)), BLOCK, 0, *e);
    const int64_t each = BLOCK * PIECE;
    return launch(stream, blocks_kernel, dim3((unsigned)((e->count + each - 1) / each)), BLOCK, 0, *e);
}
