/* The codebooks of quantised pages, for numbers that are distributed as N(0,1), as integers.
 *
 * KV_Q3: the Lloyd-Max quantiser. KV_Q4: each of its cells cut once more at its own Lloyd point. Their levels are the
 * cells' means as the integers of at most 7 bits that lose least. KV_Q5, KV_Q6: the best integer levels themselves
 * (Lloyd-Max with levels on a grid: edges midway between neighbours), which a rounded Lloyd-Max would miss by 9 % with
 * 64 levels. tests/backend/kv_goldens.py computes them. */
#include "backend/kv_quant.h"

static const int8_t code3[] = {-59, -37, -21, -7, 6, 20, 36, 58};
static const int8_t code4[] = {-55, -41, -32, -25, -19, -13, -8, -3, 2, 7, 12, 18, 24, 31, 40, 54};
static const int8_t code5[] = {-122, -101, -87, -76, -67, -59, -52, -46, -40, -34, -28, -23, -18, -13, -8, -3, 2, 7, 12,
    17, 22, 27, 33, 39, 45, 51, 58, 66, 75, 86, 100, 121};
static const int8_t code6[] = {-104, -90, -81, -74, -69, -64, -60, -56, -53, -50, -47, -44, -41, -38, -35, -33, -31,
    -29, -27, -25, -23, -21, -19, -17, -15, -13, -11, -9, -7, -5, -3, -1, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24,
    26, 28, 30, 32, 34, 37, 40, 43, 46, 49, 52, 55, 59, 63, 68, 73, 80, 89, 103};
#define FOUR(n) (n), (n) + 1, (n) + 2, (n) + 3
#define SIXTEEN(n) FOUR(n), FOUR((n) + 4), FOUR((n) + 8), FOUR((n) + 12)
#define SIXTY_FOUR(n) SIXTEEN(n), SIXTEEN((n) + 16), SIXTEEN((n) + 32), SIXTEEN((n) + 48)
static const int8_t code8[] = {SIXTY_FOUR(-128), SIXTY_FOUR(-64), SIXTY_FOUR(0), SIXTY_FOUR(64)};

static const float edges3[] = {0.5005497f, 1.0499573f, 1.7479275f};
static const float edges4[] = {0.2476540f, 0.5005497f, 0.7654629f, 1.0499573f, 1.3703201f, 1.7479275f, 2.3196890f};
static const float edges5[] = {0.1340211f, 0.2680421f, 0.4020632f, 0.5360843f, 0.6701053f, 0.8175285f, 0.9783538f,
    1.1391790f, 1.3000043f, 1.4742317f, 1.6752633f, 1.9030991f, 2.1711412f, 2.5061939f, 2.9752676f};
static const float edges6[] = {0.0539714f, 0.1259332f, 0.1978950f, 0.2698568f, 0.3418187f, 0.4137805f, 0.4857423f,
    0.5577041f, 0.6296660f, 0.7016278f, 0.7735896f, 0.8455514f, 0.9175133f, 0.9894751f, 1.0614369f, 1.1333987f,
    1.2053606f, 1.2953128f, 1.4032556f, 1.5111983f, 1.6191411f, 1.7270838f, 1.8350265f, 1.9429693f, 2.0689025f,
    2.2128261f, 2.3747402f, 2.5546448f, 2.7705303f, 3.0583775f, 3.4721580f};

static const struct Codebook {
    int bits;
    const int8_t *values;
    const float *edges;
} codebooks[KV_FORMS] = {
    [KV_FULL] = {16, NULL, NULL},
    [KV_Q3] = {3, code3, edges3},
    [KV_Q4] = {4, code4, edges4},
    [KV_Q5] = {5, code5, edges5},
    [KV_Q6] = {6, code6, edges6},
    [KV_Q8] = {8, code8, NULL},
};

int kv_form_bits(KvForm form) { return codebooks[form].bits; }

const int8_t *kv_codebook(KvForm form) {
    CHECK(form != KV_FULL);
    return codebooks[form].values;
}

const float *kv_quant_edges(KvForm form) {
    CHECK(form != KV_FULL && form != KV_Q8);
    return codebooks[form].edges;
}

int kv_group_dims(int d) {
    for (int parts = 1; parts < d; parts++)
        if (d % parts == 0 && d / parts <= KV_QUANT_GROUP && d / parts % KV_QUANT_DIM == 0) return d / parts;
    return KV_QUANT_DIM;
}
