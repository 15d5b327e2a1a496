/* Shared by the operations of the reference backend: memory, dot products, norms. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/ref/ref_internal.h"

/* Partial sums of a dot product: vectors, without changing the order. */
enum { LANES = 16 };
typedef float Lanes __attribute__((vector_size(LANES * sizeof(float))));

float *ref_take(RefBackend *r, int64_t count) {
    float *memory = malloc((size_t)(count ? count : 1) * sizeof *memory);
    if (!memory) r->starved = true;
    return memory;
}

float ref_dot(const float *a, const float *b, int64_t count) {
    Lanes lanes = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        Lanes x, y;
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        lanes += x * y;
    }
    for (; i < count; i++) lanes[i % LANES] += a[i] * b[i];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lanes[j] += lanes[j + half];
    return lanes[0];
}

void ref_norm_row(const float *x, const Norm *norm, int64_t width, float *out) {
    double mean = 0, square = 0;
    if (norm->kind == NORM_LAYER) {
        for (int64_t i = 0; i < width; i++) mean += x[i];
        mean /= (double)width;
    }
    for (int64_t i = 0; i < width; i++) square += (x[i] - mean) * (x[i] - mean);
    const float scale = (float)(1.0 / sqrt(square / (double)width + norm->eps)), shift = (float)mean;
    for (int64_t i = 0; i < width; i++) {
        float y = (x[i] - shift) * scale;
        if (norm->weight) y *= norm->weight[i];
        if (norm->bias) y += norm->bias[i];
        out[i] = y;
    }
}
