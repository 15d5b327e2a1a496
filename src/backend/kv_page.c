/* Where the codes of a layer's heads lie, and their coding as backends' operations ask for it. */
#include "backend/kv_code.h"

size_t kv_code_bytes(const KvLayout *layout, KvForm form, bool values) {
    if (layout->latent || !kv_code_dim(layout->head_dim) || !kv_code_dim(layout->value_dim)) return 0;
    const size_t head = kv_code_layout(values ? layout->value_dim : layout->head_dim, form, values).bytes;
    return (size_t)layout->kv_heads * head;
}

uint8_t *kv_code_head(const KvLayer *layer, KvForm form, bool values, int32_t page, int head) {
    const KvStore *store = values ? &layer->v_codes[form] : &layer->k_codes[form];
    CHECK(page >= 0 && store->base);
    return store->base + (size_t)page * store->stride + (size_t)head * (store->stride / (size_t)layer->layout.kv_heads);
}

KvBias kv_bias_of(const KvLayer *layer, const KvCode *code, int head, int position) {
    if (!layer->k_bias || !code->bias_pairs[head]) return (KvBias){0};
    const float *bias = layer->k_bias + (size_t)head * (size_t)layer->layout.head_dim;
    return (KvBias){layer->rope, code->bias_pairs[head], bias, position};
}

void kv_encode_keys(const KvEncode *page, int head, float *x) {
    const KvBias bias = kv_bias_of(page->layer, page->code, head, page->position);
    const KvForm form = page->code->k;
    kv_code_keys(
        page->layer->layout.head_dim, form, x, &bias, kv_code_head(page->layer, form, false, page->k_to, head));
}

void kv_encode_values(const KvEncode *page, int head, float *x) {
    const KvForm form = page->code->v;
    kv_code_values(page->layer->layout.value_dim, form, x, kv_code_head(page->layer, form, true, page->v_to, head));
}
