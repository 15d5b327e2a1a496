/* What a GPU does with weights like a model's: one row's products, as many as make a time worth measuring. */
#include <stdlib.h>

#include "base/clock.h"
#include "fit/fit.h"
#include "model/step_builder.h"

enum {
    WEIGHT_BYTES = 32 << 20, /* larger than what caches hold of four such */
    WEIGHTS = 4,
    MEMORY_PART = 16, /* one part in so many of what is free, at most */
    CALLS = 16,
    PASSES = 5,
    SCRATCH_BYTES = 1 << 20
};

typedef struct Bench {
    Backend *backend;
    Weight weight[WEIGHTS];
    int bound;
    float *x, *out;
    StepBuilder step;
} Bench;

/* The kind that a token goes through most bytes of. */
static const FitKind *main_kind(const FitModel *model) {
    const FitKind *main = model->kind;
    for (int k = 1; k < model->kind_count; k++)
        if (model->kind[k].bytes > main->bytes) main = &model->kind[k];
    return main;
}

/* Zeros take as long as other numbers. */
static bool bind_weights(Bench *b, const FitKind *kind, uint64_t most, Error *error) {
    Weight like = kind->like;
    like.rows = 1;
    like.rows = (int64_t)(most / weight_bytes(&like)) / 64 * 64;
    if (like.rows < 64) like.rows = 64;
    uint8_t *zeros = calloc(1, weight_bytes(&like));
    if (!zeros) return fail(error, ERROR_MEMORY, "no memory to measure a GPU");
    bool ok = true;
    while (ok && b->bound < WEIGHTS) {
        Weight *w = &b->weight[b->bound];
        *w = like;
        w->data = zeros;
        if (w->quant != QUANT_NONE) w->scales = zeros;
        if (w->quant == QUANT_AFFINE) w->biases = zeros;
        ok = b->backend->ops->bind(b->backend, w, error);
        b->bound += ok;
    }
    free(zeros);
    b->x = ok ? b->backend->ops->alloc(b->backend, (size_t)like.cols * sizeof *b->x, MEMORY_STEP, error) : NULL;
    b->out = b->x ? b->backend->ops->alloc(b->backend, (size_t)like.rows * sizeof *b->out, MEMORY_STEP, error) : NULL;
    return b->out != NULL;
}

static bool pass(Bench *b, double *seconds, Error *error) {
    const int32_t token = 0;
    const bool decode = b->backend->decode_rows_max > 0;
    const BackendOps *ops = b->backend->ops;
    const int64_t start = clock_ns();
    step_begin(&b->step, false);
    step_add_sequence(&b->step, &(StepSequence){.rows = 1, .decode = decode, .tokens = &token});
    const Step *step = step_end(&b->step, NULL);
    CHECK(step);
    (void)ops->begin(b->backend, step);
    for (int i = 0; i < CALLS; i++) {
        const Matmul op = {.rows = 1,
            .decode_rows = decode,
            .x = b->x,
            .count = 1,
            .weight = {&b->weight[i % WEIGHTS]},
            .out = {b->out}};
        ops->matmul(b->backend, &op);
    }
    const uint64_t ticket = ops->submit(b->backend);
    const bool ok = ops->wait(b->backend, ticket, error);
    *seconds = (double)(clock_ns() - start) * 1e-9;
    return ok;
}

bool fit_measure_gpu(const FitModel *model, const BackendOptions *device, FitMachine *out, Error *error) {
    BackendOptions own = *device;
    own.rows_max = 1;
    own.tensor_parallel = 0;
    own.scratch_bytes = SCRATCH_BYTES;
    const uint64_t part = out->gpu_memory / MEMORY_PART / WEIGHTS;
    Bench b = {.backend = backend_open(&own, error)};
    double least = 0, seconds;
    bool ok = b.backend && step_builder_open(&b.step, &(StepCapacity){.rows = 1, .sequences = 1}, error) &&
        bind_weights(&b, main_kind(model), part < WEIGHT_BYTES ? part : WEIGHT_BYTES, error);
    for (int i = 0; ok && i < PASSES; i++) {
        ok = pass(&b, &seconds, error);
        least = i == 0 || seconds < least ? seconds : least;
    }
    if (ok) out->gpu_rows = (double)weight_bytes(&b.weight[0]) * CALLS / least;
    while (b.bound > 0) b.backend->ops->unbind(b.backend, &b.weight[--b.bound]);
    if (b.backend) b.backend->ops->release(b.backend, b.x);
    if (b.backend) b.backend->ops->release(b.backend, b.out);
    step_builder_close(&b.step);
    backend_close(b.backend);
    return ok;
}
