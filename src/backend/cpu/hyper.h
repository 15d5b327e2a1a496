/* Weights of hyper-connections, for the reference and the vector backends: a few numbers of each row. */
#pragma once
#include "backend/compressed.h"

/* pre, post and mix of a row (HyperConnection). post and mix: undefined where there are logits of pre alone. */
typedef struct HyperWeights {
    float pre[STREAMS_MAX], post[STREAMS_MAX], mix[STREAMS_MAX][STREAMS_MAX];
} HyperWeights;
void hyper_weights(const HyperConnection *op, int64_t row, HyperWeights *out);
