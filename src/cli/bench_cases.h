/* Single operations to time, on random data: what each is, and how to run it a number of times. */
#pragma once
#include "backend/recurrent.h"
#include "cli/bench.h"
#include "engine/sampler.h"
#include "model/step_builder.h"

enum { LINE_NAME_MAX = 64, LINES_MAX = 420, LINE_ROWS_MAX = 512 };

/* Memory and backend that all lines share. */
typedef struct BenchFixture {
    Backend *backend;
    int threads;
    uint8_t *memory; /* weights, scales and KV pages are taken from it: bytes that are harmless as any of them */
    size_t bytes;    /* several times the last cache */
    float *x, *out, *q, *k, *v, *q_latent;
    int8_t *codes; /* quantised activations, their scales and sums */
    float *scales, *sums;
    float *logits, *flat, *draft; /* some tokens stand out; none does; a copy to be spoiled */
    int32_t *tokens, *pages;
    StepBuilder step;
    float *frequencies;
    SamplerScratch sampler;
} BenchFixture;

NODISCARD bool bench_fixture_open(BenchFixture *fixture, const BenchPlan *plan, Error *error); /* the backend alone */
NODISCARD bool bench_fixture_fill(BenchFixture *fixture, Error *error); /* all that lines work on */
void bench_fixture_close(BenchFixture *fixture);                        /* safe on a zeroed one */

typedef struct BenchCase BenchCase;
struct BenchCase {
    char name[LINE_NAME_MAX];
    int64_t (*run)(BenchFixture *fixture, BenchCase *bench_case, int calls); /* nanoseconds */
    double bytes, operations;                                                /* per call; bytes: read from memory */
    bool integer;                                                            /* int8 products */
    double besides, floats; /* what the limit counts besides: int8 and f32 operations, which the same units compute */
    double instructions;    /* vector instructions per call, lower bound; 0: not counted */
    /* What run needs; some of it. */
    int rows;
    Weight weight;
    int heads, kv_heads, dim, depth;
    KvQuant code; /* k KV_FULL: full-precision pages */
    bool latent;
    int64_t width;
    Recurrence recurrence; /* its kind and shape */
    SamplingOptions sampling;
    bool flat; /* logits */
    size_t at; /* where in the memory the next call begins */
    bool stay; /* … and it stays there: in the second-level cache */
};

/* All lines whose names match; their number. */
int bench_cases_list(const BenchFixture *fixture, const char *only, BenchCase *bench_cases);
