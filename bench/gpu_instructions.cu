/* What instructions of a kernel cost by where they come from, for docs/design/gpu-kernels.md. Compiling takes minutes:
 *   nvcc -std=c++17 -O3 -ftemplate-depth=3000 -arch=sm_90a bench/gpu_instructions.cu -o gpu_instructions
 * First a loop of so many KB; then kernels of 8 KB, run once each, that take turns, some of them behind code that is
 * skipped. */
#include <algorithm>
#include <cstdio>
#include <cuda_runtime.h>
#include <initializer_list>
#include <vector>

constexpr int PER_KB = 1024 / 16;

template <int N, int SALT> struct Instructions {
    static __device__ __forceinline__ void run(float *x) {
        if constexpr (N > 512) {
            Instructions<512, SALT>::run(x);
            Instructions<N - 512, SALT + 1>::run(x);
        } else if constexpr (N > 0) {
            asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x[N % 8]) : "f"(SALT + N * 1e-5f), "f"(0.5f));
            Instructions<N - 1, SALT>::run(x);
        }
    }
};
__device__ void begin(float x[8]) {
    for (int i = 0; i < 8; i++) x[i] = threadIdx.x * 0.1f + i;
}
__device__ void end(const float x[8], float *out) {
    float sum = 0;
    for (int i = 0; i < 8; i++) sum += x[i];
    if (sum == 1.2345f) *out = sum;
}

template <int KB> __global__ void __launch_bounds__(256) loop_kernel(float *out, long long *cycles, int times) {
    float x[8];
    begin(x);
    long long from = 0;
#pragma unroll 1
    for (int i = -2; i < times; i++) {
        if (i == 0) from = clock64();
        Instructions<KB * PER_KB, 1>::run(x);
    }
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - from;
    end(x, out);
}
template <int KB> static void loop(float *out, long long *cycles) {
    printf("a loop of %3d KB:", KB);
    for (int threads : {32, 256}) {
        loop_kernel<KB><<<132, threads>>>(out, cycles, 20);
        long long c;
        cudaMemcpy(&c, cycles, sizeof c, cudaMemcpyDeviceToHost);
        printf(" %.2f cycles an instruction with %d warps", c / 20.0 / (KB * PER_KB), threads / 32);
    }
    printf("\n");
}

/* never: not 0, and the code before is run. */
template <int KB_BEFORE, int ID>
__global__ void __launch_bounds__(256) once_kernel(float *out, long long *cycles, int never) {
    asm volatile("griddepcontrol.launch_dependents;");
    float x[8];
    begin(x);
    if (never == 0) {
    } else if constexpr (KB_BEFORE > 0) {
        for (int i = 0; i < never; i++) Instructions<KB_BEFORE * PER_KB, 100 + ID>::run(x);
    }
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const long long from = clock64();
    Instructions<8 * PER_KB, ID>::run(x);
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - from;
    end(x, out);
}
typedef void (*Once)(float *, long long *, int);
static void turns(const char *name, std::initializer_list<Once> kernels, float *out, long long *cycles) {
    enum { LAUNCHES = 60, BLOCKS = 132 };
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t run;
    cudaStreamCreate(&stream);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    for (int i = 0; i < LAUNCHES; i++) {
        cudaLaunchAttribute early;
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t config = {dim3(BLOCKS), dim3(256), 0, stream, &early, 1};
        cudaLaunchKernelEx(&config, kernels.begin()[i % kernels.size()], out, cycles + i * BLOCKS, 0);
    }
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&run, graph, 0);
    for (int i = 0; i < 20; i++) cudaGraphLaunch(run, stream);
    cudaStreamSynchronize(stream);
    std::vector<long long> all(LAUNCHES * BLOCKS);
    cudaMemcpy(all.data(), cycles, all.size() * sizeof all[0], cudaMemcpyDeviceToHost);
    std::sort(all.begin(), all.end());
    printf("%-42s %5lld cycles (median), %s\n", name, all[all.size() / 2], cudaGetErrorString(cudaGetLastError()));
}

int main() {
    float *out;
    long long *cycles;
    cudaMalloc(&out, 1 << 20);
    cudaMalloc(&cycles, 1 << 20);
    loop<8>(out, cycles);
    loop<28>(out, cycles);
    loop<40>(out, cycles);
    loop<96>(out, cycles);
    loop<120>(out, cycles);
    loop<144>(out, cycles);
    loop<256>(out, cycles);
    turns("one kernel", {once_kernel<0, 1>}, out, cycles);
    turns("one kernel, 64 KB before", {once_kernel<64, 2>}, out, cycles);
    turns("two in turn", {once_kernel<0, 1>, once_kernel<0, 3>}, out, cycles);
    turns("two in turn, 16 KB before", {once_kernel<16, 4>, once_kernel<16, 5>}, out, cycles);
    turns("two in turn, 32 KB before", {once_kernel<32, 4>, once_kernel<32, 5>}, out, cycles);
    turns("two in turn, 64 KB before", {once_kernel<64, 2>, once_kernel<64, 6>}, out, cycles);
    turns("six in turn",
        {once_kernel<0, 1>, once_kernel<0, 3>, once_kernel<0, 7>, once_kernel<0, 8>, once_kernel<0, 9>,
            once_kernel<0, 10>},
        out, cycles);
    turns("six in turn, 32 KB before",
        {once_kernel<32, 1>, once_kernel<32, 3>, once_kernel<32, 7>, once_kernel<32, 8>, once_kernel<32, 9>,
            once_kernel<32, 10>},
        out, cycles);
    return 0;
}
