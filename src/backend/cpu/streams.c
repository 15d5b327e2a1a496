#include "backend/cpu/streams.h"

#include <math.h>

enum { SMALL_FLOATS = 1 << 15 }; /* below this threads are not worth waking */

typedef struct RowJob {
    const void *op;
    int rows;
    void (*row)(const void *op, int row);
} RowJob;

static void rows_task(void *argument, int index, int count) {
    const RowJob *job = argument;
    for (int row = (int)((int64_t)job->rows * index / count); row < (int64_t)job->rows * (index + 1) / count; row++)
        job->row(job->op, row);
}

static void run_rows(Pool *pool, int rows, int64_t floats, const void *op, void (*row)(const void *, int)) {
    RowJob job = {op, rows, row};
    if (rows * floats < SMALL_FLOATS || rows == 1)
        rows_task(&job, 0, 1);
    else
        pool_run(pool, rows_task, &job);
}

static void mix_row(const void *argument, int row) {
    const StreamMix *op = argument;
    const int n = op->streams;
    float *x = op->x + row * op->width;
    for (int64_t e = 0; op->mix && e < op->width; e++) {
        const float *mix = op->mix + (int64_t)row * n * n;
        float old[STREAMS_MAX];
        for (int i = 0; i < n; i++) old[i] = x[i * op->stride + e];
        for (int i = 0; i < n; i++) {
            float sum = 0;
            for (int j = 0; j < n; j++) sum += mix[i * n + j] * old[j];
            x[i * op->stride + e] = old[i] + sum;
        }
    }
    for (int i = 0; op->gain && i < n; i++) {
        const float factor = 1 + op->gain[(int64_t)row * n + i], *y = op->y + row * op->width;
        float *to = x + i * op->stride;
        for (int64_t e = 0; e < op->width; e++) to[e] += factor * y[e];
    }
}

void streams_mix(Pool *pool, const StreamMix *op) {
    CHECK(op->streams <= STREAMS_MAX);
    run_rows(pool, op->rows, op->width * op->streams, op, mix_row);
}

static double mean_square(const float *x, int64_t width) {
    double sum = 0;
    for (int64_t e = 0; e < width; e++) sum += (double)x[e] * x[e];
    return sum / (double)width;
}

static void match_row(const void *argument, int row) {
    const MatchRms *op = argument;
    float *x = op->x + row * op->width;
    const double target = mean_square(op->target + row * op->width, op->width), own = mean_square(x, op->width);
    const float factor = (float)sqrt(target / fmax(own, op->floor));
    for (int64_t e = 0; e < op->width; e++) x[e] *= factor;
}

void streams_match_rms(Pool *pool, const MatchRms *op) { run_rows(pool, op->rows, op->width, op, match_row); }

static void sparsify_row(const void *argument, int row) {
    const Sparsify *op = argument;
    float *x = op->x + row * op->width;
    double mean = 0, square = 0;
    for (int64_t e = 0; e < op->width; e++) mean += x[e];
    mean /= (double)op->width;
    for (int64_t e = 0; e < op->width; e++) square += (x[e] - mean) * (x[e] - mean);
    const float least = (float)(mean + op->cutoff * sqrt(square / (double)op->width));
    for (int64_t e = 0; e < op->width; e++) x[e] = x[e] > least ? x[e] - least : 0;
}

void streams_sparsify(Pool *pool, const Sparsify *op) { run_rows(pool, op->rows, op->width, op, sparsify_row); }

static void gate_row(const void *argument, int row) {
    const HeadGate *op = argument;
    for (int h = 0; h < op->heads; h++) {
        const float g = op->gate[(int64_t)row * op->heads + h];
        /* ln(1 + e^g) without overflow */
        const float factor = op->softplus ? fmaxf(g, 0) + log1pf(expf(-fabsf(g))) : 1 / (1 + expf(-g));
        float *x = op->x + ((int64_t)row * op->heads + h) * op->width;
        for (int64_t e = 0; e < op->width; e++) x[e] *= factor;
    }
}

void streams_gate_heads(Pool *pool, const HeadGate *op) {
    run_rows(pool, op->rows, op->heads * op->width, op, gate_row);
}
