/* Loops that only multiply and add, on NEON registers: sixteen sums, as many as four pipes of four cycles need. */
#include "backend/cpu/limits/limits.h"

#define SIXTEEN(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12) F(13) F(14) F(15)
#define REGISTERS                                                                                                      \
    "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v30", "v31"

double limits_int8_neon(int64_t rounds) {
#define SDOT(i) "sdot v" #i ".4s, v30.16b, v31.16b\n"
    __asm__ volatile("movi v30.4s, #0\n movi v31.4s, #0\n" ::: REGISTERS);
    for (int64_t i = 0; i < rounds; i++) __asm__ volatile(SIXTEEN(SDOT)::: REGISTERS);
    return (double)rounds * 16 * 32;
}

double limits_f32_neon(int64_t rounds) {
#define FMLA(i) "fmla v" #i ".4s, v30.4s, v31.4s\n"
    __asm__ volatile("movi v30.4s, #0\n movi v31.4s, #0\n" ::: REGISTERS);
    for (int64_t i = 0; i < rounds; i++) __asm__ volatile(SIXTEEN(FMLA)::: REGISTERS);
    return (double)rounds * 16 * 8;
}

double limits_issue_neon(int64_t rounds) {
#define ADD(i) "add v" #i ".4s, v30.4s, v31.4s\n"
    __asm__ volatile("movi v30.4s, #0\n movi v31.4s, #0\n" ::: REGISTERS);
    for (int64_t i = 0; i < rounds; i++) __asm__ volatile(SIXTEEN(ADD)::: REGISTERS);
    return (double)rounds * 16;
}
