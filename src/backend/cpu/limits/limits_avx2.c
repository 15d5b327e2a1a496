/* Loops that only multiply and add, or only load, on ymm registers. */
#include "backend/cpu/limits/limits.h"

#define EIGHT(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
#define TEN(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9)
#define YMM "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm13", "ymm14", "ymm15"

double limits_int8_avx2(int64_t rounds) {
#define MADD(i) "vpmaddubsw %%ymm15, %%ymm14, %%ymm13\n vpaddw %%ymm13, %%ymm" #i ", %%ymm" #i "\n"
    __asm__ volatile("vpxor %%ymm14, %%ymm14, %%ymm14\n vpxor %%ymm15, %%ymm15, %%ymm15\n" ::: YMM);
    for (int64_t i = 0; i < rounds; i++) __asm__ volatile(TEN(MADD)::: YMM);
    return (double)rounds * 10 * 64;
}

double limits_f32_avx2(int64_t rounds) {
#define FMA(i) "vfmadd231ps %%ymm15, %%ymm14, %%ymm" #i "\n"
    __asm__ volatile("vpxor %%ymm14, %%ymm14, %%ymm14\n vpxor %%ymm15, %%ymm15, %%ymm15\n" ::: YMM);
    for (int64_t i = 0; i < rounds; i++) __asm__ volatile(TEN(FMA)::: YMM);
    return (double)rounds * 10 * 16;
}

double limits_issue_avx2(int64_t rounds) {
#define ADD(i) "vpaddd %%ymm15, %%ymm14, %%ymm" #i "\n"
    __asm__ volatile("vpxor %%ymm14, %%ymm14, %%ymm14\n vpxor %%ymm15, %%ymm15, %%ymm15\n" ::: YMM);
    for (int64_t i = 0; i < rounds; i++) __asm__ volatile(TEN(ADD)::: YMM);
    return (double)rounds * 10;
}

/* Eight lines at once: one burst of prefetches, one of loads. */
void limits_read_avx2(const uint8_t *p, size_t bytes, size_t ahead) {
#define AHEAD(i) "prefetcht0 64*" #i "(%1)\n"
#define LOAD(i) "vmovdqa 64*" #i "(%0), %%ymm" #i "\n vmovdqa 32+64*" #i "(%0), %%ymm" #i "\n"
    const uint8_t *end = p + bytes / 512 * 512, *last = p + bytes;
    if (ahead)
        for (; p < end; p += 512) __asm__ volatile(EIGHT(AHEAD) EIGHT(LOAD)::"r"(p), "r"(p + ahead) : YMM);
    else
        for (; p < end; p += 512) __asm__ volatile(EIGHT(LOAD)::"r"(p) : YMM);
    for (; p < last; p += 64) __asm__ volatile(LOAD(0)::"r"(p) : YMM);
}
