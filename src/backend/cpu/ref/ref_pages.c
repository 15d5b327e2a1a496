/* Pages of the reference backend: f32 in order of tokens; and quantised pages. */
#include <string.h>

#include "backend/cpu/ref/ref_internal.h"
#include "backend/kv_quant.h"

size_t ref_head_floats(const KvLayout *l) { return KV_PAGE_TOKENS * (size_t)(l->head_dim + l->value_dim + 1); }

size_t ref_kv_layer_bytes(Backend *backend, const KvLayout *layout) {
    return (size_t)layout->kv_heads * ref_head_floats(layout) * sizeof(float);
}

float *ref_head(const KvLayer *kv, int32_t page, int head) {
    CHECK(page >= 0);
    float *memory = (float *)(void *)(kv->base + (size_t)page * kv->page_stride + kv->layer_offset);
    return memory + (size_t)head * ref_head_floats(&kv->layout);
}

float *ref_energies(const KvLayer *kv, int32_t page, int head) {
    return ref_head(kv, page, head) + KV_PAGE_TOKENS * (size_t)(kv->layout.head_dim + kv->layout.value_dim);
}

static float *values_of(const KvLayer *kv, float *head) { return head + KV_PAGE_TOKENS * (size_t)kv->layout.head_dim; }

/* ---- canonical order ---- */

/* A page's elements of one kind in canonical order, one head of a token after another. */
static void transfer(
    float *page, uint8_t *canonical, int tokens, int head, int heads, int width, DType dtype, bool in) {
    for (int t = 0; t < tokens; t++) {
        uint8_t *at = canonical + ((size_t)t * (size_t)heads + (size_t)head) * (size_t)width * dtype_bytes(dtype);
        if (in)
            floats_to_f32(page + (size_t)t * (size_t)width, at, dtype, width);
        else
            floats_from_f32(at, dtype, page + (size_t)t * (size_t)width, width);
    }
}

static void transfer_page(const KvLayer *layer, int32_t page, int tokens, uint8_t *canonical, bool in) {
    const KvLayout *l = &layer->layout;
    const size_t keys = (size_t)tokens * (size_t)l->kv_heads * (size_t)l->head_dim * dtype_bytes(l->dtype);
    const size_t values = (size_t)tokens * (size_t)l->kv_heads * (size_t)l->value_dim * dtype_bytes(l->dtype);
    for (int h = 0; h < l->kv_heads; h++) {
        float *k = ref_head(layer, page, h), *v = k + (size_t)KV_PAGE_TOKENS * (size_t)l->head_dim;
        transfer(k, canonical, tokens, h, l->kv_heads, l->head_dim, l->dtype, in);
        transfer(v, canonical + keys, tokens, h, l->kv_heads, l->value_dim, l->dtype, in);
        transfer(ref_energies(layer, page, h), canonical + keys + values, tokens, h, l->kv_heads, 1, DTYPE_F32, in);
    }
}

bool ref_page_read(Backend *backend, const KvLayer *layer, int32_t page, int tokens, void *out) {
    if (layer->layout.kv_heads == 0)
        memcpy(out, recurrent_page(layer, page), kv_canonical_bytes(&layer->layout, tokens));
    transfer_page(layer, page, tokens, out, false);
    return true;
}

bool ref_page_write(Backend *backend, const KvLayer *layer, int32_t page, int tokens, const void *from) {
    if (layer->layout.kv_heads == 0)
        memcpy(recurrent_page(layer, page), from, kv_canonical_bytes(&layer->layout, tokens));
    transfer_page(layer, page, tokens, (uint8_t *)from, true);
    return true;
}

/* ---- quantised pages ---- */

size_t ref_kv_quant_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values) {
    return kv_quant_bytes(layout, form, values);
}

/* Reorders tokens [128][d] to the order of quantisation, [8][d][16], or back. */
static void block_tokens(const float *tokens, int d, float *blocks) {
    for (int t = 0; t < KV_PAGE_TOKENS; t++)
        for (int i = 0; i < d; i++) blocks[(t / 16 * d + i) * 16 + t % 16] = tokens[t * d + i];
}

/* Loads the source of one half of a quantised head, in the order of quantisation. */
static void load_half(const KvLayer *layer, int32_t page, int head, bool values, float *x) {
    const KvHalf half = kv_quant_half(&layer->layout, KV_Q4, values);
    float *memory = ref_head(layer, page, head);
    block_tokens(half.from_values ? values_of(layer, memory) : memory, half.d, x);
}

void ref_kv_calibrate(Backend *backend, int count, const KvCalibration *calibrations) {
    float *x = ref_backend(backend)->page;
    for (int i = 0; i < count; i++) {
        const KvLayer *layer = calibrations[i].layer;
        const KvForm asked = calibrations[i].code->k;
        for (int h = 0; h < layer->layout.kv_heads; h++) {
            KvStatistics sums = {0};
            for (int page = 0; page < calibrations[i].tokens / KV_PAGE_TOKENS; page++) {
                load_half(layer, calibrations[i].table[page], h, false, x);
                const float *energies = ref_energies(layer, calibrations[i].table[page], h);
                kv_calibrate_page(layer, h, page * KV_PAGE_TOKENS, x, energies, &sums);
            }
            kv_calibrate_decide(&calibrations[i], asked, h, &sums);
        }
    }
}

void ref_kv_quantise(Backend *backend, int count, const KvQuantise *pages) {
    float *x = ref_backend(backend)->page;
    for (int i = 0; i < count; i++)
        for (int item = 0; item < 2 * pages[i].layer->layout.kv_heads; item++) {
            load_half(pages[i].layer, pages[i].from, item / 2, item % 2, x);
            kv_quantise_half(&pages[i], item / 2, item % 2, x);
        }
}

static void decode_half(const KvLayer *kv, KvForm form, bool values, int32_t page, int head, float *out) {
    const KvHalf half = kv_quant_half(&kv->layout, form, values);
    if (half.from_values) out = values_of(kv, out);
    kv_decode(half.d, half.form, half.values, kv_quant_head(kv, form, values, page, head), out);
    for (int t = 0; t < KV_PAGE_TOKENS; t++) kv_rotate_back(half.d, 1, out + t * half.d);
}

void ref_decode_head(
    const KvLayer *kv, const KvQuant *code, int head, int position, int32_t k_page, int32_t v_page, float *out) {
    const int d = kv->layout.head_dim;
    float rotated[ATTENTION_HEAD_MAX];
    decode_half(kv, code->k, false, k_page, head, out);
    decode_half(kv, code->v, true, v_page, head, out);
    const KvBias bias = kv_bias_of(kv, code, head, position);
    for (int t = 0; t < KV_PAGE_TOKENS; t++) {
        kv_bias_at(&bias, d, t, rotated);
        for (int i = 0; i < d; i++) out[t * d + i] += rotated[i];
    }
}
