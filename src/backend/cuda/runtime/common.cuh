/* Shared by all kernels: launches with programmatic dependence, sums over a warp and a block in one fixed order. */
#pragma once
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backend/cuda/runtime/runtime.h"

constexpr int BLOCK = 256, WARPS = BLOCK / 32;

extern bool launch_early;
/* This thread's next kernel on one of these streams begins when the one before it has ended. Other threads load models
 * or copy pages; a step may be walked on two GPUs at once. */
enum { LAUNCH_STREAMS = 2 };
extern __thread cudaStream_t launch_apart[LAUNCH_STREAMS];
static inline void launch_put_apart(cudaStream_t stream) {
    int at = 0;
    for (int i = 0; i < LAUNCH_STREAMS; i++)
        if (!launch_apart[i] || launch_apart[i] == stream) at = i;
    launch_apart[at] = stream;
}
static inline bool launch_takes_apart(cudaStream_t stream) {
    bool apart = false;
    for (int i = 0; i < LAUNCH_STREAMS; i++) {
        if (launch_apart[i] != stream) continue;
        launch_apart[i] = nullptr;
        apart = true;
    }
    return apart;
}

/* The grid that follows may begin. It waits before it reads results of this one. */
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/* Waits until the previous grid has ended. Every thread of every kernel calls it, so that all grids enqueued before
 * have then ended. */
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* cluster: blocks of x that share their memory; 1: none does. */
template <class... P, class... A>
static cudaError_t launch_clusters(
    cudaStream_t stream, void (*kernel)(P...), dim3 grid, int block, size_t shared, int cluster, A... arguments) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2];
    config.gridDim = grid;
    config.blockDim = dim3(block);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attributes;
    if (!launch_takes_apart(stream) && launch_early) {
        cudaLaunchAttribute &a = attributes[config.numAttrs++];
        a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a.val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        cudaLaunchAttribute &a = attributes[config.numAttrs++];
        a.id = cudaLaunchAttributeClusterDimension;
        a.val.clusterDim.x = (unsigned)cluster;
        a.val.clusterDim.y = a.val.clusterDim.z = 1;
    }
    return cudaLaunchKernelEx(&config, kernel, P(arguments)...);
}
template <class... P, class... A>
static cudaError_t launch(
    cudaStream_t stream, void (*kernel)(P...), dim3 grid, int block, size_t shared, A... arguments) {
    return launch_clusters(stream, kernel, grid, block, shared, 1, arguments...);
}

/* A multiprocessor is cut into L1 and shared memory for the kernel that comes onto it while it is empty, and stays so
 * as long as that one runs: without this setting other kernels, which would fit beside it, have to wait. */
template <class Kernel> static cudaError_t allow_beside(Kernel kernel) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

/* Loads of data that other kernels write bypass L1, which may hold an old copy of the line. */
__device__ __forceinline__ float load(const float *p) { return __ldcg(p); }

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int i = 16; i; i >>= 1) v += __shfl_xor_sync(~0u, v, i);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int i = 16; i; i >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, i));
    return v;
}

/* The first BLOCK threads of a block, which may have more. */
__device__ __forceinline__ void block_sync() { asm volatile("bar.sync 1, %0;" ::"n"(BLOCK) : "memory"); }

/* Over BLOCK threads; shared: WARPS floats, free again afterwards. */
__device__ __forceinline__ float block_sum(float v, float *shared) {
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    block_sync();
    float sum = shared[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++) sum += shared[i];
    block_sync();
    return sum;
}
__device__ __forceinline__ float block_max(float v, float *shared) {
    v = warp_max(v);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    block_sync();
    float most = shared[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++) most = fmaxf(most, shared[i]);
    block_sync();
    return most;
}

/* A row of floats distributed over a block in fours: thread i has columns 4(i + BLOCK·j) …, whatever the alignment, so
 * sums do not depend on that. N > 0: at most 4·BLOCK·N columns, which registers keep. */
template <int N> struct Row {
    const float *data;
    int64_t width;
    bool aligned;
    float4 kept[N > 0 ? N : 1];

    __device__ __forceinline__ float4 four(int64_t at) const {
        if (aligned && at + 4 <= width) return __ldcg((const float4 *)(data + at));
        float4 v;
        v.x = at < width ? load(data + at) : 0;
        v.y = at + 1 < width ? load(data + at + 1) : 0;
        v.z = at + 2 < width ? load(data + at + 2) : 0;
        v.w = at + 3 < width ? load(data + at + 3) : 0;
        return v;
    }
    __device__ Row(const float *p, int64_t w) : data(p), width(w), aligned(((uintptr_t)p & 15) == 0) {
#pragma unroll
        for (int j = 0; j < N; j++) kept[j] = four(4 * ((int64_t)threadIdx.x + BLOCK * j));
    }
    /* f(column, four values), zeros beyond the width */
    template <class F> __device__ __forceinline__ void each(const F &f) const {
        if constexpr (N > 0) {
#pragma unroll
            for (int j = 0; j < N; j++)
                if (4 * (threadIdx.x + BLOCK * j) < width) f(4 * ((int64_t)threadIdx.x + BLOCK * j), kept[j]);
        } else {
            /* Loads of a batch are under way together. */
            constexpr int BATCH = 8;
            for (int64_t first = 4 * threadIdx.x; first < width; first += 4 * BLOCK * BATCH) {
                float4 v[BATCH];
#pragma unroll
                for (int j = 0; j < BATCH; j++) v[j] = four(first + 4 * BLOCK * j);
#pragma unroll
                for (int j = 0; j < BATCH; j++)
                    if (first + 4 * BLOCK * j < width) f(first + 4 * BLOCK * j, v[j]);
            }
        }
    }
};

/* The effect of a norm on a row: v → (v − mean) · factor · weight + bias. */
struct Scaling {
    float mean, factor;
};

template <int N> __device__ __forceinline__ Scaling row_scaling(const RowNorm &norm, float *shared, const Row<N> &row) {
    const int64_t width = norm.width;
    Scaling s = {0, 1};
    float sum = 0;
    if (norm.kind) { /* LAYER */
        row.each([&](int64_t at, float4 v) { sum += (v.x + v.y) + (v.z + v.w); });
        s.mean = block_sum(sum, shared) / (float)width;
        sum = 0;
    }
    row.each([&](int64_t at, float4 v) {
        if (norm.kind) {
            v.x -= s.mean;
            v.y = at + 1 < width ? v.y - s.mean : 0;
            v.z = at + 2 < width ? v.z - s.mean : 0;
            v.w = at + 3 < width ? v.w - s.mean : 0;
        }
        sum += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
    });
    s.factor = 1.0f / sqrtf(block_sum(sum, shared) / (float)width + norm.eps);
    return s;
}

__device__ __forceinline__ float scaled(const RowNorm &norm, const Scaling &s, float v, int64_t at) {
    v = norm.kind ? (v - s.mean) * s.factor : v * s.factor;
    if (norm.weight) v *= __ldg(norm.weight + at);
    if (norm.kind && norm.bias) v += __ldg(norm.bias + at);
    return v;
}

/* As ref.c computes it. */
__device__ __forceinline__ float activated(int kind, float x) {
    switch (kind) {
    case ACT_SILU: return x / (1.0f + expf(-x));
    case ACT_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case ACT_GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case ACT_RELU2: return x > 0 ? x * x : 0;
    case ACT_RELU: return x > 0 ? x : 0;
    }
    return x;
}
__device__ __forceinline__ float gated(const Activation &activation, float gate, float up) {
    if (activation.kind != ACT_SILU_CLAMPED && activation.kind != ACT_SILU_LIMITED)
        return activated(activation.kind, gate) * up;
    const bool limited = activation.kind == ACT_SILU_LIMITED;
    const float b = activation.b, g = fminf(gate, limited ? activation.a : b), u = fminf(fmaxf(up, -b), b);
    return g / (1.0f + expf(limited ? -g : -activation.a * g)) * (limited ? u : u + 1);
}
static __device__ __noinline__ float gated_rarely(Activation activation, float gate, float up) {
    return gated(activation, gate, up);
}
/* The same with little code where nearly all models have SiLU. */
__device__ __forceinline__ float gated_usually(const Activation &activation, float gate, float up) {
    return activation.kind == ACT_SILU ? gate / (1.0f + expf(-gate)) * up : gated_rarely(activation, gate, up);
}
/* SiLU of prefill rows on Hopper: few instructions and no branches, as two warps compute it for eight multiplying ones.
 */
__device__ __forceinline__ float silu_prefill(float gate, float up) {
    float power, part;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(gate * -1.44269504f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(part) : "f"(1 + power));
    return gate * part * up;
}
