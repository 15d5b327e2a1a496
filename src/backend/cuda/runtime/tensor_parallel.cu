/* Sums of terms of two GPUs, each with half of a product's columns (tensor_parallel.h): each GPU writes its terms into
 * the other's memory and adds the terms that arrive, in the order of ranks, so that both have the same bits.
 *
 * Few rows travel as words of a number and the mark of the sum: a reader waits for the words alone, which
 * arrive after 0.6 µs (NVLink of H200s), and the product that makes the terms exchanges and adds them itself where it
 * can (epilogue.cuh). Many rows travel as blocks of numbers with a mark behind each block. A mark is the
 * step's number and the sum's place in it, read from memory, so that graphs can repeat it. Two slots in turn are
 * enough: a GPU that writes the sum after the next has received all of the next, which the other sent after it had read
 * this one. (The first sum of a step has two slots of its own, as steps may have odd numbers of sums.) A wait has a
 * limit; beyond it the loss is recorded, the kernels go on, and the step fails. */
#include "backend/cuda/runtime/tensor_parallel.cuh"

constexpr int PIECE = 4;   /* numbers of a thread in a block of many */
constexpr int WORDS = 128; /* threads of a block of words: small ones on many multiprocessors are faster */

__device__ __forceinline__ void mark_put(uint32_t *to, uint32_t mark) {
    asm volatile("fence.acq_rel.sys;\n st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(mark) : "memory");
}
__device__ __forceinline__ uint32_t mark_get(const uint32_t *from) {
    uint32_t mark;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(mark) : "l"(from) : "memory");
    return mark;
}

__device__ __forceinline__ void rank_finish(const RankExchange &e, int64_t at, float own, float other) {
    const float sum = rank_add(e.place, own, other);
    if (e.residual)
        e.residual[at] = fmaf(e.scale, sum, load(e.residual + at));
    else
        e.terms[at] = sum;
}

__global__ void __launch_bounds__(WORDS) words_kernel(const __grid_constant__ RankExchange e) {
    let_next_begin();
    wait_for_previous();
    const uint32_t mark = rank_mark(e.place);
    const int64_t slot = rank_slot(e.place), at = blockIdx.x * (int64_t)WORDS + threadIdx.x;
    if (at >= e.count) return;
    const float own = load(e.terms + at);
    word_put((uint64_t *)(e.place.theirs + slot) + at, own, mark);
    rank_finish(e, at, own, rank_word(e.place, slot, mark, at));
}

__global__ void __launch_bounds__(BLOCK) blocks_kernel(const __grid_constant__ RankExchange e) {
    let_next_begin();
    wait_for_previous();
    const uint32_t mark = rank_mark(e.place);
    const int64_t slot = rank_slot(e.place), first = blockIdx.x * (int64_t)(BLOCK * PIECE) + threadIdx.x;
    float *theirs = (float *)(e.place.theirs + slot + e.data_offset);
    const float *mine = (const float *)(e.place.mine + slot + e.data_offset);
    float own[PIECE];
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        const int64_t at = first + i * BLOCK;
        own[i] = at < e.count ? load(e.terms + at) : 0;
        if (at < e.count) theirs[at] = own[i];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mark_put((uint32_t *)(e.place.theirs + slot + e.marks_offset) + blockIdx.x, mark);
        const uint32_t *from = (const uint32_t *)(e.place.mine + slot + e.marks_offset) + blockIdx.x;
        rank_wait(e.place, [&] { return mark_get(from) == mark; });
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        const int64_t at = first + i * BLOCK;
        if (at < e.count) rank_finish(e, at, own[i], load(mine + at));
    }
}

static int64_t up_to(int64_t size, int64_t align) { return (size + align - 1) / align * align; }

extern "C" int64_t ranks_slot_bytes(int rows_max, int64_t width, RankExchange *places) {
    const int64_t most = rows_max * width, few = RANK_WORD_ROWS * width;
    places->marks_offset = up_to(few * (int64_t)sizeof(uint64_t), 256);
    places->data_offset = up_to(places->marks_offset + (most / (BLOCK * PIECE) + 1) * (int64_t)sizeof(uint32_t), 256);
    places->place.slot_bytes = up_to(places->data_offset + most * (int64_t)sizeof(float), 256);
    return places->place.slot_bytes;
}

extern "C" cudaError_t ranks_sum(cudaStream_t stream, int rows, const RankExchange *e) {
    if (rows <= RANK_WORD_ROWS)
        return launch(stream, words_kernel, dim3((unsigned)((e->count + WORDS - 1) / WORDS)), WORDS, 0, *e);
    const int64_t each = BLOCK * PIECE;
    return launch(stream, blocks_kernel, dim3((unsigned)((e->count + each - 1) / each)), BLOCK, 0, *e);
}
