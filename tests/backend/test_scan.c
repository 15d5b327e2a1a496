/* Scans of codes by every vector backend: their integers equal the scalar ones for every form, head size and number of
 * queries; weights are rounded as they say; a query gets the same bits alone or among others, and a page the same
 * whether it is taken in at once or while the next one is scored. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/scan.h"
#include "ops.h"

static const int dims[] = {16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 576};
static const KvForm k_forms[] = {KV_CODE4, KV_CODE5, KV_CODE6, KV_CODE8};
static const KvForm v_forms[] = {KV_CODE3, KV_CODE4, KV_CODE5, KV_CODE6, KV_CODE8};
enum { DIM_MOST = 576, ONE_F16 = 0x3c00 };

static ScanWork work;
static ScanSpace space;
static float out[ATTENTION_QUERIES * DIM_MOST];
static _Alignas(64) uint8_t records[ATTENTION_QUERIES * (sizeof(ScanQuery) + DIM_MOST * 5)];

static const ScanKernels *kernels_of(const Backend *backend) {
    return cpu_backend((Backend *)(uintptr_t)backend)->kernels->attention->scan;
}

static ScanForm form_of(const ScanKernels *kernels, KvForm form, int d, bool values) {
    ScanForm f = {.form = form, .layout = kv_code_layout(d, form, values)};
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
            all[t * f->layout.d + j] = 2 * codebook[kv_code_get(&f->layout, f->form, values, page, t, j)] + 1;
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
    const ScanForm f = form_of(kernels, form, d, false), v = form_of(kernels, KV_CODE4, d, true);
    uint8_t *codes = random_page(&f, false, ONE_F16, 0), *values = random_page(&v, true, ONE_F16, 0); /* logarithm: 0 */
    if (count == 1) memset(codes + f.layout.codes, 0, f.layout.bytes - f.layout.codes); /* the least value everywhere */
    const ScanPage page = {
        .keys = &f, .values = &v, .k = codes, .v = values, .queries = record_at(0, d), .stride = scan_query_bytes(d)};
    make_queries(kernels, form, count, d, f.layout.group);
    kernels->scores(&page, 0, count, &work);
    const int *what = doubled(&f, false, codes);
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        float most = -INFINITY;
        for (int t = 0; t < KV_PAGE_TOKENS; t++) {
            int twice = 0;
            for (int j = 0; j < d; j++) twice += scan_codes(record_at(i, d), d)[j] * what[t * d + j];
            wrong += work.p[i * KV_PAGE_TOKENS + t] != (float)twice / 2;
            most = fmaxf(most, (float)twice / 2);
        }
        wrong += work.most[i] != most;
    }
    TEST_MSG(!wrong, "%s: keys of form %d, %d dims, %d queries: %d scores differ", name, form, d, count, wrong);
    free(codes);
    free(values);
}

/* Any weights, up to one more than the largest, as the rounding of a running sum may give; the fourth query has the
 * largest of all. */
static void make_weights(const ScanKernels *kernels, const ScanForm *f, int count) {
    const int most = kernels->most(f->form, true) + 1, groups = f->layout.groups;
    for (int i = 0; i < count; i++)
        for (int g = 0; g < groups; g++) {
            uint8_t *bytes = work.weights.bytes + (i * groups + g) * KV_PAGE_TOKENS;
            int sum = 0;
            for (int t = 0; t < KV_PAGE_TOKENS; t++) {
                bytes[t] = (uint8_t)(i == 3 ? most : (int)(fabsf(test_uniform(&ops_seed)) * (float)(most + 1)));
                sum += bytes[t];
            }
            work.weights.step[g][i] = 1;
            work.weights.half[g][i] = 0.5f * (float)sum;
        }
}

static void check_values(const char *name, const ScanKernels *kernels, KvForm form, int d, int count) {
    const ScanForm f = form_of(kernels, form, d, true);
    uint8_t *codes = random_page(&f, true, ONE_F16, 0);
    if (count == 4) memset(codes + f.layout.codes, 0, f.layout.bytes - f.layout.codes);
    work.values = &f;
    work.v = codes;
    work.count = count;
    make_weights(kernels, &f, count);
    memset(out, 0, sizeof out);
    for (int i = 0; i < count; i++) work.factor[i] = 1;
    kernels->values(&work, d, out);
    const int *what = doubled(&f, true, codes);
    int wrong = 0;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < d; j++) {
            const uint8_t *bytes = work.weights.bytes + (i * f.layout.groups + j / f.layout.group) * KV_PAGE_TOKENS;
            int twice = 0;
            for (int t = 0; t < KV_PAGE_TOKENS; t++) twice += bytes[t] * what[t * d + j];
            wrong += out[i * d + j] != (float)twice / 2;
        }
    TEST_MSG(!wrong, "%s: values of form %d, %d dims, %d queries: %d sums differ", name, form, d, count, wrong);
    free(codes);
}

/* Each running sum of a lane's tokens is within a half of the weights' own, beside what exponentials and logarithms of
 * scales are allowed, 1e-4 and 2e-5 of them. */
static void check_weights(const char *name, const ScanKernels *kernels, KvForm form, int d) {
    enum { COUNT = 5 };
    const ScanForm k = form_of(kernels, KV_CODE4, d, false), f = form_of(kernels, form, d, true);
    uint8_t *keys = random_page(&k, false, 0x2410, 0), *values = random_page(&f, true, 0x2f31, 0);
    for (int i = 0; i < f.layout.groups * KV_PAGE_TOKENS; i++) { /* about .0002 to 2, and 0 */
        const uint16_t scale = i % 29 == 3 ? 0 : (uint16_t)(0x0b00 + i * 97 % 0x3500);
        memcpy(values + f.layout.scale + 2 * i, &scale, 2);
    }
    const ScanPage page = {
        .keys = &k, .values = &f, .k = keys, .v = values, .queries = record_at(0, d), .stride = scan_query_bytes(d)};
    make_queries(kernels, KV_CODE4, COUNT, d, k.layout.group);
    for (int i = 0; i < COUNT; i++) record_at(i, d)->step = (i == 4 ? 0.01f : 16 - 4 * (float)i) / (float)d;
    kernels->scores(&page, 0, COUNT, &work);
    static float scores[COUNT * KV_PAGE_TOKENS];
    memcpy(scores, work.p, sizeof scores);
    kernels->weigh(&work);
    const double most = kernels->most(form, true);
    for (int i = 0; i < COUNT; i++)
        for (int g = 0; g < f.layout.groups; g++) {
            const uint8_t *bytes = work.weights.bytes + (i * f.layout.groups + g) * KV_PAGE_TOKENS;
            double sums[16] = {0}, log[KV_PAGE_TOKENS], largest = -INFINITY, far = 0, l = 0;
            int rounded[16] = {0}, whole = 0;
            for (int t = 0; t < KV_PAGE_TOKENS; t++) {
                double scale[2]; /* of the first group, which the score holds, and of this */
                for (int n = 0; n < 2; n++) {
                    uint16_t half;
                    memcpy(&half, values + f.layout.scale + 2 * ((n ? g : 0) * KV_PAGE_TOKENS + t), 2);
                    scale[n] = half ? f16_to_f32(half) : 0x1p-24;
                }
                log[t] = scores[i * KV_PAGE_TOKENS + t] - log2(scale[0]) + log2(scale[1]);
                largest = fmax(largest, log[t]);
                l += exp2(scores[i * KV_PAGE_TOKENS + t] - log2(scale[0]));
            }
            for (int t = 0; t < KV_PAGE_TOKENS; t++) {
                sums[t % 16] += most * exp2(log[t] - largest);
                rounded[t % 16] += bytes[t];
                whole += bytes[t];
                far = fmax(far, fabs(rounded[t % 16] - sums[t % 16]) - 2e-4 * sums[t % 16]);
            }
            TEST_MSG(far <= 0.501, "%s: %d dims: weights of query %d, group %d: %g away", name, d, i, g, far);
            TEST_MSG(
                work.weights.half[g][i] == 0.5f * (float)whole, "%s: %d dims: half the sum of query %d", name, d, i);
            const double got = work.sum[i] * exp2(work.weights.log[0][i]);
            TEST_MSG(fabs(got - l) <= 2e-4 * l, "%s: %d dims: sum of query %d: %g, not %g", name, d, i, got, l);
        }
    free(keys);
    free(values);
}

enum { ALONE = 13, PAGES = 3 };

static void start_tile(AttentionTile *tile, int queries, int d, float *coded) {
    *tile = (AttentionTile){.queries = queries, .head_dim = d, .value_stride = d, .coded = coded};
    for (int i = 0; i < queries; i++) tile->m[i] = -INFINITY;
    memset(coded, 0, (size_t)queries * (size_t)d * sizeof *coded);
}

/* What queries get together from pages one after the other, each gets alone, whenever pages are taken in. */
static void check_alone(const char *name, const ScanKernels *kernels, KvForm k_form, KvForm v_form, int d) {
    static float own[DIM_MOST];
    const ScanForm k = form_of(kernels, k_form, d, false), v = form_of(kernels, v_form, d, true);
    uint8_t *keys[PAGES], *values[PAGES];
    for (int n = 0; n < PAGES; n++) {
        keys[n] = random_page(&k, false, 0x2c10, 0x3555);
        values[n] = random_page(&v, true, 0x2f31, 0);
    }
    for (int i = 0; i < ALONE; i++) {
        for (int j = 0; j < d; j++) scan_rotated(record_at(i, d))[j] = test_uniform(&ops_seed);
        kernels->quantise(record_at(i, d), k.form, d, k.layout.group);
    }
    AttentionTile all, alone;
    start_tile(&all, ALONE, d, out);
    for (int i = -1; i < ALONE; i++) {
        AttentionTile *tile = i < 0 ? &all : &alone;
        if (i >= 0) start_tile(&alone, 1, d, own);
        for (int n = 0; n < PAGES; n++) {
            ScanPage page = {.keys = &k,
                .values = &v,
                .k = keys[n],
                .v = values[n],
                .next_k = keys[n],
                .queries = record_at(i < 0 ? 0 : i, d),
                .stride = scan_query_bytes(d)};
            kernels->plan(&page, tile->queries);
            kernels->page(tile, 0, &page, &space);
            if (i % 2) kernels->finish(tile, &space);
        }
        kernels->finish(tile, &space);
        if (i < 0) continue;
        TEST_MSG(alone.m[0] == all.m[i] && alone.l[0] == all.l[i], "%s: %d dims: scores of query %d", name, d, i);
        TEST_MSG(same_bits(own, out + i * d, d), "%s: %d dims: values of query %d", name, d, i);
    }
    for (int n = 0; n < PAGES; n++) {
        free(keys[n]);
        free(values[n]);
    }
}

static void check_backend(const char *name, const ScanKernels *kernels) {
    for (size_t i = 0; i < COUNT_OF(dims); i++) {
        for (int count = 1; count <= ATTENTION_QUERIES; count += count < 14 ? 1 : 17) {
            for (size_t f = 0; f < COUNT_OF(k_forms); f++) check_scores(name, kernels, k_forms[f], dims[i], count);
            for (size_t f = 0; f < COUNT_OF(v_forms); f++) check_values(name, kernels, v_forms[f], dims[i], count);
        }
        for (size_t f = 0; f < COUNT_OF(v_forms); f++) check_weights(name, kernels, v_forms[f], dims[i]);
        check_alone(name, kernels, KV_CODE4, KV_CODE3, dims[i]);
        check_alone(name, kernels, KV_CODE5, KV_CODE6, dims[i]);
        check_alone(name, kernels, KV_CODE8, KV_CODE4, dims[i]);
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
