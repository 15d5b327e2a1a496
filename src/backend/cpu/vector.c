/* The vector backends: operations in C over a table of kernels for one instruction set. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/compressed/compressed.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/experts.h"
#include "backend/cpu/host.h"
#include "backend/cpu/recurrent/recurrent.h"
#include "backend/cpu/streams.h"

enum { SMALL_FLOATS = 1 << 15 }; /* below this an elementwise operation is not worth waking threads */

static size_t vector_kv_layer_bytes(Backend *backend, const KvLayout *layout) {
    return (size_t)layout->kv_heads * attention_head_bytes(layout);
}

static bool vector_begin(Backend *backend, const Step *step) {
    CpuBackend *cpu = cpu_backend(backend);
    cpu->step = *step;
    cpu->scratch_used = 0;
    cpu->rope_count = 0;
    return true;
}

static void vector_set_rows(Backend *backend, const Step *rows) {
    CpuBackend *cpu = cpu_backend(backend);
    cpu->step = *rows;
    cpu->rope_count = 0;
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
    const float *x, *y;
    int64_t stride; /* floats between rows of y */
    float *out;
    const Norm *norm;
    const QueryScaling *scaling;
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

static void multiply_one(const Elementwise *e, int64_t row, float *spare) {
    e->cpu->kernels->glu_row(
        e->width, e->x + row * e->width, e->y + row * e->stride, e->activation, e->out + row * e->width);
}

static void vector_multiply(Backend *backend, const Multiply *op) {
    Elementwise e = {.rows = op->rows,
        .width = op->width,
        .x = op->x,
        .y = op->y,
        .stride = op->y_stride,
        .out = op->out,
        .activation = op->activation,
        .row = multiply_one};
    run_elementwise(backend, &e);
}

static void scale_one(const Elementwise *e, int64_t row, float *spare) {
    const float factor = query_scale(e->scaling, e->cpu->step.positions[row]);
    for (int64_t i = 0; i < e->width; i++) e->out[row * e->width + i] *= factor;
}

static void vector_scale_queries(Backend *backend, int rows, int64_t width, const QueryScaling *scaling, float *x) {
    Elementwise e = {.rows = rows, .width = width, .out = x, .scaling = scaling, .row = scale_one};
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

static void vector_mix_streams(Backend *backend, const StreamMix *op) { streams_mix(cpu_backend(backend)->pool, op); }
static void vector_match_rms(Backend *backend, const MatchRms *op) {
    streams_match_rms(cpu_backend(backend)->pool, op);
}
static void vector_sparsify(Backend *backend, const Sparsify *op) { streams_sparsify(cpu_backend(backend)->pool, op); }
static void vector_gate_heads(Backend *backend, const HeadGate *op) {
    streams_gate_heads(cpu_backend(backend)->pool, op);
}

/* ---- open and close ---- */

static void vector_close(Backend *backend) {
    CpuBackend *cpu = cpu_backend(backend);
    if (cpu->own_pool) pool_close(cpu->pool);
    host_release(backend, cpu->work);
    host_release(backend, cpu->scratch);
    host_release(backend, cpu->attention);
    host_release(backend, cpu->recurrent);
    host_release(backend, cpu->turns);
    host_release(backend, cpu->ropes[0].cosines);
    free(cpu);
}

static const BackendOps vector_ops = {
    .alloc = host_alloc,
    .release = host_release,
    .decommit = host_decommit,
    .bind = host_bind,
    .unbind = host_unbind,
    .upload = host_copy,
    .download = host_copy,
    .copy = host_copy,
    .kv_layer_bytes = vector_kv_layer_bytes,
    .page_read = cpu_page_read,
    .page_write = cpu_page_write,
    .kv_quant_bytes = cpu_kv_quant_bytes,
    .kv_calibrate = cpu_kv_calibrate,
    .kv_quantise = cpu_kv_quantise,
    .begin = vector_begin,
    .set_rows = vector_set_rows,
    .submit = host_submit,
    .wait = host_wait,
    .scratch = vector_scratch,
    .read_logits = host_read_logits,
    .embed = cpu_embed,
    .norm = vector_norm,
    .matmul = cpu_matmul,
    .glu = cpu_glu,
    .matmul_add = cpu_matmul_add,
    .low_rank_matmul = cpu_low_rank_matmul,
    .attention = cpu_attention,
    .mla = cpu_mla,
    .index_select = cpu_index_select,
    .conv = cpu_conv,
    .recurrence = cpu_recurrence,
    .mamba = cpu_mamba,
    .rg_lru = cpu_rg_lru,
    .gated_norm = cpu_gated_norm,
    .route = cpu_route,
    .experts = vector_experts,
    .activate = vector_activate,
    .multiply = vector_multiply,
    .scale_queries = vector_scale_queries,
    .gather = vector_gather,
    .logits = vector_logits,
    .add = vector_add,
    .mix_streams = vector_mix_streams,
    .match_rms = vector_match_rms,
    .sparsify = vector_sparsify,
    .gate_heads = vector_gate_heads,
    .compress = cpu_compress,
    .compressed_select = cpu_compressed_select,
    .compressed_attention = cpu_compressed_attention,
    .join_groups = cpu_join_groups,
    .hyper_connect = cpu_hyper_connect,
    .close = vector_close,
};

static bool take_memory(CpuBackend *cpu, const BackendOptions *options, Error *error) {
    const int threads = pool_threads(cpu->pool);
    const size_t table = (size_t)options->rows_max * CPU_ROPE_PAIRS;
    const size_t attention = attention_shared_bytes() + (size_t)threads * attention_thread_bytes();
    Backend *backend = &cpu->base;
    cpu->scratch_count = options->scratch_bytes / sizeof(float);
    cpu->work_bytes = linear_work_bytes(options->rows_max, threads);
    if (!(cpu->work = host_alloc(backend, cpu->work_bytes, MEMORY_STEP, error)) ||
        !(cpu->scratch = host_alloc(backend, options->scratch_bytes, MEMORY_STEP, error)) ||
        !(cpu->attention = host_alloc(backend, attention, MEMORY_STEP, error)) ||
        !(cpu->recurrent = host_alloc(backend, (size_t)threads * recurrent_scratch_bytes(), MEMORY_STEP, error)) ||
        !(cpu->turns = host_alloc(backend, attention_turns_bytes(), MEMORY_STEP, error)))
        return false;
    float *tables = host_alloc(backend, 2 * CPU_ROPES * table * sizeof(float), MEMORY_STEP, error);
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
    cpu->base = (Backend){.ops = &cpu->ops, .rows_max = options->rows_max, .sources = true};
    cpu->kernels = kernels;
    cpu->precise = options->precise;
    cpu->own_pool = !options->pool;
    cpu->pool = options->pool ? options->pool : pool_open(options->threads, error);
    if (!cpu->pool || !take_memory(cpu, options, error)) {
        vector_close(&cpu->base);
        return NULL;
    }
    const int threads = pool_threads(cpu->pool);
    snprintf(cpu->base.description, sizeof cpu->base.description, "%s, int%d activations, %d thread%s",
        kernels->description, options->precise ? 16 : 8, threads, threads == 1 ? "" : "s");
    return &cpu->base;
}
