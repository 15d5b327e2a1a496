/* MoE blocks in host memory: routing, and products grouped by expert, so that each
 * expert's weights are read once however many rows use it. A row's sum follows the order of its own list, so its bits
 * depend on the row alone. */
#pragma once
#include "backend/backend.h"

/* Routing as backend.h defines it, for the reference and the vector backends. */
void cpu_route(Backend *backend, const Routing *op);
/* The experts operation of the reference: one expert after the other, with the backend's own glu and matmul. */
void cpu_experts(Backend *backend, const Experts *op);
/* The same of the vector backends: many experts in one run of the pool, with the same bits. */
void vector_experts(Backend *backend, const Experts *op);

/* Pairs of a row and one of its experts, in the order of the experts: those of expert e are begin[e] ≤ place < begin[e
 * + 1]; place[pair] is a pair's place, row[place] its row. All arrays but begin lie in Experts.work. */
typedef struct ExpertPairs {
    int64_t hidden, inner; /* inner: of the widest expert */
    float *y, *between;    /* [pairs, hidden], [pairs, inner] results of down, of gate and up, by place */
    int32_t *place, *row;  /* [pairs]; the place of an identity: −1 */
    int begin[EXPERTS_MAX + 2];
} ExpertPairs;

/* How a backend computes experts; the beginning of a struct of its own. */
typedef struct ExpertsDriver ExpertsDriver;
typedef struct ExpertWeights {
    int expert;
    const Weight *gate, *up, *down; /* borrowed until flush() */
} ExpertWeights;
struct ExpertsDriver {
    const Experts *op; /* set by experts_run(), as is pairs */
    ExpertPairs pairs;
    int batch; /* loaded experts are added up to so many at a time, 1 to EXPERTS_BATCH_MAX, and then computed */
    /* Takes an expert with rows: computes it, or notes it until flush(). */
    void (*add)(ExpertsDriver *driver, const ExpertWeights *weights);
    void (*flush)(ExpertsDriver *driver); /* computes what was noted; NULL: add() computes */
    void (*sum)(ExpertsDriver *driver);   /* expert_sum() of every row */
};
enum { EXPERTS_BATCH_MAX = 64 };

/* The operation and all its stages: the experts that have an address first, then the others as they are loaded. */
void experts_run(ExpertsDriver *driver, const Experts *op);
/* Experts.weigh_inputs: writes the expert's input of the pairs [first, first + rows), all of one expert, to y. */
void expert_weigh_inputs(const Experts *op, const ExpertPairs *pairs, int expert, int first, int rows);
/* Computes out[row]; y must be complete. */
void expert_sum(const Experts *op, const ExpertPairs *pairs, int row);
