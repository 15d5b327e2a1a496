/* Single operations to time, on random data: what each is, and how to run it a number of times. */
#pragma once
#include "backend/backend.h"
#include "cli/bench.h"
#include "engine/sampler.h"

enum { LINE_NAME_MAX = 64, LINES_MAX = 400, LINE_ROWS_MAX = 512 };

/* Memory and backend that all lines share. */
typedef struct Bed {
    Backend *backend;
    int threads;
    uint8_t *memory; /* weights, scales and KV pages are taken from it: bytes that are harmless as any of them */
    size_t bytes;    /* several times the last cache */
    float *x, *out, *q, *k, *v, *q_latent;
    int8_t *codes; /* quantised activations, their scales and sums */
    float *scales, *sums;
    float *logits, *flat, *draft; /* some tokens stand out; none does; a copy to be spoiled */
    int32_t *tokens, *positions, *pages;
    float *frequencies;
    SamplerScratch sampler;
} Bed;

NODISCARD bool bed_open(Bed *bed, const BenchPlan *plan, Error *error); /* the backend alone */
NODISCARD bool bed_fill(Bed *bed, Error *error);                        /* all that lines work on */
void bed_close(Bed *bed);                                               /* safe on a zeroed one */

typedef struct Line Line;
struct Line {
    char name[LINE_NAME_MAX];
    int64_t (*run)(Bed *bed, Line *line, int calls); /* nanoseconds */
    double bytes, operations;                        /* of a call; bytes: that come from memory */
    bool integer;                                    /* int8 products */
    double besides, floats; /* what the limit counts besides: int8 and f32 operations, which the same units compute */
    double instructions;    /* of vectors, at least; 0: not counted */
    /* What run needs; some of it. */
    int rows;
    Weight weight;
    int heads, kv_heads, dim, depth;
    KvCode code; /* k EXACT: pages as they were computed */
    bool latent;
    int64_t width;
    SamplingOptions sampling;
    bool flat; /* logits */
    size_t at; /* where in the memory the next call begins */
    bool stay; /* … and it stays there: in the second-level cache */
};

/* All lines whose names match; their number. */
int lines_list(const Bed *bed, const char *only, Line *lines);
