/* Mixtures of experts in host memory: which experts a row uses, and their products grouped by expert, so that each
 * expert's weights are read once however many rows use it. A row's sum has the order of its own list, so its bits
 * depend on it alone. */
#pragma once
#include "backend/backend.h"

/* Routing as backend.h defines it; both CPU backends compute it so. */
void cpu_route(Backend *backend, const Routing *op);
/* Over the backend's own glu and matmul, one expert after the other. */
void cpu_experts(Backend *backend, const Experts *op);
/* The vector backends': all experts in one run of the pool, with the same bits. */
void vector_experts(Backend *backend, const Experts *op);

/* Pairs of a row and one of its experts, in the order of the experts: those of expert e stand at begin[e] to
 * begin[e + 1], at place[pair] each; row[place] is whose it is. All but begin lies in Experts.work. */
typedef struct ExpertPairs {
    int64_t hidden, inner; /* inner: of the widest expert */
    float *y, *between;    /* [pairs, hidden], [pairs, inner] results of down, of gate and up, by place */
    int32_t *place, *row;  /* [pairs] */
    int begin[EXPERTS_MAX + 2];
} ExpertPairs;
ExpertPairs expert_pairs(const Experts *op);
/* Begins to bring the experts that rows use and that have no address, or says that they are likely to be wanted. True:
 * that is all for now. */
bool expert_want(const Experts *op, const ExpertPairs *pairs);
/* Whether rows use an expert that is there already. */
static inline bool expert_is_due(const Experts *op, const ExpertPairs *pairs, int e) {
    return pairs->begin[e + 1] > pairs->begin[e] && (!op->source || op->gate[e].data);
}
/* out[row], once y is there. */
void expert_sum(const Experts *op, const ExpertPairs *pairs, int row);
