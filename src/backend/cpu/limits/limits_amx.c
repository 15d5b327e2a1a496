/* A loop of tile products alone: 4 sums, as many as there are tiles beside two inputs for them to wait on. */
#include "backend/cpu/limits/limits.h"

#define FOUR(F) F(0) F(1) F(2) F(3)
#define ZERO(i) "tilezero %%tmm" #i "\n"
#define DOT(i) "tdpbusd %%tmm4, %%tmm5, %%tmm" #i "\n"

enum {
    ROWS = 16,
    ROW_BYTES = 64,
    TILE_OPERATIONS = 2 * ROWS * ROWS * ROW_BYTES,
    SLOWER = 8, /* a tile product takes 16 cycles: fewer rounds say as much */
};

double limits_int8_amx(int64_t rounds) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {1, 0, {0}, {64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16}};
    rounds /= SLOWER;
    __asm__ volatile("ldtilecfg %0\n" ::"m"(config));
    __asm__ volatile("tilezero %%tmm4\n tilezero %%tmm5\n" FOUR(ZERO)::);
    for (int64_t i = 0; i < rounds; i++) __asm__ volatile(FOUR(DOT)::);
    __asm__ volatile("tilerelease\n");
    return (double)rounds * 4 * TILE_OPERATIONS;
}
