/* The device's read bandwidth, measured. */
#include "backend/cuda/cuda.h"
#include "base/clock.h"

enum {
    MOST_BYTES = 1 << 30, /* much more than the second-level cache */
    CACHES = 4,           /* least ratio of the memory read to that cache */
    PASSES = 5,
    PASS_NS = 5000000, /* long enough to hide launch and wait, and to raise the clocks */
};

static int64_t pass_ns(cudaStream_t stream, void *memory, size_t bytes, int multiprocessors, int times) {
    const int64_t start = clock_ns();
    bool ok = true;
    for (int i = 0; i < times; i++) ok = ok && limits_read(stream, memory, bytes, multiprocessors) == cudaSuccess;
    return ok && cudaStreamSynchronize(stream) == cudaSuccess ? clock_ns() - start + 1 : 0;
}

static double best(cudaStream_t stream, void *memory, size_t bytes, int multiprocessors) {
    const int64_t first = pass_ns(stream, memory, bytes, multiprocessors, 1);
    const int times = first ? (int)(PASS_NS / first) + 1 : 0;
    double most = 0;
    for (int i = 0; times && i < PASSES; i++) {
        const int64_t ns = pass_ns(stream, memory, bytes, multiprocessors, times);
        const double speed = ns ? (double)bytes * times / ((double)ns * 1e-9) : 0;
        most = speed > most ? speed : most;
    }
    return most;
}

double cuda_read_speed(int device) {
    struct cudaDeviceProp p;
    cudaStream_t stream = NULL;
    void *memory = NULL;
    size_t bytes = MOST_BYTES;
    double speed = 0;
    if (!cudaGetDeviceProperties(&p, device) && !cudaSetDevice(device) &&
        !cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) {
        while (cudaMalloc(&memory, bytes) && bytes / 2 >= (size_t)p.l2CacheSize * CACHES) bytes /= 2;
        if (memory && !cudaMemsetAsync(memory, 0, bytes, stream))
            speed = best(stream, memory, bytes, p.multiProcessorCount);
    }
    cudaFree(memory);
    if (stream) cudaStreamDestroy(stream);
    (void)cudaGetLastError();
    return speed;
}
