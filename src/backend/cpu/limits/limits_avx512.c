/* Loops that only multiply and add, or only load, on zmm registers. */
#include "backend/cpu/limits/limits.h"

#define EIGHT(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
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

double limits_issue_avx512(int64_t rounds) {
#define ADD(i) "vpaddd %%zmm15, %%zmm14, %%zmm" #i "\n"
    __asm__ volatile("vpxord %%zmm14, %%zmm14, %%zmm14\n vpxord %%zmm15, %%zmm15, %%zmm15\n" ::: ZMM);
    for (int64_t i = 0; i < rounds; i++) __asm__ volatile(TEN(ADD)::: ZMM);
    return (double)rounds * 10;
}

/* Eight lines at once: one burst of prefetches, one of loads. */
void limits_read_avx512(const uint8_t *p, size_t bytes, size_t ahead) {
#define AHEAD(i) "prefetcht0 64*" #i "(%1)\n"
#define LOAD(i) "vmovdqa64 64*" #i "(%0), %%zmm" #i "\n"
    const uint8_t *end = p + bytes / 512 * 512, *last = p + bytes;
    if (ahead)
        for (; p < end; p += 512) __asm__ volatile(EIGHT(AHEAD) EIGHT(LOAD)::"r"(p), "r"(p + ahead) : ZMM);
    else
        for (; p < end; p += 512) __asm__ volatile(EIGHT(LOAD)::"r"(p) : ZMM);
    for (; p < last; p += 64) __asm__ volatile(LOAD(0)::"r"(p) : ZMM);
}
