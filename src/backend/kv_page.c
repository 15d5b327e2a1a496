/* Addresses of heads in quantised pages, and the quantisation of one head for the backends' operations. */
#include "backend/kv_quant.h"

KvHalf kv_quant_half(const KvLayout *l, KvForm form, bool values) {
    if (!l->latent) return (KvHalf){values ? l->value_dim : l->head_dim, form, values, values};
    return values ? (KvHalf){l->head_dim, KV_Q8, false, false} : (KvHalf){l->value_dim, form, false, true};
}

size_t kv_quant_bytes(const KvLayout *layout, KvForm form, bool values) {
    if (!kv_quant_dim(layout->head_dim) || !kv_quant_dim(layout->value_dim)) return 0;
    const KvHalf half = kv_quant_half(layout, form, values);
    return (size_t)layout->kv_heads * kv_quant_layout(half.d, half.form, half.values).bytes;
}

uint8_t *kv_quant_head(const KvLayer *layer, KvForm form, bool values, int32_t page, int head) {
    const KvStore *store = values ? &layer->v_quant[form] : &layer->k_quant[form];
    CHECK(page >= 0 && store->base);
    return store->base + (size_t)page * store->stride + (size_t)head * (store->stride / (size_t)layer->layout.kv_heads);
}

KvBias kv_bias_of(const KvLayer *layer, const KvQuant *code, int head, int position) {
    if (!layer->k_bias || !code->bias_pairs[head]) return (KvBias){0};
    const float *bias = layer->k_bias + (size_t)head * (size_t)layer->layout.head_dim;
    return (KvBias){layer->rope, code->bias_pairs[head], bias, position};
}

void kv_quantise_half(const KvQuantise *page, int head, bool values, float *x) {
    const KvLayer *layer = page->layer;
    const KvForm form = values ? page->code->v : page->code->k;
    const KvHalf half = kv_quant_half(&layer->layout, form, values);
    uint8_t *to = kv_quant_head(layer, form, values, values ? page->v_to : page->k_to, head);
    const KvBias bias = kv_bias_of(layer, page->code, head, page->position);
    if (half.values)
        kv_quant_values(half.d, half.form, x, to);
    else
        kv_quant_keys(half.d, half.form, x, &bias, to);
}
