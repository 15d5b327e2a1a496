/* Scans of codes by every vector backend: their integers equal the scalar ones for every form, head size and number of
 * queries; and near what the codes stand for, a query's scores and values having the same bits alone or among others.
 */
#include "backend/cpu/cpu.h"
#include "backend/cpu/attention/scan.h"
#include "ops.h"

static const int dims[] = {16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 576};
static const KvForm k_forms[] = {KV_Q4, KV_Q5, KV_Q6, KV_Q8};
static const KvForm v_forms[] = {KV_Q3, KV_Q4, KV_Q5, KV_Q6, KV_Q8};
enum { DIM_MOST = 576, ONE_F16 = 0x3c00 };

static ScanWork work;
static float out[ATTENTION_QUERIES * DIM_MOST];
static _Alignas(64) uint8_t records[ATTENTION_QUERIES * (sizeof(ScanQuery) + DIM_MOST * 5)];

static const ScanKernels *kernels_of(const Backend *backend) {
    return cpu_backend((Backend *)(uintptr_t)backend)->kernels->attention->scan;
}

static ScanForm form_of(const ScanKernels *kernels, KvForm form, int d, bool values) {
    ScanForm f = {.form = form, .layout = kv_quant_layout(d, form, values)};
    kernels->table(form, values, f.table);
    return f;
}

/* Any codes, under scales and means that are given. */
static uint8_t *random_page(const ScanForm *f, bool values, uint16_t scale, uint16_t mean) {
    uint8_t *page = aligned_alloc(64, f->layout.bytes);
    if (!page) abort();
    for (size_t i = 0; i < f->layout.bytes; i++) page[i] = (uint8_t)(int)(test_uniform(&ops_seed) * 1000);
    for (int i = 0; i < f->layout.groups * KV_PAGE_TOKENS; i++) memcpy(page + f->layout.scale + 2 * i, &scale, 2);
    for (int i = 0; i < f->layout.d && !values; i++) memcpy(page + f->layout.mean + 2 * i, &mean, 2);
    return page;
}

/* Twice what each code stands for, which is its value and a half: [128][d]. */
static const int *doubled(const ScanForm *f, bool values, const uint8_t *page) {
    static int all[KV_PAGE_TOKENS * DIM_MOST];
    const int8_t *codebook = kv_codebook(f->form);
    for (int t = 0; t < KV_PAGE_TOKENS; t++)
        for (int j = 0; j < f->layout.d; j++)
            all[t * f->layout.d + j] = 2 * codebook[kv_quant_get(&f->layout, f->form, values, page, t, j)] + 1;
    return all;
}

static ScanQuery *record_at(int i, int d) { return (ScanQuery *)(void *)(records + (size_t)i * scan_query_bytes(d)); }

/* Queries with whole elements up to the largest code, which the step leaves as they are. */
static void make_queries(const ScanKernels *kernels, KvForm form, int count, int d, int group) {
    const float most = (float)kernels->most(form, false);
    for (int i = 0; i < count; i++) {
        float *x = scan_rotated(record_at(i, d));
        for (int j = 0; j < d; j++) x[j] = rintf(most * test_uniform(&ops_seed));
        x[i * 7 % d] = i % 2 ? most : -most;
        if (i == 3)
            for (int j = 0; j < d; j++) x[j] = most;
        kernels->quantise(record_at(i, d), form, d, group);
    }
}

static void check_scores(const char *name, const ScanKernels *kernels, KvForm form, int d, int count) {
    const ScanForm f = form_of(kernels, form, d, false);
    uint8_t *codes = random_page(&f, false, ONE_F16, 0);
    if (count == 1) memset(codes + f.layout.codes, 0, f.layout.bytes - f.layout.codes); /* the least value everywhere */
    const ScanPage page = {.keys = &f, .k = codes, .queries = record_at(0, d), .stride = scan_query_bytes(d)};
    make_queries(kernels, form, count, d, f.layout.group);
    kernels->scores(&page, 0, count, &work);
    const int *what = doubled(&f, false, codes);
    int wrong = 0;
    for (int i = 0; i < count; i++)
        for (int t = 0; t < KV_PAGE_TOKENS; t++) {
            int twice = 0;
            for (int j = 0; j < d; j++) twice += scan_codes(record_at(i, d), d)[j] * what[t * d + j];
            wrong += work.p[i * KV_PAGE_TOKENS + t] != (float)twice / 2;
        }
    TEST_MSG(!wrong, "%s: keys of form %d, %d dims, %d queries: %d scores differ", name, form, d, count, wrong);
    free(codes);
}

/* Weights that are whole already: the heaviest is as large as they can be. */
static void make_weights(const ScanKernels *kernels, KvForm form, int count) {
    const int most = kernels->most(form, true);
    for (int i = 0; i < count * KV_PAGE_TOKENS; i++) work.p[i] = floorf(fabsf(test_uniform(&ops_seed)) * (float)most);
    for (int i = 0; i < count; i++) work.p[i * KV_PAGE_TOKENS + i] = (float)most;
    for (int t = 0; t < KV_PAGE_TOKENS && count > 3; t++) work.p[3 * KV_PAGE_TOKENS + t] = (float)most;
}

static void check_values(const char *name, const ScanKernels *kernels, KvForm form, int d, int count) {
    const ScanForm f = form_of(kernels, form, d, true);
    uint8_t *codes = random_page(&f, true, ONE_F16, 0);
    if (count == 4) memset(codes + f.layout.codes, 0, f.layout.bytes - f.layout.codes);
    const ScanPage page = {.values = &f, .v = codes};
    make_weights(kernels, form, count);
    memset(out, 0, sizeof out);
    for (int i = 0; i < count; i++) work.factor[i] = 1;
    kernels->values(&page, count, &work, d, out);
    const int *what = doubled(&f, true, codes);
    int wrong = 0;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < d; j++) {
            int twice = 0;
            for (int t = 0; t < KV_PAGE_TOKENS; t++) twice += (int)work.p[i * KV_PAGE_TOKENS + t] * what[t * d + j];
            wrong += out[i * d + j] != (float)twice / 2;
        }
    TEST_MSG(!wrong, "%s: values of form %d, %d dims, %d queries: %d sums differ", name, form, d, count, wrong);
    free(codes);
}

/* What count queries get together, each gets alone. */
static void check_alone(const char *name, const ScanKernels *kernels, KvForm k_form, KvForm v_form, int d) {
    enum { COUNT = 13 };
    static ScanWork alone;
    static float own[DIM_MOST];
    const ScanForm k = form_of(kernels, k_form, d, false), v = form_of(kernels, v_form, d, true);
    uint8_t *keys = random_page(&k, false, 0x2c10, 0x3555), *values = random_page(&v, true, 0x2f31, 0);
    const ScanPage page = {
        .keys = &k, .values = &v, .k = keys, .v = values, .queries = record_at(0, d), .stride = scan_query_bytes(d)};
    for (int i = 0; i < COUNT; i++) {
        for (int j = 0; j < d; j++) scan_rotated(record_at(i, d))[j] = test_uniform(&ops_seed);
        kernels->quantise(record_at(i, d), k.form, d, k.layout.group);
    }
    kernels->scores(&page, 0, COUNT, &work);
    for (int i = 0; i < COUNT; i++) {
        kernels->scores(&page, i, 1, &alone);
        TEST_MSG(same_bits(alone.p, work.p + i * KV_PAGE_TOKENS, KV_PAGE_TOKENS), "%s: %d dims: scores of query %d",
            name, d, i);
    }
    for (int i = 0; i < COUNT * KV_PAGE_TOKENS; i++) work.p[i] = fabsf(test_uniform(&ops_seed));
    memset(out, 0, sizeof out);
    kernels->values(&page, COUNT, &work, d, out);
    for (int i = 0; i < COUNT; i++) {
        memcpy(alone.p, work.p + i * KV_PAGE_TOKENS, KV_PAGE_TOKENS * sizeof *alone.p);
        memset(own, 0, sizeof own);
        kernels->values(&page, 1, &alone, d, own);
        TEST_MSG(same_bits(own, out + i * d, d), "%s: %d dims: values of query %d", name, d, i);
    }
    free(keys);
    free(values);
}

static void check_backend(const char *name, const ScanKernels *kernels) {
    for (size_t i = 0; i < COUNT_OF(dims); i++) {
        for (int count = 1; count <= ATTENTION_QUERIES; count += count < 14 ? 1 : 17) {
            for (size_t f = 0; f < COUNT_OF(k_forms); f++) check_scores(name, kernels, k_forms[f], dims[i], count);
            for (size_t f = 0; f < COUNT_OF(v_forms); f++) check_values(name, kernels, v_forms[f], dims[i], count);
        }
        check_alone(name, kernels, KV_Q4, KV_Q3, dims[i]);
        check_alone(name, kernels, KV_Q5, KV_Q6, dims[i]);
        check_alone(name, kernels, KV_Q8, KV_Q4, dims[i]);
    }
}

int main(void) {
    for (size_t i = 0; i < COUNT_OF(vector_names); i++) {
        if (is_device(vector_names[i])) continue; /* its kernels are not these */
        Backend *backend = open_backend(vector_names[i], 1, false, 1);
        if (!backend) continue;
        check_backend(vector_names[i], kernels_of(backend));
        backend_close(backend);
    }
    return test_done();
}
