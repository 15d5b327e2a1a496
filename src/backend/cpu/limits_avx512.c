/* Loops that only multiply and add, on zmm registers. */
#include "backend/cpu/limits.h"

#define TEN(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9)
#define ZMM "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm14", "zmm15"

double limits_int8_avx512(int64_t rounds) {
#define DOT(i) "vpdpbusd %%zmm15, %%zmm14, %%zmm" #i "\n"
    __asm__ volatile("vpxord %%zmm14, %%zmm14, %%zmm14\n vpxord %%zmm15, %%zmm15, %%zmm15\n" ::: ZMM);
    for (int64_t i = 0; i < rounds; i++) __asm__ volatile(TEN(DOT)::: ZMM);
    return (double)rounds * 10 * 128;
}

double limits_f32_avx512(int64_t rounds) {
#define FMA(i) "vfmadd231ps %%zmm15, %%zmm14, %%zmm" #i "\n"
    __asm__ volatile("vpxord %%zmm14, %%zmm14, %%zmm14\n vpxord %%zmm15, %%zmm15, %%zmm15\n" ::: ZMM);
    for (int64_t i = 0; i < rounds; i++) __asm__ volatile(TEN(FMA)::: ZMM);
    return (double)rounds * 10 * 32;
}
