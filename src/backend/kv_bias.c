/* The bias of keys after RoPE: the pairs that a page mean leaves behind, and the bias at a position. */
#include <math.h>
#include <string.h>

#include "backend/kv_quant.h"

enum { LANES = 16 };

/* Largest rest of a bias in keys, as a share of their own energy. */
#define BIAS_REST 0.05

bool kv_bias_possible(const Rope *rope) {
    return rope && rope->dynamic.positions == 0 && rope->mrope_section[0] == 0 && rope->mrope_section[1] == 0 &&
        rope->mrope_section[2] == 0;
}

static int bias_pair_count(const Rope *rope) {
    return rope->dims / 2 < KV_QUANT_BIAS_PAIRS ? rope->dims / 2 : KV_QUANT_BIAS_PAIRS;
}

/* The two elements of a head that form RoPE pair i. */
static int first_of(const Rope *rope, int i) { return rope->interleaved ? 2 * i : i; }
static int second_of(const Rope *rope, int i) { return rope->interleaved ? 2 * i + 1 : i + rope->dims / 2; }

KvRotation kv_bias_rotation(const Rope *rope, int pair, int position) {
    const float angle = (float)position * rope->frequencies[pair];
    return (KvRotation){cosf(angle), sinf(angle)};
}

KvRotation kv_rotation_compose(KvRotation a, KvRotation b) {
    return (KvRotation){a.cosine * b.cosine - a.sine * b.sine, a.sine * b.cosine + a.cosine * b.sine};
}

/* A pair of the bias after a rotation, times Rope.scale. */
typedef struct Pair {
    float first, second;
} Pair;

static Pair rotated(const KvBias *bias, int i, KvRotation turn) {
    const float a = bias->bias[first_of(bias->rope, i)] * bias->rope->scale;
    const float b = bias->bias[second_of(bias->rope, i)] * bias->rope->scale;
    return (Pair){a * turn.cosine - b * turn.sine, a * turn.sine + b * turn.cosine};
}

void kv_bias_at(const KvBias *bias, int d, int t, float *out) {
    memset(out, 0, (size_t)d * sizeof *out);
    for (int i = 0; i < KV_QUANT_BIAS_PAIRS; i++) {
        if (!(bias->pairs >> i & 1)) continue;
        const KvRotation start = kv_bias_rotation(bias->rope, i, bias->position);
        const Pair pair = rotated(bias, i, kv_rotation_compose(start, kv_bias_rotation(bias->rope, i, t)));
        out[first_of(bias->rope, i)] = pair.first;
        out[second_of(bias->rope, i)] = pair.second;
    }
}

void kv_subtract_bias(int d, float *x, const KvBias *bias) {
    for (int i = 0; i < KV_QUANT_BIAS_PAIRS; i++) {
        if (!(bias->pairs >> i & 1)) continue;
        const KvRotation start = kv_bias_rotation(bias->rope, i, bias->position);
        for (int t = 0; t < KV_PAGE_TOKENS; t++) {
            const Pair pair = rotated(bias, i, kv_rotation_compose(start, kv_bias_rotation(bias->rope, i, t)));
            float *column = x + (size_t)(t / LANES) * (size_t)d * LANES + t % LANES;
            column[first_of(bias->rope, i) * LANES] -= pair.first;
            column[second_of(bias->rope, i) * LANES] -= pair.second;
        }
    }
}

/* Share of a rotating vector's energy that is not in the mean of a page's tokens. */
static double left_by_mean(double frequency) {
    const double half = sin(frequency / 2);
    if (fabs(half) < 1e-9) return 0;
    const double mean = sin(frequency * KV_PAGE_TOKENS / 2) / (KV_PAGE_TOKENS * half);
    return 1 - mean * mean;
}

uint64_t kv_bias_pairs(const Rope *rope, const float *bias, double content_square) {
    if (!kv_bias_possible(rope)) return 0;
    double energy[KV_QUANT_BIAS_PAIRS], rest = 0;
    const int count = bias_pair_count(rope);
    for (int i = 0; i < count; i++) {
        const double a = (double)bias[first_of(rope, i)] * rope->scale;
        const double b = (double)bias[second_of(rope, i)] * rope->scale;
        energy[i] = (a * a + b * b) * left_by_mean(rope->frequencies[i]);
        rest += energy[i];
    }
    uint64_t pairs = 0;
    while (rest > BIAS_REST * content_square) {
        int most = -1;
        for (int i = 0; i < count; i++)
            if (!(pairs >> i & 1) && energy[i] > 0 && (most < 0 || energy[i] > energy[most])) most = i;
        if (most < 0) break;
        pairs |= UINT64_C(1) << most;
        rest -= energy[most];
    }
    return pairs;
}

uint64_t kv_bias_all(const Rope *rope) {
    const int count = bias_pair_count(rope);
    return count == KV_QUANT_BIAS_PAIRS ? UINT64_MAX : (UINT64_C(1) << count) - 1;
}
