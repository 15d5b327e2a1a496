/* Surveys and coding as operations: every backend makes the codes that kv_quant.h describes from what its pages hold,
 * bit for bit, with any number of threads. */
#include <stdlib.h>

#include "backend/fence.h"
#include "kv_pages.h"

enum { HEADS = 3, D = 96, WIDTH = 64, PAGES = 3, CODED = 5 };

static const char *const names[] = {"ref", "avx2", "avx512", "amx", "neon"};

static float k[PAGES][KV_PAGE_TOKENS][HEADS][D], v[PAGES][KV_PAGE_TOKENS][HEADS][WIDTH];
static float energies[PAGES][KV_PAGE_TOKENS][HEADS];
static float frequencies[D / 2], bias[HEADS * D];
static const Rope rope = {.dims = D, .frequencies = frequencies, .scale = 1};

/* As a page holds numbers. */
static void round_to(DType dtype, float *x, int count) {
    uint16_t half;
    for (int i = 0; i < count && dtype != DTYPE_F32; i++) {
        floats_from_f32(&half, dtype, x + i, 1);
        floats_to_f32(x + i, &half, dtype, 1);
    }
}

static void fill(DType dtype) {
    uint64_t state = 11;
    for (int i = 0; i < D / 2; i++) frequencies[i] = powf(1e4f, -2.0f * (float)i / D);
    for (int i = 0; i < HEADS * D; i++) bias[i] = i < 2 * D ? 20 * kv_gauss(&state) : 0; /* the last head has none */
    for (int i = 0; i < PAGES * KV_PAGE_TOKENS * HEADS * D; i++) (&k[0][0][0][0])[i] = 3 * kv_gauss(&state);
    for (int i = 0; i < PAGES * KV_PAGE_TOKENS * HEADS * WIDTH; i++) (&v[0][0][0][0])[i] = kv_gauss(&state);
    for (int i = 0; i < PAGES * KV_PAGE_TOKENS * HEADS; i++) (&energies[0][0][0])[i] = 1 + test_uniform(&state) / 2;
    round_to(dtype, &k[0][0][0][0], PAGES * KV_PAGE_TOKENS * HEADS * D);
    round_to(dtype, &v[0][0][0][0], PAGES * KV_PAGE_TOKENS * HEADS * WIDTH);
}

/* ---- what must come out ---- */

/* What a page holds as keys, or as values. */
static void block_head(int page, int head, bool values, float *blocks) {
    static float tokens[KV_PAGE_TOKENS * D];
    const int d = values ? WIDTH : D;
    for (int t = 0; t < KV_PAGE_TOKENS; t++)
        memcpy(tokens + t * d, values ? v[page][t][head] : k[page][t][head], (size_t)d * sizeof *tokens);
    kv_block(d, tokens, blocks);
}

static KvQuant expected_code(const KvLayer *layer, KvForm form, uint64_t *pairs) {
    static float blocks[KV_PAGE_TOKENS * D], q[KV_PAGE_TOKENS];
    KvQuant code = {.k = form, .v = form, .bias_pairs = pairs};
    const KvCalibration survey = {.layer = layer, .raise = true, .code = &code};
    for (int h = 0; h < HEADS; h++) {
        KvStatistics sums = {0};
        for (int p = 0; p < PAGES; p++) {
            for (int t = 0; t < KV_PAGE_TOKENS; t++) q[t] = energies[p][t][h];
            block_head(p, h, layer->layout.latent, blocks);
            kv_calibrate_page(layer, h, p * KV_PAGE_TOKENS, blocks, q, &sums);
        }
        kv_calibrate_decide(&survey, form, h, &sums);
    }
    return code;
}

/* Latents are the values, coded as keys in the form of keys; the keys beside them have 8 bits. */
static bool latents_fit(const KvLayer *layer, const KvQuantise *e, int page, int head) {
    static float blocks[KV_PAGE_TOKENS * D];
    static _Alignas(64) uint8_t out[KV_PAGE_TOKENS * D * 2];
    block_head(page, head, true, blocks);
    kv_quant_keys(WIDTH, e->code->k, blocks, NULL, out);
    const bool same = !memcmp(
        out, kv_quant_head(layer, e->code->k, false, e->k_to, head), kv_quant_layout(WIDTH, e->code->k, false).bytes);
    block_head(page, head, false, blocks);
    kv_quant_keys(D, KV_Q8, blocks, NULL, out);
    return same &&
        !memcmp(out, kv_quant_head(layer, e->code->v, true, e->v_to, head), kv_quant_layout(D, KV_Q8, false).bytes);
}

static bool page_fits(const KvLayer *layer, const KvQuantise *e, int page) {
    static float blocks[KV_PAGE_TOKENS * D];
    static _Alignas(64) uint8_t out[KV_PAGE_TOKENS * D * 2];
    bool same = true;
    for (int h = 0; h < HEADS; h++) {
        const KvBias at = kv_bias_of(layer, e->code, h, e->position);
        if (layer->layout.latent) {
            same = same && latents_fit(layer, e, page, h);
            continue;
        }
        block_head(page, h, false, blocks);
        kv_quant_keys(D, e->code->k, blocks, &at, out);
        same = same &&
            !memcmp(
                out, kv_quant_head(layer, e->code->k, false, e->k_to, h), kv_quant_layout(D, e->code->k, false).bytes);
        block_head(page, h, true, blocks);
        kv_quant_values(WIDTH, e->code->v, blocks, out);
        same = same &&
            !memcmp(out, kv_quant_head(layer, e->code->v, true, e->v_to, h),
                kv_quant_layout(WIDTH, e->code->v, true).bytes);
    }
    return same;
}

/* ---- a backend ---- */

static void write_pages(Backend *backend, const KvLayer *layer, const int32_t *table) {
    const DType dtype = layer->layout.dtype;
    uint8_t *canonical = malloc(kv_canonical_bytes(&layer->layout, KV_PAGE_TOKENS));
    if (!canonical) abort();
    for (int p = 0; p < PAGES; p++) {
        uint8_t *at = canonical;
        floats_from_f32(at, dtype, &k[p][0][0][0], KV_PAGE_TOKENS * HEADS * D);
        at += (size_t)(KV_PAGE_TOKENS * HEADS * D) * dtype_bytes(dtype);
        floats_from_f32(at, dtype, &v[p][0][0][0], KV_PAGE_TOKENS * HEADS * WIDTH);
        at += (size_t)(KV_PAGE_TOKENS * HEADS * WIDTH) * dtype_bytes(dtype);
        memcpy(at, energies[p], sizeof energies[p]);
        TEST(backend->ops->page_write(backend, layer, table[p], KV_PAGE_TOKENS, canonical));
    }
    free(canonical);
}

static void *take(Backend *backend, size_t bytes) {
    Error error;
    void *memory = backend->ops->alloc(backend, bytes, MEMORY_CACHE, &error);
    if (!memory) abort();
    return memory;
}

static void test_form(Backend *backend, KvLayer *layer, const int32_t *table, KvForm form) {
    uint64_t pairs[HEADS], expected_pairs[HEADS];
    KvQuant code = {.k = form, .v = form, .bias_pairs = pairs};
    const KvCalibration survey = {
        .layer = layer, .table = table, .tokens = PAGES * KV_PAGE_TOKENS, .raise = true, .code = &code};
    backend->ops->kv_calibrate(backend, 1, &survey);
    const KvQuant expected = expected_code(layer, form, expected_pairs);
    TEST_MSG(code.k == expected.k && code.v == form && code.noise == expected.noise, "%s: noise %g, not %g",
        backend->ops->name, code.noise, expected.noise);
    TEST(!memcmp(pairs, expected_pairs, sizeof pairs));
    TEST(layer->k_bias ? pairs[0] && pairs[1] && !pairs[2] : !pairs[0] && !pairs[1] && !pairs[2]);
    layer->k_quant[code.k].stride = kv_quant_bytes(&layer->layout, code.k, false);
    layer->v_quant[form].stride = kv_quant_bytes(&layer->layout, form, true);
    layer->k_quant[code.k].base = take(backend, CODED * layer->k_quant[code.k].stride);
    layer->v_quant[form].base = take(backend, CODED * layer->v_quant[form].stride);
    KvQuantise pages[PAGES];
    for (int p = 0; p < PAGES; p++)
        pages[p] = (KvQuantise){.layer = layer,
            .code = &code,
            .position = p * KV_PAGE_TOKENS,
            .from = table[p],
            .k_to = (2 * p + 1) % CODED,
            .v_to = 4 - p};
    backend->ops->kv_quantise(backend, PAGES, pages);
    for (int p = 0; p < PAGES; p++)
        TEST_MSG(page_fits(layer, &pages[p], p), "%s: %d bits: other codes", backend->ops->name, kv_form_bits(form));
    backend->ops->release(backend, layer->k_quant[code.k].base);
    backend->ops->release(backend, layer->v_quant[form].base);
}

static void test_backend(const char *name, int threads, DType dtype, bool latent) {
    static const int32_t table[PAGES] = {2, 0, 3};
    const BackendOptions options = {.cpu = name, .threads = threads, .rows_max = 1};
    Error error;
    Backend *backend = backend_open(&options, &error);
    if (!backend) test_skip_backend(name);
    if (!backend) return;
    fill(dtype);
    KvLayer layer = {.layout = {HEADS, D, WIDTH, dtype, latent}, .k_bias = latent ? NULL : bias, .rope = &rope};
    layer.page_stride = (backend->ops->kv_layer_bytes(backend, &layer.layout) + 63) / 64 * 64;
    layer.base = take(backend, 4 * layer.page_stride);
    write_pages(backend, &layer, table);
    for (KvForm form = KV_Q4; form < KV_FORMS; form++) test_form(backend, &layer, table, form);
    backend->ops->release(backend, layer.base);
    backend_close(backend);
}

int main(void) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        test_backend(names[i], 1, DTYPE_F16, false);
        test_backend(names[i], 3, DTYPE_BF16, false);
        test_backend(names[i], 2, DTYPE_F32, false);
        test_backend(names[i], 2, DTYPE_F16, true);
    }
    return test_done();
}
