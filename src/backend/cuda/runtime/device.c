/* The device for the rest of the folder: errors and memory. */
#include "backend/cuda/cuda.h"

/* ---- errors ---- */

bool cuda_expect(cudaError_t code, const char *what, Error *error) {
    if (code == cudaSuccess) return true;
    (void)cudaGetLastError();
    return fail(error, code == cudaErrorMemoryAllocation ? ERROR_MEMORY : ERROR_DEVICE, "%s: %s", what,
        cudaGetErrorString(code));
}

bool cuda_ok(CudaBackend *b, cudaError_t code, const char *what) {
    if (code == cudaSuccess) return true;
    if (b->fault.code == ERROR_NONE) cuda_expect(code, what, &b->fault);
    return false;
}

void cuda_enter(CudaBackend *b) { cuda_ok(b, cudaSetDevice(b->device), "the device"); }

/* ---- memory ---- */

void *cuda_take(CudaBackend *b, size_t bytes, Error *error) {
    void *memory = NULL;
    const cudaError_t code = cudaMalloc(&memory, bytes ? bytes : 1);
    if (code == cudaSuccess) return memory;
    size_t free = 0, total = 0;
    (void)cudaGetLastError();
    if (code == cudaErrorMemoryAllocation && cudaMemGetInfo(&free, &total) == cudaSuccess)
        fail(error, ERROR_MEMORY, "no room on the GPU for %.2f GB, %.2f of %.2f GB are free", (double)bytes * 1e-9,
            (double)free * 1e-9, (double)total * 1e-9);
    else
        cuda_expect(code, "memory on the GPU", error);
    return NULL;
}

cudaError_t cuda_send(CudaBackend *b, void *to, const void *from, size_t bytes) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, b->stream);
}

/* To grow, waits for the stream, because kernels may still use the old memory, whose content is lost. Recorded graphs
 * hold its address and become stale. */
bool cuda_room(CudaBackend *b, CudaRoom *room, size_t bytes, Error *error) {
    if (bytes <= room->bytes) return true;
    CHECK(!b->capturing);
    cudaStreamSynchronize(b->stream);
    b->graphs_stale = true;
    cudaFree(room->memory);
    room->bytes = 0;
    room->memory = cuda_take(b, bytes, error);
    if (!room->memory) return false;
    room->bytes = bytes;
    /* Kernels that work on blocks of rows read beyond the last one, and ignore that data. */
    return cuda_expect(cudaMemsetAsync(room->memory, 0, bytes, b->stream), "clearing memory", error);
}
