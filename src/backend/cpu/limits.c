/* Measured limits: each is one run of the pool, all threads starting together, taken as the time of the slowest. */
#include "backend/cpu/limits.h"

#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/clock.h"

enum { PEAK_ROUNDS = 2000000 };

typedef struct Read {
    const uint8_t *memory;
    size_t bytes;
    uint64_t sums[POOL_THREADS_MAX];
} Read;

static void read_part(void *argument, int index, int count) {
    Read *read = argument;
    const size_t step = 256, steps = read->bytes / step;
    const uint8_t *p = read->memory + steps * (size_t)index / (size_t)count * step;
    const uint8_t *end = read->memory + steps * (size_t)(index + 1) / (size_t)count * step;
    uint64_t sum[32] = {0};
    for (; p < end; p += step) {
        uint64_t v[32];
        memcpy(v, p, sizeof v);
        for (int i = 0; i < 32; i++) sum[i] ^= v[i];
    }
    for (int i = 1; i < 32; i++) sum[0] ^= sum[i];
    read->sums[index] = sum[0];
}

double limits_read(Pool *pool, const void *memory, size_t bytes) {
    static Read read; /* kept, so that the sums are results */
    read.memory = memory;
    read.bytes = bytes;
    int64_t start = clock_ns();
    pool_run(pool, read_part, &read);
    return (double)bytes / ((double)(clock_ns() - start) * 1e-9);
}

typedef struct Peak {
    double (*loop)(int64_t rounds);
    Pool *pool;
    double operations[POOL_THREADS_MAX];
} Peak;

static void peak_part(void *argument, int index, int count) {
    Peak *peak = argument;
    peak->operations[index] = peak->loop(PEAK_ROUNDS);
}

static double measure_peak(Pool *pool, double (*loop)(int64_t)) {
    Peak peak = {.loop = loop};
    double best = 0;
    for (int round = 0; round < 3; round++) {
        int64_t start = clock_ns();
        pool_run(pool, peak_part, &peak);
        double seconds = (double)(clock_ns() - start) * 1e-9, all = 0;
        for (int i = 0; i < pool_threads(pool); i++) all += peak.operations[i];
        if (all / seconds > best) best = all / seconds;
    }
    return best;
}

double limits_int8(Pool *pool) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vnni")) return measure_peak(pool, limits_int8_avx512);
    if (__builtin_cpu_supports("avx2")) return measure_peak(pool, limits_int8_avx2);
#elif defined(__aarch64__)
    if (neon_available()) return measure_peak(pool, limits_int8_neon);
#endif
    return 0;
}

double limits_f32(Pool *pool) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return measure_peak(pool, limits_f32_avx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return measure_peak(pool, limits_f32_avx2);
#elif defined(__aarch64__)
    return measure_peak(pool, limits_f32_neon);
#endif
    return 0;
}
