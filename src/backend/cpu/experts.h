/* MoE blocks in host memory: routing, and products grouped by expert, so that each
 * expert's weights are read once however many rows use it. A row's sum follows the order of its own list, so its bits
 * depend on the row alone. */
#pragma once
#include "backend/backend.h"

/* Routing as backend.h defines it, for the reference and the vector backends. */
void cpu_route(Backend *backend, const Routing *op);
/* Computes with the backend's own glu and matmul, one expert after the other. */
void cpu_experts(Backend *backend, const Experts *op);
/* The vector backends': all experts in one run of the pool, with the same bits. */
void vector_experts(Backend *backend, const Experts *op);

/* Pairs of a row and one of its experts, in the order of the experts: those of expert e are begin[e] ≤ place < begin[e
 * + 1]; place[pair] is a pair's place, row[place] its row. All arrays but begin lie in Experts.work. */
typedef struct ExpertPairs {
    int64_t hidden, inner; /* inner: of the widest expert */
    float *y, *between;    /* [pairs, hidden], [pairs, inner] results of down, of gate and up, by place */
    int32_t *place, *row;  /* [pairs] */
    int begin[EXPERTS_MAX + 2];
} ExpertPairs;
ExpertPairs expert_pairs(const Experts *op);
/* Requests (or, for EXPERTS_PREFETCH, prefetches) the experts that rows use and that have no address. True: the stage
 * ends here. */
bool expert_want(const Experts *op, const ExpertPairs *pairs);
/* True if rows use an expert that has an address already. */
static inline bool expert_is_due(const Experts *op, const ExpertPairs *pairs, int e) {
    return pairs->begin[e + 1] > pairs->begin[e] && (!op->source || op->gate[e].data);
}
/* Computes out[row]; y must be complete. */
void expert_sum(const Experts *op, const ExpertPairs *pairs, int row);
