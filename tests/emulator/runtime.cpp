/* The part of the CUDA runtime and driver that the backend calls, for one device that is this processor. What is
 * enqueued is done at once, or kept while a stream is captured; on the default stream, for which others do not wait,
 * some time. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unordered_map>
#include <vector>

#include "state.h"

namespace emulator {

enum : size_t { TOTAL_BYTES = (size_t)8 << 30, PAGE = 4096, GARBAGE_MOST = 1 << 20, MEMORY_ALIGN = 256 };

static std::mutex one_at_a_time; /* kernels: fibers are of whoever launches */
static std::mutex tables;

static int setting(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? (int)strtol(text, NULL, 10) : otherwise;
}

/* ---- what streams do ---- */

struct Action {
    enum { LAUNCH, COPY, SET } kind;
    cudaLaunchConfig_t config;
    uint32_t cluster;
    Kernel kernel;
    std::vector<uint8_t> arguments;
    void *to;
    const void *from;
    size_t bytes;
    int value;
};
struct Stream {
    std::vector<Action> *captured; /* NULL: it is not */
};

/* Large pieces are zero when they are new, and only then. */
static void set_memory(void *to, int value, size_t bytes) {
    const uintptr_t first = ((uintptr_t)to + PAGE - 1) / PAGE * PAGE, end = ((uintptr_t)to + bytes) / PAGE * PAGE;
    if (value != 0 || bytes < GARBAGE_MOST) {
        memset(to, value, bytes);
        return;
    }
    memset(to, 0, first - (uintptr_t)to);
    madvise((void *)first, end - first, MADV_DONTNEED);
    memset((void *)end, 0, (uintptr_t)to + bytes - end);
}

static void perform(const Action &a) {
    static const bool traces = setting("EMULATOR_TRACE", 0) != 0;
    if (a.kind == Action::COPY) {
        memmove(a.to, a.from, a.bytes);
    } else if (a.kind == Action::SET) {
        set_memory(a.to, a.value, a.bytes);
    } else {
        std::lock_guard<std::mutex> lock(one_at_a_time);
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        run_grid(a.config, a.kernel, a.arguments.data(), a.cluster);
        clock_gettime(CLOCK_MONOTONIC, &end);
        if (traces)
            fprintf(stderr, "%9.3f ms  %u × %u × %u of %u, %zu bytes  %s\n",
                (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) * 1e-6,
                a.config.gridDim.x, a.config.gridDim.y, a.config.gridDim.z, a.config.blockDim.x,
                (size_t)a.config.dynamicSmemBytes, cluster.name);
    }
}

/* What the default stream has not done yet, with the bytes that a copy brings in `arguments`. */
static std::vector<Action> undone;
enum { UNDONE_CHANCE = 16 };
static void do_undone() {
    std::vector<Action> all;
    {
        std::lock_guard<std::mutex> lock(tables);
        all.swap(undone);
    }
    for (Action &a : all) {
        if (a.kind == Action::COPY) a.from = a.arguments.data();
        perform(a);
    }
}
static void leave_undone(const Action &action) {
    Action a = action;
    if (a.kind == Action::COPY) a.arguments.assign((const uint8_t *)a.from, (const uint8_t *)a.from + a.bytes);
    std::lock_guard<std::mutex> lock(tables);
    undone.push_back(a);
}
static bool may_go_on() { /* the default stream */
    std::lock_guard<std::mutex> lock(tables);
    return !undone.empty() && chance(UNDONE_CHANCE);
}

static cudaError_t enqueue(cudaStream_t stream, const Action &action) {
    Stream *s = (Stream *)stream;
    if (s && s->captured) {
        s->captured->push_back(action);
        return cudaSuccess;
    }
    if (!s ? action.kind == Action::LAUNCH : may_go_on()) do_undone();
    perform(action);
    return cudaSuccess;
}

/* ---- launching ---- */

static std::unordered_map<const void *, int> dynamic_most; /* what cudaFuncSetAttribute has allowed */

cudaError_t launch(const cudaLaunchConfig_t &config, const Kernel &kernel, const void *arguments, size_t bytes) {
    Action a = {};
    a.kind = Action::LAUNCH;
    a.config = config;
    a.kernel = kernel;
    a.cluster = 1;
    for (unsigned i = 0; i < config.numAttrs; i++)
        if (config.attrs[i].id == cudaLaunchAttributeClusterDimension) a.cluster = config.attrs[i].val.clusterDim.x;
    a.config.attrs = NULL;
    a.config.numAttrs = 0;
    a.arguments.assign((const uint8_t *)arguments, (const uint8_t *)arguments + bytes);
    int most = SHARED_USUAL;
    {
        std::lock_guard<std::mutex> lock(tables);
        const auto found = dynamic_most.find(kernel.function);
        if (found != dynamic_most.end() && found->second > most) most = found->second;
    }
    const uint64_t threads = (uint64_t)config.blockDim.x * config.blockDim.y * config.blockDim.z;
    const bool grid = config.gridDim.x > 0 && config.gridDim.y > 0 && config.gridDim.z > 0 &&
        config.gridDim.x < 1u << 31 && config.gridDim.y < 1 << 16 && config.gridDim.z < 1 << 16;
    if (!grid || threads == 0 || threads > BLOCK_MAX || config.dynamicSmemBytes > (size_t)most ||
        a.cluster > CLUSTER_MAX || a.cluster == 0 || config.gridDim.x % a.cluster) {
        fprintf(stderr,
            "emulator: no launch of %u × %u × %u blocks of %llu threads, %zu bytes of shared memory, clusters of %u\n",
            config.gridDim.x, config.gridDim.y, config.gridDim.z, (unsigned long long)threads, config.dynamicSmemBytes,
            a.cluster);
        return threads == 0 || !grid ? cudaErrorInvalidConfiguration : cudaErrorInvalidValue;
    }
    return enqueue(config.stream, a);
}

size_t measure(const Kernel &kernel, const void *arguments) {
    static std::unordered_map<const void *, size_t> known;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    const auto found = known.find(kernel.function);
    if (found != known.end()) return found->second;
    return known[kernel.function] = measure_kernel(kernel, arguments);
}

/* ---- memory ---- */

struct Allocation {
    void *memory;
    size_t bytes;
};
static std::unordered_map<void *, Allocation> allocations;
static size_t used_bytes;

/* Ends at a page that nobody may touch, so that who reads or writes beyond it is found; freed memory is not there at
 * all. */
static void *take(size_t bytes) {
    const size_t size = (bytes + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN,
                 whole = (size + PAGE - 1) / PAGE * PAGE;
    std::lock_guard<std::mutex> lock(tables);
    if (used_bytes + size > TOTAL_BYTES) return NULL;
    void *memory = mmap(NULL, whole + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    mprotect((uint8_t *)memory + whole, PAGE, PROT_NONE);
    void *p = (uint8_t *)memory + whole - size;
    memset(p, 0xff, size < GARBAGE_MOST ? size : (size_t)GARBAGE_MOST);
    allocations[p] = {memory, whole + PAGE};
    used_bytes += whole;
    return p;
}

} // namespace emulator

using namespace emulator;

extern "C" {

cudaError_t cudaMalloc(void **p, size_t bytes) {
    *p = take(bytes);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *p) {
    do_undone();
    std::lock_guard<std::mutex> lock(tables);
    const auto found = allocations.find(p);
    if (!p) return cudaSuccess;
    if (found == allocations.end()) return cudaErrorInvalidValue;
    used_bytes -= found->second.bytes - PAGE;
    munmap(found->second.memory, found->second.bytes);
    allocations.erase(found);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t bytes) {
    *p = aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
    if (*p) memset(*p, 0xff, bytes < GARBAGE_MOST ? bytes : (size_t)GARBAGE_MOST);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags) { return cudaMallocHost(p, bytes); }
cudaError_t cudaFreeHost(void *p) {
    free(p);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    std::lock_guard<std::mutex> lock(tables);
    *free = TOTAL_BYTES - used_bytes;
    *total = TOTAL_BYTES;
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    Action a = {};
    a.kind = Action::COPY;
    a.to = to;
    a.from = from;
    a.bytes = bytes;
    return enqueue(stream, a);
}
/* From memory that is not pinned it returns when it has taken the bytes. */
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    Action a = {};
    a.kind = Action::COPY;
    a.to = to;
    a.from = from;
    a.bytes = bytes;
    if (kind != cudaMemcpyHostToDevice) {
        do_undone();
        return enqueue(NULL, a);
    }
    leave_undone(a);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    Action a = {};
    a.kind = Action::SET;
    a.to = to;
    a.value = value;
    a.bytes = bytes;
    return enqueue(stream, a);
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    Action a = {};
    a.kind = Action::SET;
    a.to = to;
    a.value = value;
    a.bytes = bytes;
    leave_undone(a);
    return cudaSuccess;
}

/* ---- streams, events, graphs ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    *stream = (cudaStream_t) new Stream();
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    delete (Stream *)stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (!stream) do_undone();
    return stream && ((Stream *)stream)->captured ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
    do_undone();
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    *event = (cudaEvent_t)calloc(1, sizeof(std::vector<Action> *)); /* the graph in which it was recorded */
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    free((void *)event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    *(std::vector<Action> **)event = ((Stream *)stream)->captured;
    return cudaSuccess;
}
/* Everything is done in the order in which it was enqueued. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    ((Stream *)stream)->captured = *(std::vector<Action> **)event;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaSuccess; }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    Stream *s = (Stream *)stream;
    if (s->captured) return cudaErrorIllegalState;
    s->captured = new std::vector<Action>;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    Stream *s = (Stream *)stream;
    *graph = (cudaGraph_t)s->captured;
    s->captured = NULL;
    return *graph ? cudaSuccess : cudaErrorIllegalState;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    *exec = (cudaGraphExec_t) new std::vector<Action>(*(const std::vector<Action> *)graph);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete (std::vector<Action> *)graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete (std::vector<Action> *)exec;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    for (const Action &action : *(const std::vector<Action> *)exec) enqueue(stream, action);
    return cudaSuccess;
}

/* ---- the device ---- */

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > SHARED_MAX) return cudaErrorInvalidValue;
    std::lock_guard<std::mutex> lock(tables);
    dynamic_most[kernel] = value;
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel) {
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = BLOCK_MAX;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count) {
    *count = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated");
    p->major = 9;
    p->multiProcessorCount = setting("EMULATOR_MULTIPROCESSORS", 4);
    p->sharedMemPerBlock = SHARED_USUAL;
    p->sharedMemPerBlockOptin = SHARED_MAX;
    p->sharedMemPerMultiprocessor = SHARED_MAX + SHARED_RESERVED;
    p->maxThreadsPerBlock = BLOCK_MAX;
    p->maxThreadsPerMultiProcessor = 2 * BLOCK_MAX;
    p->warpSize = LANES;
    p->totalGlobalMem = TOTAL_BYTES;
    p->l2CacheSize = 50 << 20;
    return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceReset(void) { return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) { return cudaErrorInvalidDevice; }
cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t error) {
    static thread_local char text[32];
    snprintf(text, sizeof text, "error %d", (int)error);
    return text;
}

/* ---- the driver's memory that is mapped by its user ---- */

static CUresult attribute(int *value, CUdevice_attribute which, CUdevice device) {
    *value = 1;
    return CUDA_SUCCESS;
}
static CUresult reserve(CUdeviceptr *at, size_t bytes, size_t align, CUdeviceptr wish, unsigned long long flags) {
    void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *at = (CUdeviceptr)(uintptr_t)memory;
    return memory == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
static CUresult unreserve(CUdeviceptr at, size_t bytes) {
    munmap((void *)at, bytes);
    return CUDA_SUCCESS;
}
static CUresult create(
    CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *kind, unsigned long long flags) {
    std::lock_guard<std::mutex> lock(tables);
    if (used_bytes + bytes > TOTAL_BYTES) return CUDA_ERROR_OUT_OF_MEMORY;
    used_bytes += bytes;
    *handle = bytes;
    return CUDA_SUCCESS;
}
static CUresult destroy(CUmemGenericAllocationHandle handle) {
    std::lock_guard<std::mutex> lock(tables);
    used_bytes -= handle;
    return CUDA_SUCCESS;
}
static CUresult map(
    CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    return mprotect((void *)at, bytes, PROT_READ | PROT_WRITE) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
static CUresult unmap(CUdeviceptr at, size_t bytes) {
    void *memory = mmap((void *)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return memory == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
static CUresult allow(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count) {
    return CUDA_SUCCESS;
}

static CUresult encode_tiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base,
    const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps,
    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
    CUtensorMapFloatOOBfill fill) {
    static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap), "it lies there");
    const bool known = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && rank == 3 && swizzle == CU_TENSOR_MAP_SWIZZLE_128B &&
        interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && box[0] == 64 && box[1] <= 256 && box[2] == 1 && steps[0] == 1 &&
        steps[1] == 1 && steps[2] == 1;
    if (!known || (uintptr_t)base % 16 || strides[0] % 16 || strides[1] % 16 || strides[1] >> 40)
        return CUDA_ERROR_INVALID_VALUE;
    const TensorMap made = {
        (const uint8_t *)base, {dims[0], dims[1], dims[2]}, {strides[0], strides[1]}, {box[0], box[1], box[2]}};
    memcpy(map, &made, sizeof made);
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
    unsigned long long flags, cudaDriverEntryPointQueryResult *result) {
    static const struct {
        const char *name;
        void *function;
    } functions[] = {{"cuDeviceGetAttribute", (void *)attribute}, {"cuMemAddressReserve", (void *)reserve},
        {"cuMemAddressFree", (void *)unreserve}, {"cuMemCreate", (void *)create}, {"cuMemRelease", (void *)destroy},
        {"cuTensorMapEncodeTiled", (void *)encode_tiled}, {"cuMemMap", (void *)map}, {"cuMemUnmap", (void *)unmap},
        {"cuMemSetAccess", (void *)allow}};
    *result = cudaDriverEntryPointSymbolNotFound;
    for (const auto &f : functions)
        if (!strcmp(f.name, name)) {
            *function = f.function;
            *result = cudaDriverEntryPointSuccess;
        }
    return cudaSuccess;
}

} // extern "C"
