/* The vector backends: operations in C over a table of kernels for one instruction set. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/cpu.h"
#include "base/file.h"

enum { SMALL_FLOATS = 1 << 15 }; /* below this an elementwise operation is not worth waking threads */

/* Zeroed, page-aligned, and not backed by memory until used; then by huge pages where the system has them: prompts are
 * some 5 % faster. */
static void *map_memory(size_t bytes, Error *error) {
    void *memory =
        mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) {
#ifdef MADV_HUGEPAGE
        (void)madvise(memory, bytes, MADV_HUGEPAGE);
#endif
        return memory;
    }
    fail(error, ERROR_MEMORY, "no memory for %zu bytes", bytes);
    return NULL;
}

enum { MEMORY_PREFIX = 64 }; /* remembers the size, for release */

static void *vector_alloc(Backend *backend, size_t bytes, Error *error) {
    uint8_t *memory = map_memory(bytes + MEMORY_PREFIX, error);
    if (!memory) return NULL;
    memcpy(memory, &bytes, sizeof bytes);
    return memory + MEMORY_PREFIX;
}

static void vector_release(Backend *backend, void *memory) {
    if (!memory) return;
    size_t bytes;
    uint8_t *start = (uint8_t *)memory - MEMORY_PREFIX;
    memcpy(&bytes, start, sizeof bytes);
    munmap(start, bytes + MEMORY_PREFIX);
}

static size_t vector_kv_layer_bytes(Backend *backend, const KvLayout *layout) {
    return (size_t)layout->kv_heads * attention_head_bytes(layout);
}

static void vector_begin(Backend *backend, const Step *step) {
    CpuBackend *cpu = cpu_backend(backend);
    cpu->step = *step;
    cpu->scratch_used = 0;
    cpu->rope_count = 0;
}

static bool vector_sync(Backend *backend, Error *error) {
    return !file_any_damaged() || fail(error, ERROR_IO, "a file of the model shrank while it was in use");
}

static float *vector_scratch(Backend *backend, int64_t count) {
    CpuBackend *cpu = cpu_backend(backend);
    float *memory = cpu->scratch + cpu->scratch_used;
    cpu->scratch_used += ((size_t)count + 15) / 16 * 16;
    CHECK(cpu->scratch_used <= cpu->scratch_count);
    return memory;
}

/* ---- elementwise operations: rows of some width, shared out ---- */

typedef struct Elementwise {
    CpuBackend *cpu;
    int64_t rows, width, count;
    const float *x;
    float *out;
    const Norm *norm;
    Activation activation;
    float scale, cap;
    void (*row)(const struct Elementwise *, int64_t row, float *spare);
} Elementwise;

static void elementwise_task(void *argument, int index, int count) {
    const Elementwise *e = argument;
    float *spare =
        (float *)(void *)(e->cpu->attention + attention_shared_bytes() + (size_t)index * attention_thread_bytes());
    for (int64_t row = e->rows * index / count; row < e->rows * (index + 1) / count; row++) e->row(e, row, spare);
}

static void run_elementwise(Backend *backend, Elementwise *e) {
    e->cpu = cpu_backend(backend);
    if (e->rows * e->width < SMALL_FLOATS || e->rows == 1)
        elementwise_task(e, 0, 1);
    else
        pool_run(e->cpu->pool, elementwise_task, e);
}

static void norm_one(const Elementwise *e, int64_t row, float *spare) {
    e->cpu->kernels->norm_row(e->x + row * e->width, e->norm, e->out + row * e->width);
}

static void vector_norm(Backend *backend, int rows, const float *x, const Norm *norm, float *out) {
    Elementwise e = {.rows = rows, .width = norm->width, .x = x, .out = out, .norm = norm, .row = norm_one};
    run_elementwise(backend, &e);
}

static void add_one(const Elementwise *e, int64_t row, float *spare) {
    const float *x = e->x + row * e->width;
    float *out = e->out + row * e->width;
    if (e->norm) {
        CHECK(e->width <= NORM_WIDTH_MAX);
        e->cpu->kernels->norm_row(x, e->norm, spare);
        x = spare;
    }
    for (int64_t i = 0; i < e->width; i++) out[i] += e->scale * x[i];
}

static void vector_add(
    Backend *backend, int rows, int64_t width, float *residual, const float *y, float scale, const Norm *norm) {
    Elementwise e = {
        .rows = rows, .width = width, .x = y, .out = residual, .norm = norm, .scale = scale, .row = add_one};
    run_elementwise(backend, &e);
}

enum { BLOCK = 4096 }; /* elements per row of operations that have no rows: a multiple of 16 */

static int64_t block_length(const Elementwise *e, int64_t row) {
    return e->count - row * BLOCK < BLOCK ? e->count - row * BLOCK : BLOCK;
}

static void activate_one(const Elementwise *e, int64_t row, float *spare) {
    e->cpu->kernels->activate_row(block_length(e, row), e->x + row * BLOCK, e->activation, e->out + row * BLOCK);
}

static void vector_activate(Backend *backend, int64_t count, const float *x, Activation activation, float *out) {
    Elementwise e = {.rows = (count + BLOCK - 1) / BLOCK,
        .width = BLOCK,
        .count = count,
        .x = x,
        .out = out,
        .activation = activation,
        .row = activate_one};
    run_elementwise(backend, &e);
}

static void logits_one(const Elementwise *e, int64_t row, float *spare) {
    e->cpu->kernels->logits_row(block_length(e, row), e->out + row * BLOCK, e->scale, e->cap);
}

static void vector_logits(Backend *backend, int64_t count, float *x, float scale, float cap) {
    Elementwise e = {.rows = (count + BLOCK - 1) / BLOCK,
        .width = BLOCK,
        .count = count,
        .out = x,
        .scale = scale,
        .cap = cap,
        .row = logits_one};
    run_elementwise(backend, &e);
}

static void vector_gather(
    Backend *backend, int count, const int32_t *index, const float *x, int64_t width, float *out) {
    for (int i = 0; i < count; i++) memcpy(out + i * width, x + index[i] * width, (size_t)width * sizeof *out);
}

/* ---- open and close ---- */

static void vector_close(Backend *backend) {
    CpuBackend *cpu = cpu_backend(backend);
    pool_close(cpu->pool);
    vector_release(backend, cpu->work);
    vector_release(backend, cpu->scratch);
    vector_release(backend, cpu->attention);
    vector_release(backend, cpu->ropes[0].cosines);
    free(cpu);
}

static const BackendOps vector_ops = {
    .alloc = vector_alloc,
    .release = vector_release,
    .kv_layer_bytes = vector_kv_layer_bytes,
    .begin = vector_begin,
    .sync = vector_sync,
    .scratch = vector_scratch,
    .embed = cpu_embed,
    .norm = vector_norm,
    .matmul = cpu_matmul,
    .glu = cpu_glu,
    .matmul_add = cpu_matmul_add,
    .attention = cpu_attention,
    .activate = vector_activate,
    .gather = vector_gather,
    .logits = vector_logits,
    .add = vector_add,
    .close = vector_close,
};

static bool take_memory(CpuBackend *cpu, const BackendOptions *options, Error *error) {
    const int threads = pool_threads(cpu->pool);
    const size_t table = (size_t)options->rows_max * CPU_ROPE_PAIRS;
    cpu->work_bytes = linear_work_bytes(options->rows_max, threads);
    cpu->work = vector_alloc(&cpu->base, cpu->work_bytes, error);
    cpu->scratch_count = options->scratch_bytes / sizeof(float);
    cpu->scratch = cpu->work ? vector_alloc(&cpu->base, options->scratch_bytes, error) : NULL;
    cpu->attention = cpu->scratch
        ? vector_alloc(&cpu->base, attention_shared_bytes() + (size_t)threads * attention_thread_bytes(), error)
        : NULL;
    float *tables = cpu->attention ? vector_alloc(&cpu->base, 2 * CPU_ROPES * table * sizeof(float), error) : NULL;
    for (int i = 0; tables && i < CPU_ROPES; i++) {
        cpu->ropes[i].cosines = tables + (size_t)(2 * i) * table;
        cpu->ropes[i].sines = tables + (size_t)(2 * i + 1) * table;
    }
    return tables != NULL;
}

Backend *vector_open(const CpuKernels *kernels, const BackendOptions *options, Error *error) {
    CpuBackend *cpu = calloc(1, sizeof *cpu);
    if (!cpu) {
        fail(error, ERROR_MEMORY, "no memory for a backend");
        return NULL;
    }
    cpu->ops = vector_ops;
    cpu->ops.name = kernels->name;
    cpu->base = (Backend){.ops = &cpu->ops, .rows_max = options->rows_max};
    cpu->kernels = kernels;
    cpu->precise = options->precise;
    cpu->pool = pool_open(options->threads, error);
    if (!cpu->pool || !take_memory(cpu, options, error)) {
        vector_close(&cpu->base);
        return NULL;
    }
    const int threads = pool_threads(cpu->pool);
    snprintf(cpu->base.description, sizeof cpu->base.description, "%s, int%d activations, %d thread%s",
        kernels->description, options->precise ? 16 : 8, threads, threads == 1 ? "" : "s");
    return &cpu->base;
}
