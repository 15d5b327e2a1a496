/* In the place of the toolkit's header of this name: the language of kernels for the processor (emulator.h). */
#pragma once
#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>
#include <tuple>
#include <type_traits>
#include <vector_functions.h>

#include "emulator.h"
#include "ptx.h"

#define __CUDA_ARCH__ 900
#define __CUDA_ARCH_FEAT_SM90_ALL 1
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __noinline__ __attribute__((noinline))
#undef __forceinline__
#define __forceinline__ inline

namespace emulator {
const uint3 &block_index();

/* ---- what lanes of a warp do together ---- */
struct Shuffle {
    uint64_t value;
    int from; /* the lane whose value this one gets */
    uint64_t got;
};
void shuffle(void *const put[LANES], uint32_t mask);
template <class T> T shuffled(uint32_t mask, T value, int from) {
    static_assert(sizeof(T) <= 8, "a shuffle is of at most 8 bytes");
    Shuffle s = {0, from, 0};
    memcpy(&s.value, &value, sizeof value);
    meet(mask, &s, shuffle, "__shfl_sync");
    memcpy(&value, &s.got, sizeof value);
    return value;
}
inline int segment(int width) { return self->lane & ~(width - 1); }

struct Vote {
    uint64_t value;
    uint64_t ballot; /* of lanes whose value is not 0 */
    uint64_t sum, least, most, all, any, odd;
    int64_t signed_least, signed_most;
    uint32_t alike; /* lanes with this one's value */
};
void vote(void *const put[LANES], uint32_t mask);
inline Vote voted(uint32_t mask, int64_t value) {
    Vote v = {};
    v.value = (uint64_t)value;
    meet(mask, &v, vote, "a vote of the warp");
    return v;
}

void nothing(void *const put[LANES], uint32_t mask);
template <class... P> struct Call {
    static void call(const void *function, const void *arguments) {
        std::apply((void (*)(P...))function, *(const std::tuple<std::decay_t<P>...> *)arguments);
    }
};
template <class... P> Kernel kernel_of(void (*function)(P...)) { return {(const void *)function, Call<P...>::call}; }
} // namespace emulator

#ifndef EMULATOR_STATE
#define threadIdx (emulator::self->index)
#define blockIdx (emulator::block_index())
#define warpSize 32
#endif
extern dim3 gridDim, blockDim; /* of the kernel that runs */

#define EMULATOR_TEXT2(x) #x
#define EMULATOR_TEXT(x) EMULATOR_TEXT2(x)
#define EMULATOR_HERE (emulator::self->where = __FILE__ ":" EMULATOR_TEXT(__LINE__))

#define __syncthreads() (EMULATOR_HERE, emulator::sync_block())
#define __syncwarp(...)                                                                                                \
    (EMULATOR_HERE, emulator::meet(emulator::mask_or_all(__VA_ARGS__), nullptr, emulator::nothing, "__syncwarp"))
#define __shfl_sync(...) (EMULATOR_HERE, emulator::shfl(__VA_ARGS__))
#define __shfl_xor_sync(...) (EMULATOR_HERE, emulator::shfl_xor(__VA_ARGS__))
#define __shfl_up_sync(...) (EMULATOR_HERE, emulator::shfl_up(__VA_ARGS__))
#define __shfl_down_sync(...) (EMULATOR_HERE, emulator::shfl_down(__VA_ARGS__))
#define __ballot_sync(mask, value) (EMULATOR_HERE, (unsigned)emulator::voted(mask, (value) != 0).ballot)
#define __any_sync(mask, value) (EMULATOR_HERE, (int)(emulator::voted(mask, (value) != 0).ballot != 0))
#define __all_sync(mask, value) (EMULATOR_HERE, (int)(emulator::voted(mask, (value) == 0).ballot == 0))
#define __reduce_add_sync(mask, value) (EMULATOR_HERE, emulator::reduce_add(mask, value))
#define __reduce_max_sync(mask, value) (EMULATOR_HERE, emulator::reduce_max(mask, value))
#define __reduce_min_sync(mask, value) (EMULATOR_HERE, emulator::reduce_min(mask, value))
#define __reduce_or_sync(mask, value) (EMULATOR_HERE, (unsigned)emulator::voted(mask, (unsigned)(value)).any)
#define __reduce_and_sync(mask, value) (EMULATOR_HERE, (unsigned)emulator::voted(mask, (unsigned)(value)).all)
#define __reduce_xor_sync(mask, value) (EMULATOR_HERE, (unsigned)emulator::voted(mask, (unsigned)(value)).odd)
#define __match_any_sync(mask, value) (EMULATOR_HERE, emulator::voted(mask, (int64_t)(value)).alike)
#define __activemask() (~0u)

namespace emulator {
inline uint32_t mask_or_all(uint32_t mask = ~0u) { return mask; }
template <class T> T shfl(uint32_t mask, T value, int from, int width = 32) {
    return shuffled(mask, value, segment(width) + (from & (width - 1)));
}
template <class T> T shfl_xor(uint32_t mask, T value, int other, int width = 32) {
    const int from = self->lane ^ other;
    return shuffled(mask, value, from < segment(width) + width ? from : self->lane);
}
template <class T> T shfl_up(uint32_t mask, T value, unsigned by, int width = 32) {
    const int from = self->lane - (int)by;
    return shuffled(mask, value, from >= segment(width) ? from : self->lane);
}
template <class T> T shfl_down(uint32_t mask, T value, unsigned by, int width = 32) {
    const int from = self->lane + (int)by;
    return shuffled(mask, value, from < segment(width) + width ? from : self->lane);
}
inline unsigned reduce_add(uint32_t mask, unsigned value) { return (unsigned)voted(mask, value).sum; }
inline int reduce_add(uint32_t mask, int value) { return (int)voted(mask, value).sum; }
inline unsigned reduce_max(uint32_t mask, unsigned value) { return (unsigned)voted(mask, value).most; }
inline int reduce_max(uint32_t mask, int value) { return (int)voted(mask, value).signed_most; }
inline unsigned reduce_min(uint32_t mask, unsigned value) { return (unsigned)voted(mask, value).least; }
inline int reduce_min(uint32_t mask, int value) { return (int)voted(mask, value).signed_least; }
} // namespace emulator

/* ---- memory ---- */
template <class T> static inline T __ldg(const T *p) {
    emulator::aligned(p, sizeof(T));
    return *p;
}
template <class T> static inline T __ldcg(const T *p) { return __ldg(p); }
template <class T> static inline T __ldca(const T *p) { return __ldg(p); }
template <class T> static inline T __ldcs(const T *p) { return __ldg(p); }
template <class T> static inline T __ldcv(const T *p) {
    emulator::give_way();
    return __ldg((const T *)p);
}
template <class T> static inline void __stcg(T *p, T v) {
    emulator::aligned(p, sizeof(T));
    *p = v;
}
template <class T> static inline void __stcs(T *p, T v) { __stcg(p, v); }
template <class T> static inline void __stwt(T *p, T v) { __stcg(p, v); }
static inline size_t __cvta_generic_to_shared(const void *p) { return emulator::shared_address(p); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
static inline void __nanosleep(unsigned ns) { emulator::give_way(); }

/* One thread runs at a time. */
template <class T, class V> static inline T atomicAdd(T *p, V v) {
    T old = *p;
    *p = (T)(old + (T)v);
    return old;
}
template <class T, class V> static inline T atomicSub(T *p, V v) {
    T old = *p;
    *p = (T)(old - (T)v);
    return old;
}
template <class T, class V> static inline T atomicMax(T *p, V v) {
    T old = *p;
    if ((T)v > old) *p = (T)v;
    return old;
}
template <class T, class V> static inline T atomicMin(T *p, V v) {
    T old = *p;
    if ((T)v < old) *p = (T)v;
    return old;
}
template <class T, class V> static inline T atomicOr(T *p, V v) {
    T old = *p;
    *p = (T)(old | (T)v);
    return old;
}
template <class T, class V> static inline T atomicAnd(T *p, V v) {
    T old = *p;
    *p = (T)(old & (T)v);
    return old;
}
template <class T, class V> static inline T atomicExch(T *p, V v) {
    T old = *p;
    *p = (T)v;
    return old;
}
template <class T, class V, class W> static inline T atomicCAS(T *p, V expected, W v) {
    T old = *p;
    if (old == (T)expected)
        *p = (T)v;
    else
        emulator::give_way();
    return old;
}

/* ---- numbers ---- */
template <class A, class B> static constexpr inline auto min(A a, B b) {
    using T = decltype(true ? +a : +b);
    return (T)b < (T)a ? (T)b : (T)a;
}
template <class A, class B> static constexpr inline auto max(A a, B b) {
    using T = decltype(true ? +a : +b);
    return (T)a < (T)b ? (T)b : (T)a;
}
template <class To, class From> static inline To emulated_bits(From v) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &v, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float v) { return emulated_bits<unsigned>(v); }
static inline int __float_as_int(float v) { return emulated_bits<int>(v); }
static inline float __uint_as_float(unsigned v) { return emulated_bits<float>(v); }
static inline float __int_as_float(int v) { return emulated_bits<float>(v); }
static inline long long __double_as_longlong(double v) { return emulated_bits<long long>(v); }
static inline double __longlong_as_double(long long v) { return emulated_bits<double>(v); }
static inline double __hiloint2double(int high, int low) {
    return emulated_bits<double>((uint64_t)(uint32_t)high << 32 | (uint32_t)low);
}
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline unsigned __brev(unsigned v) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i);
    return r;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
    const uint64_t both = (uint64_t)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned choice = s >> 4 * i & 15;
        unsigned byte = (unsigned)(both >> 8 * (choice & 7)) & 255;
        if (choice & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << 8 * i;
    }
    return r;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((uint64_t)high << 32 | low) << (by & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (by & 31));
}
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i);
    return c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; i++) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
    return c;
}
static inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline int __mul24(int a, int b) { return (int)((unsigned)(a << 8 >> 8) * (unsigned)(b << 8 >> 8)); }
static inline unsigned __vadd4(unsigned a, unsigned b) {
    unsigned r = 0;
    for (int i = 0; i < 32; i += 8) r |= ((a >> i) + (b >> i) & 255) << i;
    return r;
}
static inline unsigned __vsub4(unsigned a, unsigned b) {
    unsigned r = 0;
    for (int i = 0; i < 32; i += 8) r |= ((a >> i) - (b >> i) & 255) << i;
    return r;
}
/* What is beyond the range becomes its end, what is not a number 0. */
static inline int emulated_int(double v) {
    return v != v ? 0 : v <= -2147483648.0 ? INT32_MIN : v >= 2147483647.0 ? INT32_MAX : (int)v;
}
static inline unsigned emulated_unsigned(double v) {
    return v != v || v <= 0 ? 0 : v >= 4294967295.0 ? UINT32_MAX : (unsigned)v;
}
static inline int __float2int_rn(float v) { return emulated_int(rint(v)); }
static inline int __float2int_rz(float v) { return emulated_int(trunc(v)); }
static inline int __float2int_rd(float v) { return emulated_int(floor(v)); }
static inline int __float2int_ru(float v) { return emulated_int(ceil(v)); }
static inline unsigned __float2uint_rn(float v) { return emulated_unsigned(rint(v)); }
static inline unsigned __float2uint_rz(float v) { return emulated_unsigned(trunc(v)); }
static inline int __double2int_rn(double v) { return emulated_int(rint(v)); }
static inline float __int2float_rn(int v) { return (float)v; }
static inline float __uint2float_rn(unsigned v) { return (float)v; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1 / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __frsqrt_rn(float a) { return (float)(1 / sqrt((double)a)); }
static inline float __fdividef(float a, float b) { return a / b; }
#define __expf expf /* libm has these names for itself */
#define __logf logf
#define __log2f log2f
#define __sinf sinf
#define __cosf cosf
#define __powf powf
static inline float __saturatef(float a) { return a > 0 ? fminf(a, 1) : 0; }
static inline float rsqrtf(float a) { return (float)(1 / sqrt((double)a)); }

/* ---- launching ---- */
template <class... P, class... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), A &&...arguments) {
    const std::tuple<std::decay_t<P>...> copies(static_cast<P>(arguments)...);
    return emulator::launch(*config, emulator::kernel_of(kernel), &copies, sizeof copies);
}
template <class... P>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute((const void *)kernel, attribute, value);
}
template <class... P>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, void (*kernel)(P...)) {
    alignas(std::tuple<std::decay_t<P>...>) static char zeros[sizeof(std::tuple<std::decay_t<P>...>)];
    const cudaError_t error = cudaFuncGetAttributes(attributes, (const void *)kernel);
    attributes->sharedSizeBytes = emulator::measure(emulator::kernel_of(kernel), zeros);
    return error;
}
