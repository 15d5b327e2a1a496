/* emulator/: the kernels of src/backend/cuda on the processor, so that their logic is tested where there is no GPU.
 *
 * translate.py turns each .cu and .cuh into C++: PTX in asm statements becomes calls (ptx.h), shared memory becomes
 * references into the block's. include/ stands for the toolkit's device headers; runtime.cpp is the CUDA runtime. All
 * of it with the unchanged .c files of the backend is emulated/apus-cuda.so, which the test programs load beside them
 * as they would the real one (run.sh).
 *
 * A thread of a block is a fiber (fiber.cpp): it runs until it meets others (block.cpp): at a barrier, at an operation
 * of its warp, at an mbarrier. The blocks of a cluster are alive together, clusters come one after the other, kernels
 * end before their launch returns. One device, so that kernels which wait for another GPU (tensor_parallel.cu) are not
 * for it.
 *
 * Which thread runs next, in which order blocks come, and whether a copy or a wgmma happens when it is ordered or only
 * when it is waited for, is drawn by EMULATOR_SEED (default 1): a missing barrier or wait shows up as a wrong result
 * with some of the seeds. So is when the default stream does what cudaMemcpy and cudaMemset were asked for. Shared
 * memory and cudaMalloc's begin as NaNs. Where all wait for ever, where memory is misused, or a launch asks for what no
 * device has, the program ends with a report of who is where.
 *
 *   EMULATOR_SEED=N             another order
 *   EMULATOR_MULTIPROCESSORS=N  of the device, 4 if not said
 *   EMULATOR_TRACE=1            a line for each kernel
 *
 * What it cannot see: fences and the order of memory (all threads see all writes at once), two blocks or two kernels
 * at the same time, registers and their number, time. A sum of f16 products in mma and wgmma is rounded once per
 * block of 16; devices round a little differently, so bits are not theirs. */
#pragma once
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

namespace emulator {

enum { LANES = 32, SHARED_MAX = 227 << 10, SHARED_USUAL = 48 << 10, SHARED_RESERVED = 1 << 10, CLUSTER_MAX = 16 };

struct Warp;
struct Block;
struct Copies;

struct Thread {
    uint3 index;
    int lane;
    uint32_t bit; /* of the lane */
    Warp *warp;
    Block *block;
    const char *where, *waits; /* in the source; for what, NULL: it runs */
    void *stack;               /* its registers, while others run */
    Thread *next;              /* of those that wait for the same */
    uint64_t *barrier;         /* that it waits for */
    bool parity, cluster_phase, ended;
    size_t serial;  /* of its stack */
    Copies *copies; /* cp.async under way */
};
extern Thread *self;

/* ---- who runs ---- */
[[noreturn]] __attribute__((format(printf, 1, 2))) void fault(const char *format, ...);
void give_way(); /* others may run first */
void enter(const char *kernel, int threads_max);
bool chance(uint32_t of); /* one in so many */
/* Ends a thread that only finds out what a kernel has (measure()). */
void leave_if_measuring();

/* ---- memory ---- */
/* A block's memory, the same for all threads and all calls with this number. */
void *shared_memory(uint32_t number, size_t bytes, size_t align);
void *shared_memory_rest(size_t align);
template <class T> T &shared(uint32_t number, size_t align) {
    return *(T *)shared_memory(number, sizeof(T), align > alignof(T) ? align : alignof(T));
}
template <class T> T *shared_rest(size_t align) {
    return (T *)shared_memory_rest(align > alignof(T) ? align : alignof(T));
}
/* Addresses in shared memory: an offset into the own block's, or of a block of the cluster (block_address). */
uint32_t shared_address(const void *p);
void *shared_pointer(uint32_t address, size_t bytes, size_t align);
uint32_t block_address(uint32_t address, uint32_t rank);
/* An address of any kind for `bytes` at once. */
void aligned(const void *p, size_t bytes);

/* ---- meetings ---- */
/* Of the lanes of mask: the last one calls compute with what each has put down, NULL for lanes that are not there. */
typedef void Compute(void *const put[LANES], uint32_t mask);
void meet(uint32_t mask, void *put, Compute *compute, const char *what);
void sync_block();
void sync_some(uint32_t barrier, uint32_t threads);
void arrive_some(uint32_t barrier, uint32_t threads);
void cluster_arrive();
void cluster_wait();
uint32_t cluster_rank();
uint32_t cluster_size();

/* ---- barriers that count bytes ---- */
void barrier_init(uint32_t at, uint32_t count);
void barrier_arrive(uint32_t at, uint32_t count, uint32_t expected_bytes);
void barrier_expect(uint32_t at, uint32_t bytes);
bool barrier_passed(uint32_t at, uint32_t parity, bool wait);

/* ---- copies under way ---- */
void copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier);
/* Of f16 in three dimensions; rows of 128 bytes come to lie as wgmma reads them. */
struct TensorMap {
    const uint8_t *base;
    uint64_t dims[3], strides[2];
    uint32_t box[3];
};
struct TensorPlace {
    uint32_t at[3];
};
void copy_tensor(uint32_t to, const TensorMap *map, TensorPlace place, uint32_t barrier);
void store_bulk(
    uint32_t to, const void *value, uint32_t bytes, uint32_t barrier); /* st.async: the value is taken at once */
void copy_async(uint32_t to, const void *from, uint32_t bytes, uint32_t from_bytes);
void copies_commit();
void copies_wait(uint32_t groups); /* until so many are under way; ~0: those without a group, too */

/* ---- launching ---- */
struct Kernel {
    const void *function;
    void (*call)(const void *function, const void *arguments);
};
cudaError_t launch(const cudaLaunchConfig_t &config, const Kernel &kernel, const void *arguments, size_t bytes);
size_t measure(const Kernel &kernel, const void *arguments); /* bytes of shared memory that it declares */

} // namespace emulator
