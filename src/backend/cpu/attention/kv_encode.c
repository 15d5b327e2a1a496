/* KV quantisation on the CPU: heads of pages, keys and values apart, are distributed over the pool. */
#include "backend/cpu/attention/attention.h"
#include "backend/cpu/cpu.h"
#include "backend/kv_quant.h"

size_t cpu_kv_quant_bytes(Backend *backend, const KvLayout *layout, KvForm form, bool values) {
    return kv_quant_bytes(layout, form, values);
}

/* Room for a head of a page in f32, in attention's memory for the queries of a tile. */
static float *thread_floats(CpuBackend *cpu, int index) {
    CHECK(attention_thread_bytes() >= (size_t)KV_PAGE_TOKENS * ATTENTION_HEAD_MAX * sizeof(float));
    return (float *)(void *)(cpu->attention + attention_shared_bytes() + (size_t)index * attention_thread_bytes());
}

/* Loads keys; pages hold them in the order that quantisation reads. */
static void load_keys(const KvLayout *l, const uint8_t *head, float *x) {
    floats_to_f32(x, head, l->dtype, (int64_t)KV_PAGE_TOKENS * l->head_dim);
}

static void load_values(const KvLayout *l, const uint8_t *head, float *x) {
    const size_t stride = (size_t)attention_value_stride(l->value_dim) * dtype_bytes(l->dtype);
    float row[ATTENTION_HEAD_MAX];
    for (int t = 0; t < KV_PAGE_TOKENS; t++) {
        floats_to_f32(row, head + attention_key_bytes(l) + (size_t)t * stride, l->dtype, l->value_dim);
        for (int i = 0; i < l->value_dim; i++) x[(t / 16 * l->value_dim + i) * 16 + t % 16] = row[i];
    }
}

/* Loads the source of one half of a quantised page. */
static void load_half(const KvLayout *l, bool values, const uint8_t *head, float *x) {
    (kv_quant_half(l, KV_Q4, values).from_values ? load_values : load_keys)(l, head, x);
}

/* ---- calibration ---- */

typedef struct CalibrationWork {
    CpuBackend *cpu;
    const KvCalibration *calibration;
    KvStatistics *heads;
} CalibrationWork;

static void calibrate_task(void *argument, int index, int count) {
    const CalibrationWork *work = argument;
    const KvLayer *layer = work->calibration->layer;
    float *x = thread_floats(work->cpu, index);
    for (int h = index; h < layer->layout.kv_heads; h += count) {
        KvStatistics sums = {0};
        for (int page = 0; page < work->calibration->tokens / KV_PAGE_TOKENS; page++) {
            uint8_t *head = attention_head(layer, work->calibration->table[page], h);
            load_half(&layer->layout, false, head, x);
            kv_calibrate_page(layer, h, page * KV_PAGE_TOKENS, x, attention_energies(&layer->layout, head), &sums);
        }
        work->heads[h] = sums;
    }
}

void cpu_kv_calibrate(Backend *backend, int count, const KvCalibration *calibrations) {
    CpuBackend *cpu = cpu_backend(backend);
    for (int i = 0; i < count; i++) {
        CalibrationWork work = {cpu, &calibrations[i], (KvStatistics *)(void *)cpu->attention};
        const int kv_heads = calibrations[i].layer->layout.kv_heads;
        CHECK((size_t)kv_heads * sizeof *work.heads <= attention_shared_bytes());
        pool_run(cpu->pool, calibrate_task, &work);
        const KvForm asked = calibrations[i].code->k;
        for (int h = 0; h < kv_heads; h++) kv_calibrate_decide(&calibrations[i], asked, h, &work.heads[h]);
    }
}

/* ---- quantisation ---- */

typedef struct Encoding {
    CpuBackend *cpu;
    const KvQuantise *pages;
} Encoding;

static void encode_item(const KvQuantise *page, int head, bool values, float *x) {
    load_half(&page->layer->layout, values, attention_head(page->layer, page->from, head), x);
    kv_quantise_half(page, head, values, x);
}

/* Items in order: page, head, half (keys, values). */
static void encode_task(void *argument, int index, int count) {
    const Encoding *work = argument;
    const KvQuantise *page = work->pages;
    float *x = thread_floats(work->cpu, index);
    int64_t before = 0; /* items of the pages before this one */
    for (int64_t item, items; pool_next(work->cpu->pool, 0, index, 1, &item, &items);) {
        if (item < before) {
            page = work->pages;
            before = 0;
        }
        for (int64_t own; item - before >= (own = 2 * (int64_t)page->layer->layout.kv_heads); page++) before += own;
        encode_item(page, (int)((item - before) / 2), (item - before) % 2, x);
    }
}

void cpu_kv_quantise(Backend *backend, int count, const KvQuantise *pages) {
    Encoding work = {cpu_backend(backend), pages};
    int64_t items = 0;
    for (int i = 0; i < count; i++) items += 2 * (int64_t)pages[i].layer->layout.kv_heads;
    pool_share(work.cpu->pool, 0, items);
    pool_run(work.cpu->pool, encode_task, &work);
}
