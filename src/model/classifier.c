/* The classifier of a cross-encoder, on the host: a few hundred rows for each text. */
#include <math.h>

#include "model/model_internal.h"

enum { BLOCK = K_COLS };

/* W[row] · x + bias. */
static double product(const Weight *w, int64_t row, const float *x) {
    float block[BLOCK];
    double sum = w->bias ? (double)w->bias[row] : 0;
    for (int64_t first = 0; first < w->cols; first += BLOCK) {
        const int64_t count = w->cols - first < BLOCK ? w->cols - first : BLOCK;
        weight_dequantize_row(w, row, first, count, block);
        for (int64_t i = 0; i < count; i++) sum += (double)block[i] * (double)x[first + i];
    }
    return sum;
}

/* Element i of a row. */
static double element(const Weight *w, int64_t i) {
    float block[BLOCK];
    const int64_t first = i / BLOCK * BLOCK, count = w->cols - first < BLOCK ? w->cols - first : BLOCK;
    weight_dequantize_row(w, 0, first, count, block);
    return (double)block[i - first];
}

bool model_encodes(const Model *model) { return model->spec.encoder; }

bool model_classifies(const Model *model) { return model->spec.classifier.out.rows > 0; }

float model_classify(const Model *model, const float *state) {
    const Classifier *c = &model->spec.classifier;
    double logit = c->out.bias ? (double)c->out.bias[0] : 0;
    for (int64_t i = 0; i < c->dense.rows; i++) logit += element(&c->out, i) * tanh(product(&c->dense, i, state));
    return (float)logit;
}
