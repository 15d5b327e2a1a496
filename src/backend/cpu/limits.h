/* What this machine can do at most, measured now: the figures that speeds are held against. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/pool.h"

/* Reading memory once with all threads of the pool, each its own part, in bytes per second. */
double limits_read(Pool *pool, const void *memory, size_t bytes);
/* Operations per second of all threads of the pool: int8 multiplications and additions with the best instruction there
 * is (VPDPBUSD; VPMADDUBSW with 16-bit sums; SDOT), f32 likewise (FMA). 0 where nobody has written the loop. */
double limits_int8(Pool *pool);
double limits_f32(Pool *pool);

/* Loops of limits_avx2.c, limits_avx512.c and limits_neon.c: operations done. */
double limits_int8_avx2(int64_t rounds);
double limits_f32_avx2(int64_t rounds);
double limits_int8_avx512(int64_t rounds);
double limits_f32_avx512(int64_t rounds);
double limits_int8_neon(int64_t rounds);
double limits_f32_neon(int64_t rounds);
