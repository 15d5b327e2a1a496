#include "backend/cpu/hyper.h"

#include <math.h>

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

/* mix = softmax over j of the logits + eps, then columns and rows are divided by their sums in turn. */
static void make_mix(const HyperConnection *op, const float *logits, float mix[STREAMS_MAX][STREAMS_MAX]) {
    const int n = op->streams;
    const float *base = op->base + 2 * n;
    for (int i = 0; i < n; i++) {
        float most = -INFINITY, sum = 0;
        for (int j = 0; j < n; j++) mix[i][j] = logits[2 * n + n * i + j] * op->scale[2] + base[n * i + j];
        for (int j = 0; j < n; j++) most = fmaxf(most, mix[i][j]);
        for (int j = 0; j < n; j++) sum += mix[i][j] = expf(mix[i][j] - most);
        for (int j = 0; j < n; j++) mix[i][j] = mix[i][j] / sum + op->eps;
    }
    for (int turn = 0; turn < 2 * op->iterations - 1; turn++)
        for (int a = 0; a < n; a++) {
            float sum = op->eps;
            for (int b = 0; b < n; b++) sum += turn % 2 ? mix[a][b] : mix[b][a];
            for (int b = 0; b < n; b++) *(turn % 2 ? &mix[a][b] : &mix[b][a]) /= sum;
        }
}

void hyper_weights(const HyperConnection *op, int64_t row, HyperWeights *out) {
    const int n = op->streams;
    CHECK(n <= STREAMS_MAX);
    const float *logits = op->logits + row * hyper_logits(n, op->iterations, op->magnitude);
    const bool independent = op->magnitude > 0;
    const float most = independent ? op->magnitude : 2, least = independent ? op->eps : 0;
    for (int i = 0; i < n; i++) out->pre[i] = sigmoid(logits[i] * op->scale[0] + op->base[i]) + op->eps;
    if (!op->iterations && !independent) return;
    for (int j = 0; j < n; j++) out->post[j] = most * sigmoid(logits[n + j] * op->scale[1] + op->base[n + j]) + least;
    if (!independent) make_mix(op, logits, out->mix);
    for (int i = 0; independent && i < n; i++)
        for (int j = 0; j < n; j++) out->mix[i][j] = i == j;
}
