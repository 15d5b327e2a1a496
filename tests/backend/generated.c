#include "backend/generated.h"

#include <stdio.h>
#include <stdlib.h>

enum { DECODE_ROWS_MAX = 64 };
static const float generated_gain = 1.0625f;

/* In the place of the backend's own table. */
typedef struct Generated {
    BackendOps ops;
    const BackendOps *inner;
    Step step;   /* or the part of it that is walked now, */
    int whole;   /* and generated rows of the whole */
    int count;   /* rows that were gathered; −1: none were so far, */
    int outputs; /* and so many of them are generated */
    bool inside; /* experts, which are products of other rows */
} Generated;

static Generated *decode_rows_of(Backend *backend) { return (Generated *)(uintptr_t)backend->ops; }

static void generated_check(const Generated *g, const char *what, int rows, int decode_rows) {
    const int wanted = g->step.uniform_matmul ? 0 : g->count < 0 ? g->step.decode_rows : g->outputs;
    if (g->inside || (decode_rows == wanted && rows == (g->count < 0 ? g->step.rows : g->count))) return;
    if (g->count < 0 && rows == 1 && decode_rows == (wanted > 0)) return; /* a hint's */
    fprintf(stderr, "generated: %s of %d rows, %d of them generated, in a step with %d and %d\n", what, rows,
        decode_rows, g->step.rows, g->step.decode_rows);
    abort();
}

static void generated_change(const Generated *g, float *x, int64_t count) {
    for (int64_t i = 0; !g->inside && i < count; i++) x[i] *= generated_gain;
}

static void generated_set(Generated *g, const Step *step) {
    g->step = *step;
    g->count = -1;
    if ((step->uniform_matmul || step->decode_rows <= DECODE_ROWS_MAX) && step->decode_rows <= step->rows &&
        step->decode_rows >= 0)
        return;
    fprintf(stderr, "generated: %d of %d rows\n", step->decode_rows, step->rows);
    abort();
}

static bool generated_begin(Backend *backend, const Step *step) {
    Generated *g = decode_rows_of(backend);
    generated_set(g, step);
    g->whole = step->decode_rows;
    return g->inner->begin(backend, step);
}
static void generated_set_rows(Backend *backend, const Step *rows) {
    Generated *g = decode_rows_of(backend);
    generated_set(g, rows);
    g->inner->set_rows(backend, rows);
}
static void generated_gather(
    Backend *backend, int count, const int32_t *index, const float *x, int64_t width, float *out) {
    Generated *g = decode_rows_of(backend);
    g->inner->gather(backend, count, index, x, width, out);
    g->count = count;
    g->outputs = 0;
    while (g->outputs < count && index[g->outputs] < g->whole) g->outputs++;
}

static void generated_matmul(Backend *backend, const Matmul *op) {
    Generated *g = decode_rows_of(backend);
    generated_check(g, "a product", op->rows, op->decode_rows);
    g->inner->matmul(backend, op);
    for (int i = 0; i < op->count; i++) generated_change(g, op->out[i], op->decode_rows * op->weight[i]->rows);
}
static void generated_glu(Backend *backend, const Glu *op) {
    Generated *g = decode_rows_of(backend);
    generated_check(g, "a gated product", op->rows, op->decode_rows);
    g->inner->glu(backend, op);
    generated_change(g, op->out, op->decode_rows * op->gate->rows);
}
static void generated_matmul_add(Backend *backend, const MatmulAdd *op) {
    Generated *g = decode_rows_of(backend);
    generated_check(g, "a product that is added", op->rows, op->decode_rows);
    g->inner->matmul_add(backend, op);
}
static void generated_attention(Backend *backend, const Attention *op) {
    Generated *g = decode_rows_of(backend);
    g->inner->attention(backend, op);
    generated_change(g, op->out, (int64_t)g->step.decode_rows * op->heads * op->kv.layout.value_dim);
}
static void generated_mla(Backend *backend, const Mla *op) {
    Generated *g = decode_rows_of(backend);
    generated_check(g, "latent attention", op->rows, op->decode_rows);
    g->inner->mla(backend, op); /* of operations that are seen here as well */
}
static void generated_experts(Backend *backend, const Experts *op) {
    Generated *g = decode_rows_of(backend);
    generated_check(g, "experts", op->rows, op->decode_rows);
    g->inside = true;
    g->inner->experts(backend, op);
    g->inside = false;
    if (op->stage == EXPERTS_WHOLE || op->stage == EXPERTS_COMPUTE)
        generated_change(g, op->out, op->decode_rows * op->down[0].rows);
}
static void generated_close(Backend *backend) {
    Generated *g = decode_rows_of(backend);
    backend->ops = g->inner;
    free(g);
    backend_close(backend);
}

Backend *generated_open(Backend *inner, Error *error) {
    Generated *g = calloc(1, sizeof *g);
    if (!g) abort();
    g->inner = inner->ops;
    g->ops = *inner->ops;
    g->ops.name = "generated";
    g->ops.begin = generated_begin;
    if (inner->ops->set_rows) g->ops.set_rows = generated_set_rows;
    g->ops.gather = generated_gather;
    g->ops.matmul = generated_matmul;
    g->ops.glu = generated_glu;
    g->ops.matmul_add = generated_matmul_add;
    g->ops.ffn_block = NULL;       /* the two above */
    g->ops.low_rank_matmul = NULL; /* likewise */
    g->ops.attention = generated_attention;
    g->ops.attention_block = NULL;
    g->ops.mla = generated_mla;
    g->ops.experts = generated_experts;
    g->ops.close = generated_close;
    inner->ops = &g->ops;
    inner->decode_rows_max = DECODE_ROWS_MAX;
    return inner;
}
