/* Attention's pages between steps: to and from the canonical order. */
#include <string.h>

#include "backend/cpu/attention/attention.h"
#include "backend/recurrent.h"

typedef struct PageCopy {
    const KvLayout *layout;
    uint8_t *page, *canonical; /* page: one kv head; canonical: the head's first element of token 0 */
    int tokens;
    bool in;
} PageCopy;

/* Copies element by element, which is fast enough: a few pages are moved between steps. */
static void copy_element(const PageCopy *c, uint8_t *page, uint8_t *canonical) {
    const size_t size = dtype_bytes(c->layout->dtype);
    memcpy(c->in ? page : canonical, c->in ? canonical : page, size);
}

static void copy_keys(const PageCopy *c) {
    const size_t size = dtype_bytes(c->layout->dtype), width = (size_t)c->layout->head_dim;
    for (size_t t = 0; t < (size_t)c->tokens; t++)
        for (size_t d = 0; d < width; d++)
            copy_element(c, c->page + (t / 16 * 16 * width + d * 16 + t % 16) * size,
                c->canonical + (t * (size_t)c->layout->kv_heads * width + d) * size);
}

static void copy_values(const PageCopy *c) {
    const size_t size = dtype_bytes(c->layout->dtype), width = (size_t)c->layout->value_dim;
    const size_t stride = (size_t)attention_value_stride(c->layout->value_dim) * size;
    for (size_t t = 0; t < (size_t)c->tokens; t++) {
        uint8_t *page = c->page + t * stride,
                *canonical = c->canonical + t * (size_t)c->layout->kv_heads * width * size;
        memcpy(c->in ? page : canonical, c->in ? canonical : page, width * size);
        if (c->in) memset(page + width * size, 0, stride - width * size);
    }
}

/* Copies the energies of a kv head; canonical memory is unaligned. */
static void copy_energies(const KvLayout *l, float *energies, uint8_t *canonical, int tokens, bool in) {
    for (int t = 0; t < tokens; t++) {
        uint8_t *at = canonical + (size_t)t * (size_t)l->kv_heads * sizeof *energies;
        memcpy(in ? (void *)&energies[t] : at, in ? at : (void *)&energies[t], sizeof *energies);
    }
}

static void copy_page(const KvLayer *layer, int32_t page, int tokens, uint8_t *canonical, bool in) {
    const KvLayout *l = &layer->layout;
    const size_t size = dtype_bytes(l->dtype);
    const size_t keys = (size_t)tokens * (size_t)l->kv_heads * (size_t)l->head_dim * size;
    const size_t values = (size_t)tokens * (size_t)l->kv_heads * (size_t)l->value_dim * size;
    for (int h = 0; h < l->kv_heads; h++) {
        uint8_t *memory = attention_head(layer, page, h);
        const size_t head = (size_t)h;
        const PageCopy k = {l, memory, canonical + head * (size_t)l->head_dim * size, tokens, in};
        const PageCopy v = {
            l, memory + attention_key_bytes(l), canonical + keys + head * (size_t)l->value_dim * size, tokens, in};
        copy_keys(&k);
        copy_values(&v);
        copy_energies(l, attention_energies(l, memory), canonical + keys + values + head * sizeof(float), tokens, in);
    }
}

bool cpu_page_read(Backend *backend, const KvLayer *layer, int32_t page, int tokens, void *out) {
    if (layer->layout.kv_heads == 0)
        memcpy(out, recurrent_page(layer, page), kv_canonical_bytes(&layer->layout, tokens));
    copy_page(layer, page, tokens, out, false);
    return true;
}

bool cpu_page_write(Backend *backend, const KvLayer *layer, int32_t page, int tokens, const void *from) {
    if (layer->layout.kv_heads == 0)
        memcpy(recurrent_page(layer, page), from, kv_canonical_bytes(&layer->layout, tokens));
    copy_page(layer, page, tokens, (uint8_t *)from, true);
    return true;
}
