/* Measurements: the backend's kernels on random weights of the model's kinds, memory, and the disk. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/limits/limits.h"
#include "base/clock.h"
#include "base/memory.h"
#include "fit/fit.h"
#include "model/step_builder.h"

enum {
    MEMORY_BYTES = 256 << 20, /* larger than the CPU caches */
    MEMORY_PART = 4,          /* at most 1/MEMORY_PART of the free memory */
    MEMORY_LEAST = 24 << 20,  /* at least the weights of one product */
    PATTERN_BYTES = 1 << 20,
    ROW_BYTES_MAX = 16 << 20,   /* weights of a measured one-row product */
    PROMPT_BYTES_MAX = 2 << 20, /* weights of a measured prefill product, which runs from the CPU caches */
    PASS_BYTES = 64 << 20,
    CALLS_MAX = 256,
    PASSES = 5,
    ALIGN = 4096,
};

typedef struct Bench {
    const FitModel *model;
    Backend *backend;
    uint8_t *memory;
    size_t bytes, at;
    float *x, *out;
    StepBuilder step;
} Bench;

/* Bytes 0x38…0x3f and 0xb8…0xbf: as f16, bf16, E4M3, E8M0 or integers, no value is denormal, infinite or far from the
 * mean. */
static void fill(uint8_t *memory, size_t bytes) {
    uint64_t random = 88172645463325252u;
    const size_t first = bytes < PATTERN_BYTES ? bytes : PATTERN_BYTES;
    for (size_t i = 0; i < first; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        memory[i] = (uint8_t)((random & 0x87) | 0x38);
    }
    for (size_t at = first; at < bytes; at += first)
        memcpy(memory + at, memory, bytes - at < first ? bytes - at : first);
}

static size_t whole(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

/* A weight of this kind with about so many bytes. */
static Weight sized(const FitKind *kind, size_t bytes) {
    Weight w = kind->like;
    w.rows = 1;
    w.rows = (int64_t)(bytes / weight_bytes(&w)) / 64 * 64;
    if (w.rows < 64) w.rows = 64;
    return w;
}

/* Places the next product's weights in memory that was not used for the longest time. */
static Weight place(Bench *b, Weight w) {
    const size_t data = whole((size_t)w.rows * weight_row_bytes(&w)),
                 scales = whole((size_t)w.rows * weight_scale_bytes(&w));
    if (b->at + data + 2 * scales > b->bytes) b->at = 0;
    CHECK(data + 2 * scales <= b->bytes);
    uint8_t *memory = b->memory + b->at;
    b->at += data + 2 * scales;
    w.data = memory;
    if (w.quant != QUANT_NONE) w.scales = memory + data;
    if (w.quant == QUANT_AFFINE) w.biases = memory + data + scales;
    return w;
}

static double product_s(Bench *b, const Weight *shape, int rows, int calls) {
    step_begin(&b->step, false);
    step_add_sequence(&b->step, &(StepSequence){.rows = rows, .tokens = b->step.tokens});
    const Step *step = step_end(&b->step, NULL);
    CHECK(step);
    b->backend->ops->begin(b->backend, step);
    const int64_t start = clock_ns();
    for (int i = 0; i < calls; i++) {
        const Weight w = place(b, *shape);
        const Matmul op = {.rows = rows, .x = b->x, .count = 1, .weight = {&w}, .out = {b->out}};
        b->backend->ops->matmul(b->backend, &op);
    }
    return (double)(clock_ns() - start) * 1e-9 / calls;
}

/* The best of several passes: the result is kept, and other load on the machine is temporary. */
static double least_s(Bench *b, const Weight *shape, int rows, int calls) {
    double least = product_s(b, shape, rows, 1);
    for (int i = 0; i < PASSES; i++) {
        const double seconds = product_s(b, shape, rows, calls);
        least = seconds < least || i == 0 ? seconds : least;
    }
    return least;
}

static Weight run_of(const FitKind *kind, size_t most) {
    return sized(kind, kind->run_bytes < (double)most ? (size_t)kind->run_bytes : most);
}

static void measure_kind(Bench *b, int k, FitMachine *out) {
    const FitKind *kind = &b->model->kind[k];
    const Weight one = run_of(kind, ROW_BYTES_MAX), many = run_of(kind, PROMPT_BYTES_MAX);
    const int calls = (int)(PASS_BYTES / weight_bytes(&one)) + 1;
    const int rows = kind->share * FIT_PROMPT > 1 ? (int)(kind->share * FIT_PROMPT) : 1;
    out->rows[k] = (double)weight_bytes(&one) / least_s(b, &one, 1, calls < CALLS_MAX ? calls : CALLS_MAX);
    out->prompts[k] = 2.0 * rows * (double)many.rows * (double)many.cols / least_s(b, &many, rows, 1);
}

/* Floats that the largest of these products reads and writes. */
static size_t floats(const FitModel *model, bool written) {
    size_t most = 0;
    for (int k = 0; k < model->kind_count; k++) {
        const Weight one = run_of(&model->kind[k], ROW_BYTES_MAX), many = run_of(&model->kind[k], PROMPT_BYTES_MAX);
        const size_t single = (size_t)(written ? one.rows : one.cols);
        const size_t prompt = (size_t)(written ? many.rows : many.cols) * FIT_PROMPT;
        most = single > most ? single : most;
        most = prompt > most ? prompt : most;
    }
    return most;
}

static bool measure_products(Bench *b, const BackendOptions *options, FitMachine *out, Error *error) {
    BackendOptions own = *options;
    own.rows_max = FIT_PROMPT;
    own.scratch_bytes = 1 << 16;
    own.wrap = NULL;
    own.precise = options->precise || b->model->precise;
    const size_t in = floats(b->model, false);
    b->x = malloc(in * sizeof *b->x);
    b->out = malloc(floats(b->model, true) * sizeof *b->out);
    if (!b->x || !b->out)
        fail(error, ERROR_MEMORY, "no memory to measure products");
    else if (step_builder_open(&b->step, &(StepCapacity){.rows = FIT_PROMPT, .sequences = 1}, error))
        b->backend = backend_open(&own, error);
    for (size_t i = 0; b->backend && i < in; i++) b->x[i] = (float)((i * 2654435761u >> 8) % 2048) / 1024 - 1;
    for (int k = 0; b->backend && k < b->model->kind_count; k++) measure_kind(b, k, out);
    const bool ok = b->backend != NULL;
    backend_close(b->backend);
    free(b->x);
    free(b->out);
    step_builder_close(&b->step);
    return ok;
}

static bool measure_memory(const Bench *b, Pool *pool, FitMachine *out, Error *error) {
    LimitsMemory memory = {0};
    const LimitsRange range = {b->memory, b->bytes};
    const bool ok = limits_memory_open(&memory, &range, 1, error);
    if (ok) out->read = limits_read(pool, &memory).best;
    limits_memory_close(&memory);
    return ok;
}

static bool measure_all(Bench *b, const BackendOptions *options, FitMachine *out, Error *error) {
    BackendOptions own = *options; /* own threads: a shared pool may be bound to the engine that uses it */
    own.pool = pool_open(options->pool ? pool_threads(options->pool) : options->threads, error);
    if (!own.pool) return false;
    out->threads = pool_threads(own.pool);
    const bool ok = measure_memory(b, own.pool, out, error) && measure_products(b, &own, out, error);
    pool_close(own.pool);
    return ok;
}

/* A figure is missing where a read failed, or all that was tried is in the page cache, which cannot be avoided. */
static bool is_whole(const DiskProbe *disk) {
    bool whole = true;
    for (int i = 0; i < DISK_DEPTHS; i++) whole = whole && disk->rate[i] > 0;
    return whole;
}

bool fit_measure(
    const FitModel *model, const BackendOptions *backend, const char *path, FitMachine *out, Error *error) {
    *out = (FitMachine){.memory = memory_available()};
    Bench b = {.model = model, .bytes = MEMORY_BYTES};
    if (out->memory / MEMORY_PART < b.bytes) b.bytes = out->memory / MEMORY_PART / ALIGN * ALIGN;
    if (b.bytes < MEMORY_LEAST) return fail(error, ERROR_MEMORY, "no memory to measure this machine");
    b.memory = mmap(NULL, b.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b.memory == MAP_FAILED) return fail(error, ERROR_MEMORY, "no memory to measure this machine");
#ifdef MADV_HUGEPAGE
    (void)madvise(b.memory, b.bytes, MADV_HUGEPAGE); /* a wish */
#endif
    fill(b.memory, b.bytes);
    const bool ok = measure_all(&b, backend, out, error);
    munmap(b.memory, b.bytes);
    if (!ok || !model->experts) return ok;
    const int64_t bytes = (int64_t)model->expert_bytes;
    if (!disk_probe(path, EXPERT_CACHE_IO_AUTO, bytes / model->parts, bytes, &out->disk, error)) return false;
    if (!is_whole(&out->disk)) out->disk = (DiskProbe){0};
    return true;
}
