/* What the tests of operations share: opening every backend this machine has, random rows, and distances. */
#pragma once
#include <stdlib.h>

#include "backend/backend.h"
#include "backend/mirror.h"
#include "base/slice.h"
#include "test.h"

static const char *const vector_names[] = {"avx2", "avx512", "amx", "neon", "cuda"};
static uint64_t ops_seed = 1;

static inline bool is_device(const char *name) { return !strcmp(name, "cuda"); }

/* NULL where the machine lacks it. A device has no threads, and one precision. */
static inline Backend *open_backend(const char *name, int threads, bool precise, int rows_max) {
    const bool device = is_device(name);
    const BackendOptions options = {.device = device ? name : NULL,
        .cpu = name,
        .threads = threads,
        .precise = precise,
        .rows_max = rows_max,
        .wrap = device ? mirror_open : NULL,
        .scratch_bytes = 1 << 16};
    Error error = {0};
    if ((device && precise) || (strcmp(name, "ref") && !test_takes_backend(name))) return NULL;
    Backend *backend = backend_open(&options, &error);
    if (!backend) test_skip_backend(name);
    if (!backend && device && error.code == ERROR_UNSUPPORTED) return NULL;
    if (!backend) TEST_MSG(error.code == ERROR_USAGE && strstr(error.text, "ref"), "%s: %s", name, error.text);
    return backend;
}

/* One float more than asked for: pointers that are aligned to nothing but a float. */
static inline float *random_floats(int64_t count, float scale) {
    float *memory = malloc((size_t)(count + 1) * sizeof *memory);
    if (!memory) abort();
    for (int64_t i = 0; i <= count; i++) memory[i] = scale * test_uniform(&ops_seed);
    return memory;
}

static inline float *copy_floats(const float *from, int64_t count) {
    float *memory = malloc((size_t)(count + 1) * sizeof *memory);
    if (!memory) abort();
    memcpy(memory, from, (size_t)(count + 1) * sizeof *memory);
    return memory;
}

/* Largest |a − b| / max(1, |b|); infinite where one is NaN or infinite and the other is something else. */
static inline double distance(const float *a, const float *b, int64_t count) {
    double most = 0;
    for (int64_t i = 0; i < count; i++) {
        if (isnan(a[i]) && isnan(b[i])) continue;
        if (a[i] == b[i]) continue;
        if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
        most = fmax(most, fabs((double)a[i] - b[i]) / fmax(1, fabs(b[i])));
    }
    return most;
}

static inline bool same_bits(const float *a, const float *b, int64_t count) {
    return !memcmp(a, b, (size_t)count * sizeof *a);
}
