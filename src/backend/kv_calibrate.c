/* Calibration of a layer over the first pages of a sequence: the effect of the quantisation noise on its scores. */
#include <math.h>

#include "backend/kv_quant.h"

/* Measured on three models: layers with more noise than these lose visibly with 4-bit keys (one format more, two
 * formats more). Keys whose offset exceeds their content by more than this factor were in no measurement. */
#define NOISE_RAISED 0.22f
#define NOISE_RAISED_TWICE 0.4f
#define OFFSET_MOST 3.0

/* d · E[error²] / (|q|² |k|²) of a score with 4-bit keys. */
#define DISTORTION_4_BITS 0.0092

static int half_of_keys(const KvLayer *layer) { return kv_quant_half(&layer->layout, KV_Q4, false).d; }

void kv_calibrate_page(
    const KvLayer *layer, int head, int position, float *x, const float *q_square, KvStatistics *sums) {
    enum { LANES = 16, BLOCKS = KV_PAGE_TOKENS / LANES };
    const int d = half_of_keys(layer);
    if (layer->k_bias && kv_bias_possible(layer->rope)) {
        const KvBias bias = {layer->rope, kv_bias_all(layer->rope), layer->k_bias + (size_t)head * (size_t)d, position};
        kv_subtract_bias(d, x, &bias);
    }
    for (int i = 0; i < d; i++) {
        double sum = 0, square = 0;
        for (int b = 0; b < BLOCKS; b++)
            for (int l = 0; l < LANES; l++) {
                const double v = x[((size_t)b * (size_t)d + (size_t)i) * LANES + (size_t)l];
                sum += v;
                square += v * v;
            }
        sums->k_whole += square;
        sums->k_square += square - sum * sum / KV_PAGE_TOKENS;
    }
    for (int t = 0; t < KV_PAGE_TOKENS; t++) sums->q_square += q_square[t];
    sums->tokens += KV_PAGE_TOKENS;
}

/* The standard deviation of a score's error with 4-bit keys; q comes scaled. */
static float noise_of(const KvStatistics *s, int d) {
    return (float)sqrt(s->q_square / s->tokens * (s->k_square / s->tokens) * DISTORTION_4_BITS / d);
}

static bool is_offset(const KvStatistics *s) { return s->k_whole > OFFSET_MOST * OFFSET_MOST * s->k_square; }

void kv_calibrate_decide(const KvCalibration *calibration, KvForm asked, int head, const KvStatistics *sums) {
    const KvLayer *layer = calibration->layer;
    const int d = half_of_keys(layer);
    KvQuant *code = calibration->code;
    const float *bias = layer->k_bias ? layer->k_bias + (size_t)head * (size_t)d : NULL;
    code->bias_pairs[head] = bias ? kv_bias_pairs(layer->rope, bias, sums->k_square / sums->tokens) : 0;
    const float noise = noise_of(sums, d);
    code->noise = head == 0 || noise > code->noise ? noise : code->noise;
    const KvForm form = calibration->raise ? kv_raised(asked, noise, is_offset(sums)) : asked;
    if (form > code->k) code->k = form;
}

KvForm kv_raised(KvForm form, float noise, bool offset) {
    const int more = noise > NOISE_RAISED_TWICE || offset ? 2 : noise > NOISE_RAISED;
    if (form >= KV_Q6) return form;
    return (int)form + more < KV_Q6 ? (KvForm)((int)form + more) : KV_Q6;
}
