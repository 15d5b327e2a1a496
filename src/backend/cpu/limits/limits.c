/* Measured limits: each is one run of the pool, all threads starting together, taken as the time of the slowest. */
#include "backend/cpu/limits/limits.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/clock.h"

enum {
    PEAK_ROUNDS = 2000000,
    PEAK_RUNS = 5,
    LINE = 64,
    PIECE_BYTES = 512 << 10,
    FORMS = 2, /* plain, and prefetching */
    AHEAD_BYTES = 4096,
    PASSES = 5,
    PASS_NS = 20000000, /* long enough to hide waking and collecting the threads */
};

/* ---- reading ---- */

static int by_address(const void *a, const void *b) {
    const uintptr_t x = (uintptr_t)((const LimitsRange *)a)->data, y = (uintptr_t)((const LimitsRange *)b)->data;
    return (x > y) - (x < y);
}

/* Appends the whole lines of a range. With memory->pieces NULL only counts. */
static void add_pieces(LimitsMemory *memory, const LimitsRange *range) {
    const uintptr_t end = ((uintptr_t)range->data + range->bytes) / LINE * LINE;
    for (uintptr_t at = ((uintptr_t)range->data + LINE - 1) / LINE * LINE; at < end; at += PIECE_BYTES) {
        const size_t bytes = end - at < PIECE_BYTES ? end - at : PIECE_BYTES;
        if (memory->pieces) {
            memory->pieces[memory->count] = (LimitsRange){(const void *)at, bytes};
            memory->bytes += bytes;
        }
        memory->count++;
    }
}

bool limits_memory_open(LimitsMemory *memory, const LimitsRange *ranges, int64_t count, Error *error) {
    *memory = (LimitsMemory){0};
    LimitsRange *sorted = malloc((size_t)(count ? count : 1) * sizeof *sorted);
    if (!sorted) return fail(error, ERROR_MEMORY, "no memory to measure the read limit");
    memcpy(sorted, ranges, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_address);
    for (int64_t i = 0; i < count; i++) add_pieces(memory, &sorted[i]);
    memory->pieces = malloc((size_t)(memory->count ? memory->count : 1) * sizeof *memory->pieces);
    memory->count = 0;
    for (int64_t i = 0; memory->pieces && i < count; i++) add_pieces(memory, &sorted[i]);
    free(sorted);
    return memory->pieces || fail(error, ERROR_MEMORY, "no memory to measure the read limit");
}

void limits_memory_close(LimitsMemory *memory) {
    free(memory->pieces);
    *memory = (LimitsMemory){0};
}

static void read_plainly(const uint8_t *p, size_t bytes, size_t ahead) {
    for (const uint8_t *end = p + bytes; p < end; p += LINE) {
        uint64_t v[LINE / 8];
        if (ahead) __builtin_prefetch(p + ahead);
        memcpy(v, p, sizeof v);
        __asm__ volatile("" ::"m"(v));
    }
}

typedef void ReadLoop(const uint8_t *p, size_t bytes, size_t ahead);

static ReadLoop *choose_loop(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return limits_read_avx512;
    if (__builtin_cpu_supports("avx2")) return limits_read_avx2;
#endif
    return read_plainly;
}

typedef struct Reading {
    Pool *pool;
    const LimitsMemory *memory;
    int64_t own, repeats; /* pieces of a thread, how often each is read in a pass */
    ReadLoop *loop;
    size_t ahead;
} Reading;

/* A thread reads its own pieces repeatedly; a helping thread takes the next of the owner's pieces. */
static void read_part(void *argument, int index, int count) {
    const Reading *r = argument;
    for (int64_t item, items; pool_next(r->pool, 0, index, 1, &item, &items);) {
        const int64_t piece = item / (r->own * r->repeats) * r->own + item % r->own;
        if (piece >= r->memory->count) continue;
        const LimitsRange *range = &r->memory->pieces[piece];
        r->loop(range->data, range->bytes, r->ahead);
    }
}

static int64_t read_pass(Reading *r) {
    pool_share(r->pool, 0, r->own * r->repeats * pool_threads(r->pool));
    const int64_t start = clock_ns();
    pool_run(r->pool, read_part, r);
    return clock_ns() - start;
}

static int ascending(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

LimitsRead limits_read(Pool *pool, const LimitsMemory *memory) {
    static const size_t ahead[FORMS] = {0, AHEAD_BYTES};
    double speed[FORMS][PASSES];
    const int threads = pool_threads(pool);
    if (!memory->count) return (LimitsRead){0, 0};
    Reading r = {pool, memory, (memory->count + threads - 1) / threads, 1, choose_loop(), 0};
    r.repeats = PASS_NS / (read_pass(&r) + 1) + 1;
    for (int pass = 0; pass < PASSES; pass++) {
        for (int form = 0; form < FORMS; form++) {
            r.ahead = ahead[form];
            speed[form][pass] = (double)memory->bytes * (double)r.repeats / ((double)read_pass(&r) * 1e-9);
        }
    }
    LimitsRead result = {0, 0};
    for (int form = 0; form < FORMS; form++) {
        qsort(speed[form], PASSES, sizeof *speed[form], ascending);
        if (speed[form][PASSES / 2] > result.median) result.median = speed[form][PASSES / 2];
        if (speed[form][PASSES - 1] > result.best) result.best = speed[form][PASSES - 1];
    }
    return result;
}

/* ---- computing ---- */

typedef struct Peak {
    double (*loop)(int64_t rounds);
    double operations[POOL_THREADS_MAX];
} Peak;

static void peak_part(void *argument, int index, int count) {
    Peak *peak = argument;
    peak->operations[index] = peak->loop(PEAK_ROUNDS);
}

static double measure_peak(Pool *pool, double (*loop)(int64_t)) {
    Peak peak = {.loop = loop};
    double best = 0;
    for (int run = 0; run < PEAK_RUNS; run++) {
        int64_t start = clock_ns();
        pool_run(pool, peak_part, &peak);
        double seconds = (double)(clock_ns() - start) * 1e-9, all = 0;
        for (int i = 0; i < pool_threads(pool); i++) all += peak.operations[i];
        if (all / seconds > best) best = all / seconds;
    }
    return best;
}

double limits_int8(Pool *pool, const char *isa) {
#if defined(__x86_64__)
    const bool narrow = !strcmp(isa, "avx2");
    if (!strcmp(isa, "amx")) return measure_peak(pool, limits_int8_amx);
    if (!narrow && __builtin_cpu_supports("avx512vnni")) return measure_peak(pool, limits_int8_avx512);
    if (__builtin_cpu_supports("avx2")) return measure_peak(pool, limits_int8_avx2);
#elif defined(__aarch64__)
    if (neon_available()) return measure_peak(pool, limits_int8_neon);
#endif
    return 0;
}

double limits_f32(Pool *pool, const char *isa) {
#if defined(__x86_64__)
    const bool narrow = !strcmp(isa, "avx2");
    if (!narrow && __builtin_cpu_supports("avx512f")) return measure_peak(pool, limits_f32_avx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return measure_peak(pool, limits_f32_avx2);
#elif defined(__aarch64__)
    return measure_peak(pool, limits_f32_neon);
#endif
    return 0;
}

double limits_issue(Pool *pool, const char *isa) {
#if defined(__x86_64__)
    const bool narrow = !strcmp(isa, "avx2");
    if (!narrow && __builtin_cpu_supports("avx512f")) return measure_peak(pool, limits_issue_avx512);
    if (__builtin_cpu_supports("avx2")) return measure_peak(pool, limits_issue_avx2);
#elif defined(__aarch64__)
    return measure_peak(pool, limits_issue_neon);
#endif
    return 0;
}
