/* The lines of `apus bench --operations`. Weights lie one after the other in a memory larger than any cache, and each
 * call takes the next, so that they come from memory as in a model. */
#include "cli/bench_cases.h"

#include <fnmatch.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "backend/kv_quant.h"
#include "backend/recurrent.h"
#include "base/clock.h"
#include "base/math.h"

enum {
    COLS = 1536, /* the shape of gate and up in a model of 1.5 billion parameters */
    ROWS = 8960,
    EMBED_ROWS = 65536,
    LOGITS = 262144,
    LOGITS_SPREAD = 4,
    CODED_HOT = 256, /* tokens that are seen exactly before the row */
    LIKELY = 16,     /* tokens that stand out, as in text, the first by so much */
    HEADS_MAX = 32,
    KV_HEADS_MAX = 8,
    DIM_MAX = 128,
    LATENT = 512, /* MLA latent width */
    LATENT_KEY = 64,
    LATENT_HEADS = 16,
    STATE_DEPTH = 1024 + RECURRENT_PAGE_TOKENS / 2, /* half a tail, as on average */
    CONV_CHANNELS = 8192,
    CONV_TAPS = 4,
    DEPTH_MAX = 32768,
    PAGES_MAX = (DEPTH_MAX + LINE_ROWS_MAX) / KV_PAGE_TOKENS + 1,
    CACHED_BYTES = 256 << 10, /* per thread: fits every second-level cache */
    ALIGN = 64,
    MEMORY_USUAL = 1 << 30,
    CACHES = 4,      /* how often the last cache fits into the memory, at least */
    MEMORY_PART = 4, /* divisor: at most 1/4 of the machine's memory */
};

static size_t align_up(size_t size) { return (size + ALIGN - 1) / ALIGN * ALIGN; }

/* ---- the bed ---- */

static size_t memory_bytes(void) {
    const size_t all = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE), most = all / MEMORY_PART;
    size_t bytes = MEMORY_USUAL;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache > 0 && (size_t)cache * CACHES > bytes) bytes = (size_t)cache * CACHES;
#endif
    return (bytes < most ? bytes : most) / ALIGN * ALIGN;
}

typedef struct Fill {
    uint8_t *memory;
    size_t bytes;
} Fill;

/* Bytes 0x38…0x3f and 0xb8…0xbf: as f16, bf16, E4M3, E8M0 or codes, in any pairing, none is denormal, infinite or far
 * from the others. */
static void fill_part(void *argument, int index, int count) {
    const Fill *fill = argument;
    const size_t words = fill->bytes / 8, first = words * (size_t)index / (size_t)count,
                 last = words * (size_t)(index + 1) / (size_t)count;
    uint64_t *out = (uint64_t *)(void *)fill->memory, random = 88172645463325252u + first;
    for (size_t i = first; i < last; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        out[i] = (random & 0x8787878787878787u) | 0x3838383838383838u;
    }
}

static float *random_floats(size_t count, float scale) {
    float *out = aligned_alloc(ALIGN, align_up(count * sizeof *out));
    uint32_t random = 1;
    for (size_t i = 0; out && i < count; i++) {
        random = random * 1664525u + 1013904223u;
        out[i] = scale * ((float)(random >> 8) * 0x1p-23f - 1);
    }
    return out;
}

bool bench_fixture_open(BenchFixture *fixture, const BenchPlan *plan, Error *error) {
    const BackendOptions options = {.cpu = plan->backend.cpu,
        .threads = plan->backend.threads,
        .precise = plan->backend.precise,
        .rows_max = LINE_ROWS_MAX,
        .scratch_bytes = 1 << 16};
    *fixture = (BenchFixture){.threads = plan->backend.threads, .backend = backend_open(&options, error)};
    return fixture->backend != NULL;
}

bool bench_fixture_fill(BenchFixture *fixture, Error *error) {
    const size_t rows = LINE_ROWS_MAX, stride = 2 * ROWS;
    fixture->bytes = memory_bytes();
    fixture->memory = aligned_alloc(2 << 20, fixture->bytes);
    fixture->x = random_floats(rows * ROWS, 1);
    fixture->out = random_floats(rows * ROWS, 1);
    fixture->q = random_floats(rows * HEADS_MAX * DIM_MAX, 1);
    fixture->k = random_floats(rows * KV_HEADS_MAX * DIM_MAX, 1);
    fixture->v = random_floats(rows * KV_HEADS_MAX * DIM_MAX, 1);
    fixture->q_latent = random_floats(rows * LATENT_HEADS * LATENT, 1);
    fixture->codes = aligned_alloc(ALIGN, stride);
    fixture->scales = random_floats(stride, 1);
    fixture->sums = random_floats(stride, 1);
    fixture->logits = random_floats(LOGITS, LOGITS_SPREAD);
    fixture->flat = random_floats(LOGITS, LOGITS_SPREAD);
    fixture->draft = random_floats(LOGITS, LOGITS_SPREAD);
    fixture->tokens = calloc(rows, sizeof *fixture->tokens);
    fixture->pages = calloc(PAGES_MAX, sizeof *fixture->pages);
    fixture->frequencies = calloc(DIM_MAX / 2, sizeof *fixture->frequencies);
    const StepCapacity capacity = {.rows = LINE_ROWS_MAX, .sequences = 1};
    if (!sampler_scratch_open(&fixture->sampler, LOGITS, error) || !step_builder_open(&fixture->step, &capacity, error))
        return false;
    const void *taken[] = {fixture->memory, fixture->x, fixture->out, fixture->q, fixture->k, fixture->v,
        fixture->q_latent, fixture->codes, fixture->scales, fixture->sums, fixture->logits, fixture->flat,
        fixture->draft, fixture->tokens, fixture->pages, fixture->frequencies};
    bool ok = true;
    for (size_t i = 0; i < COUNT_OF(taken); i++) ok = ok && taken[i];
    if (!ok) return fail(error, ERROR_MEMORY, "no memory for the operands of a line");
    for (int i = 0; i < LINE_ROWS_MAX; i++) fixture->tokens[i] = (int32_t)((uint32_t)i * 40503u % EMBED_ROWS);
    for (int i = 0; i < PAGES_MAX; i++) fixture->pages[i] = i;
    for (int i = 0; i < LIKELY; i++) fixture->logits[i * (LOGITS / LIKELY)] = (float)(LOGITS_SPREAD + LIKELY - i);
    for (int i = 0; i < DIM_MAX / 2; i++) fixture->frequencies[i] = powf(10000, -(float)i * 2 / DIM_MAX);
#ifdef MADV_HUGEPAGE
    (void)madvise(fixture->memory, fixture->bytes, MADV_HUGEPAGE); /* a wish */
#endif
    Pool *pool = pool_open(fixture->threads, error);
    if (!pool) return false;
    Fill fill = {fixture->memory, fixture->bytes};
    pool_run(pool, fill_part, &fill);
    pool_close(pool);
    return true;
}

void bench_fixture_close(BenchFixture *fixture) {
    backend_close(fixture->backend);
    sampler_scratch_close(&fixture->sampler);
    step_builder_close(&fixture->step);
    void *taken[] = {fixture->memory, fixture->x, fixture->out, fixture->q, fixture->k, fixture->v, fixture->q_latent,
        fixture->codes, fixture->scales, fixture->sums, fixture->logits, fixture->flat, fixture->draft, fixture->tokens,
        fixture->pages, fixture->frequencies};
    for (size_t i = 0; i < COUNT_OF(taken); i++) free(taken[i]);
    *fixture = (BenchFixture){0};
}

/* ---- running ---- */

/* Where a call's bytes begin, and the next call's after it. */
static uint8_t *take(const BenchFixture *fixture, BenchCase *bench_case, size_t bytes) {
    if (bench_case->at + bytes > fixture->bytes) bench_case->at = 0;
    uint8_t *memory = fixture->memory + bench_case->at;
    if (!bench_case->stay) bench_case->at += align_up(bytes);
    return memory;
}

static Weight place(const BenchFixture *fixture, BenchCase *bench_case) {
    Weight w = bench_case->weight;
    const size_t data = align_up((size_t)w.rows * weight_row_bytes(&w)),
                 scales = align_up((size_t)w.rows * weight_scale_bytes(&w));
    const bool affine = w.quant == QUANT_AFFINE;
    uint8_t *memory = take(fixture, bench_case, data + scales * (affine ? 2 : 1));
    w.data = memory;
    if (w.quant != QUANT_NONE) w.scales = memory + data;
    if (affine) w.biases = memory + data + scales;
    return w;
}

/* A step of bench_case->rows rows of one sequence that has bench_case->depth tokens. tables, quant: its pages. */
static void begin(
    BenchFixture *fixture, const BenchCase *bench_case, const int32_t *const *tables, const KvQuantView *quant) {
    step_begin(&fixture->step, false);
    step_add_sequence(&fixture->step,
        &(StepSequence){.rows = bench_case->rows,
            .position = bench_case->depth,
            .tables = tables,
            .quant = quant,
            .tokens = fixture->tokens});
    const Step *step = step_end(&fixture->step, NULL);
    CHECK(step);
    fixture->backend->ops->begin(fixture->backend, step);
}

static int64_t run_product(BenchFixture *fixture, BenchCase *bench_case, int calls) {
    begin(fixture, bench_case, NULL, NULL);
    const int64_t start = clock_ns();
    for (int i = 0; i < calls; i++) {
        const Weight w = place(fixture, bench_case);
        const Matmul op = {
            .rows = bench_case->rows, .x = fixture->x, .count = 1, .weight = {&w}, .out = {fixture->out}};
        fixture->backend->ops->matmul(fixture->backend, &op);
    }
    return clock_ns() - start;
}

static int64_t run_embed(BenchFixture *fixture, BenchCase *bench_case, int calls) {
    begin(fixture, bench_case, NULL, NULL);
    const int64_t start = clock_ns();
    for (int i = 0; i < calls; i++) {
        const Weight w = place(fixture, bench_case);
        const Embed op = {
            .rows = bench_case->rows, .tokens = fixture->tokens, .table = &w, .scale = 1, .out = fixture->out};
        fixture->backend->ops->embed(fixture->backend, &op);
    }
    return clock_ns() - start;
}

static KvLayout layout_of(const BenchCase *bench_case) {
    return (KvLayout){.kv_heads = bench_case->kv_heads,
        .head_dim = bench_case->dim,
        .value_dim = bench_case->latent ? LATENT : bench_case->dim,
        .dtype = DTYPE_F16,
        .latent = bench_case->latent};
}

static size_t code_bytes(const BenchCase *bench_case, bool values) {
    const KvLayout layout = layout_of(bench_case);
    return kv_quant_bytes(&layout, values ? bench_case->code.v : bench_case->code.k, values);
}

static int line_pages(const BenchCase *bench_case) {
    return (bench_case->depth + bench_case->rows + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

/* Pages for a call. With quantised pages, the few full-precision pages lie at the memory's beginning, each in its
 * place. */
static KvLayer place_cache(const BenchFixture *fixture, BenchCase *bench_case) {
    const KvLayout layout = layout_of(bench_case);
    const size_t page = fixture->backend->ops->kv_layer_bytes(fixture->backend, &layout),
                 pages = (size_t)line_pages(bench_case);
    KvLayer kv = {.layout = layout, .base = fixture->memory, .page_stride = page};
    if (bench_case->code.k == KV_FULL) {
        kv.base = take(fixture, bench_case, pages * page);
        return kv;
    }
    const size_t k = code_bytes(bench_case, false), v = code_bytes(bench_case, true);
    uint8_t *codes = take(fixture, bench_case, pages * (k + v));
    kv.k_quant[bench_case->code.k] = (KvStore){codes, k};
    kv.v_quant[bench_case->code.v] = (KvStore){codes + pages * k, v};
    return kv;
}

static int64_t run_attention(BenchFixture *fixture, BenchCase *bench_case, int calls) {
    const Rope rope = {.dims = min_int(bench_case->dim, DIM_MAX), .frequencies = fixture->frequencies, .scale = 1};
    int32_t *const table = fixture->pages;
    const size_t q_count = (size_t)(bench_case->rows * bench_case->heads * bench_case->dim);
    const size_t k_count = (size_t)(bench_case->rows * bench_case->kv_heads * bench_case->dim);
    const size_t latent_count = (size_t)(bench_case->rows * bench_case->heads * LATENT);
    const KvQuantView quant = {
        .hot = CODED_HOT, .sink = KV_PAGE_TOKENS, .layers = &bench_case->code, .k_pages = &table, .v_pages = &table};
    const int32_t *tables = table;
    begin(fixture, bench_case, &tables, bench_case->code.k != KV_FULL ? &quant : NULL);
    int64_t ns = 0;
    for (int i = 0; i < calls; i++) {
        const Attention op = {.heads = bench_case->heads,
            .kv = place_cache(fixture, bench_case),
            .scale = 1 / sqrtf((float)bench_case->dim),
            .rope = &rope,
            .q = fixture->q,
            .k = fixture->k,
            .v = fixture->v,
            .q_latent = bench_case->latent ? fixture->q_latent : NULL,
            .out = fixture->out};
        /* They may be overwritten, scaled as well: again and again, they would end in denormals. */
        memcpy(fixture->q, fixture->x, q_count * sizeof *fixture->q);
        memcpy(fixture->k, fixture->x, k_count * sizeof *fixture->k);
        if (bench_case->latent) memcpy(fixture->q_latent, fixture->x, latent_count * sizeof *fixture->q_latent);
        const int64_t start = clock_ns();
        fixture->backend->ops->attention(fixture->backend, &op);
        ns += clock_ns() - start;
    }
    return ns;
}

/* Pages of recurrent states for a call: before its rows and behind them, in table[0] and its last entry. */
static RecurrentPart place_states(const BenchFixture *fixture, BenchCase *bench_case, int64_t anchor, int64_t row) {
    KvLayer kv = {.page_tokens = RECURRENT_PAGE_TOKENS};
    kv.layout = (KvLayout){
        .dtype = DTYPE_F32, .anchor_bytes = (size_t)anchor * sizeof(float), .row_bytes = (size_t)row * sizeof(float)};
    kv.page_stride = align_up(kv_canonical_bytes(&kv.layout, RECURRENT_PAGE_TOKENS));
    kv.base = take(fixture, bench_case, 2 * kv.page_stride);
    return (RecurrentPart){.kv = kv};
}

static void begin_states(
    BenchFixture *fixture, const BenchCase *bench_case, int32_t *table, const int32_t *const *tables) {
    const int first = (bench_case->depth - 1) / RECURRENT_PAGE_TOKENS;
    const int last = (bench_case->depth + bench_case->rows - 1) / RECURRENT_PAGE_TOKENS;
    for (int i = 0; i <= last; i++) table[i] = i == first ? 0 : i == last ? 1 : -1;
    begin(fixture, bench_case, tables, NULL);
}

static int64_t run_recurrence(BenchFixture *fixture, BenchCase *bench_case, int calls) {
    int32_t table[(STATE_DEPTH + LINE_ROWS_MAX) / RECURRENT_PAGE_TOKENS + 1];
    const int32_t *tables = table;
    const Norm norm = {NORM_RMS, bench_case->recurrence.key_dim, 1e-6f, NULL, NULL};
    Recurrence op = bench_case->recurrence;
    const int64_t keys = (int64_t)bench_case->rows * op.key_heads * op.key_dim;
    const bool delta = op.kind == RECURRENCE_DELTA;
    op.rows = bench_case->rows;
    op.q_norm = op.k_norm = delta ? &norm : NULL;
    op.rate = fixture->logits; /* the sign does not matter for the speed */
    op.q = fixture->q_latent;
    op.k = op.q + keys;
    op.work = op.k + keys;
    op.v = fixture->x;
    op.a = fixture->x + (int64_t)op.rows * op.value_heads * op.value_dim;
    op.b = delta ? op.a + (int64_t)op.rows * op.value_heads : NULL;
    op.out = fixture->out;
    begin_states(fixture, bench_case, table, &tables);
    const int64_t start = clock_ns();
    for (int i = 0; i < calls; i++) {
        op.place = place_states(fixture, bench_case, recurrence_anchor_width(&op), recurrence_row_width(&op));
        fixture->backend->ops->recurrence(fixture->backend, &op);
    }
    return clock_ns() - start;
}

static int64_t run_conv(BenchFixture *fixture, BenchCase *bench_case, int calls) {
    int32_t table[(STATE_DEPTH + LINE_ROWS_MAX) / RECURRENT_PAGE_TOKENS + 1];
    const int32_t *tables = table;
    Conv op = {.rows = bench_case->rows, .taps = CONV_TAPS, .silu = true, .part_count = 1};
    op.part[0] = (ConvPart){.channels = CONV_CHANNELS, .weight = fixture->logits, .x = fixture->x, .out = fixture->out};
    begin_states(fixture, bench_case, table, &tables);
    const int64_t start = clock_ns();
    for (int i = 0; i < calls; i++) {
        op.place = place_states(fixture, bench_case, conv_anchor_width(&op), conv_row_width(&op));
        fixture->backend->ops->conv(fixture->backend, &op);
    }
    return clock_ns() - start;
}

static int64_t run_gated_norm(BenchFixture *fixture, BenchCase *bench_case, int calls) {
    const GatedNorm op = {.rows = bench_case->rows,
        .width = bench_case->width,
        .group = DIM_MAX,
        .eps = 1e-6f,
        .weight = fixture->logits,
        .gate_kind = GATE_SILU,
        .gate_scale = 1,
        .x = fixture->x,
        .gate = fixture->q,
        .out = fixture->out};
    const int64_t start = clock_ns();
    for (int i = 0; i < calls; i++) fixture->backend->ops->gated_norm(fixture->backend, &op);
    return clock_ns() - start;
}

/* One page of one layer. */
static int64_t run_coding(BenchFixture *fixture, BenchCase *bench_case, int calls) {
    int64_t ns = 0;
    uint64_t pairs[KV_HEADS_MAX] = {0};
    const KvQuant code = {.k = bench_case->code.k, .v = bench_case->code.v, .bias_pairs = pairs};
    for (int i = 0; i < calls; i++) {
        const KvLayer kv = place_cache(fixture, bench_case);
        const KvQuantise page = {.layer = &kv, .code = &code};
        const int64_t start = clock_ns();
        fixture->backend->ops->kv_quantise(fixture->backend, 1, &page);
        ns += clock_ns() - start;
    }
    return ns;
}

static int64_t run_norm(BenchFixture *fixture, BenchCase *bench_case, int calls) {
    const Norm norm = {NORM_RMS, bench_case->width, 1e-6f, fixture->q, NULL};
    const int64_t start = clock_ns();
    for (int i = 0; i < calls; i++)
        fixture->backend->ops->norm(fixture->backend, bench_case->rows, fixture->x, &norm, fixture->out);
    return clock_ns() - start;
}

static int64_t run_activate(BenchFixture *fixture, BenchCase *bench_case, int calls) {
    const int64_t start = clock_ns();
    for (int i = 0; i < calls; i++)
        fixture->backend->ops->activate(fixture->backend, bench_case->rows * bench_case->width, fixture->x,
            (Activation){.kind = ACT_SILU}, fixture->out);
    return clock_ns() - start;
}

/* By the kernel itself, one row on one thread: in the backend it is a part of every product. */
static int64_t run_quantise(BenchFixture *fixture, BenchCase *bench_case, int calls) {
    const LinearKernels *kernels = cpu_backend(fixture->backend)->kernels->linear;
    const int64_t start = clock_ns();
    for (int i = 0; i < calls; i++)
        kernels->quantise(
            fixture->x, bench_case->width, bench_case->weight.group, fixture->codes, fixture->scales, fixture->sums);
    return clock_ns() - start;
}

static int64_t run_sample(BenchFixture *fixture, BenchCase *bench_case, int calls) {
    Sampler sampler;
    sampler_init(&sampler, &bench_case->sampling, LOGITS, 0, NULL); /* without penalties there is no history to keep */
    int64_t ns = 0;
    for (int i = 0; i < calls; i++) {
        TokenOut token;
        memcpy(fixture->draft, bench_case->flat ? fixture->flat : fixture->logits, LOGITS * sizeof *fixture->draft);
        const int64_t start = clock_ns();
        sampler_next(&sampler, &fixture->sampler, fixture->draft, i, &token);
        ns += clock_ns() - start;
    }
    return ns;
}

/* ---- the list ---- */

typedef struct List {
    const BenchFixture *fixture;
    const char *only;
    BenchCase *bench_cases;
    int count;
} List;

PRINTF_LIKE(3, 4)
static void list_add(List *list, BenchCase bench_case, const char *format, ...) {
    char pattern[2 * LINE_NAME_MAX] = "*";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(bench_case.name, sizeof bench_case.name, format, arguments);
    va_end(arguments);
    if (list->only) snprintf(pattern, sizeof pattern, "*%s*", list->only);
    if (fnmatch(pattern, bench_case.name, 0)) return;
    CHECK(list->count < LINES_MAX);
    list->bench_cases[list->count++] = bench_case;
}

static void name_weight(const Weight *w, char *out, size_t size) {
    if (w->quant == QUANT_NONE)
        snprintf(out, size, "%s", w->dtype == DTYPE_F16 ? "f16" : "bf16");
    else if (w->quant == QUANT_AFFINE)
        snprintf(out, size, "%d-bit g%d", w->bits, w->group);
    else if (quant_is_affine(w->quant))
        snprintf(out, size, "%d-bit %s", w->bits, quant_name(w->quant));
    else
        snprintf(out, size, "%s", quant_name(w->quant));
}

/* Activation rows: where ways through a product change, and between; of the other kinds of weights fewer. */
static const int ALL_ROWS[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64, 65, 128, 256, 512};
static const int SOME_ROWS[] = {1, 2, 4, 8, 16, 64, 512};
static const int CACHED_ROWS[] = {1, 4, 8};

/* Kinds that the models of most users have. */
static bool is_usual(const Weight *w) { return w->bits == 4 && (w->quant == QUANT_K || w->group == 64); }

static void add_products(List *list, const Weight *kind) {
    const int *rows = is_usual(kind) ? ALL_ROWS : SOME_ROWS;
    const size_t count = is_usual(kind) ? COUNT_OF(ALL_ROWS) : COUNT_OF(SOME_ROWS);
    char name[32];
    name_weight(kind, name, sizeof name);
    BenchCase bench_case = {.run = run_product, .weight = *kind, .integer = linear_is_integer(kind)};
    bench_case.weight.cols = COLS;
    bench_case.weight.rows = ROWS;
    bench_case.bytes = (double)ROWS *
        (double)(weight_row_bytes(&bench_case.weight) +
            weight_scale_bytes(&bench_case.weight) * (kind->quant == QUANT_AFFINE ? 2 : 1));
    for (size_t i = 0; i < count; i++) {
        bench_case.rows = rows[i];
        bench_case.operations = 2.0 * rows[i] * ROWS * COLS;
        list_add(list, bench_case, "product %s rows %d", name, rows[i]);
    }
}

static void add_cached_product(List *list, const Weight *kind, int threads) {
    char name[32];
    name_weight(kind, name, sizeof name);
    BenchCase bench_case = {.run = run_product, .weight = *kind, .integer = linear_is_integer(kind), .stay = true};
    bench_case.weight.cols = COLS;
    bench_case.weight.rows = 1;
    const size_t row = weight_row_bytes(&bench_case.weight) + 2 * weight_scale_bytes(&bench_case.weight);
    bench_case.weight.rows = (int64_t)((size_t)CACHED_BYTES * (size_t)threads / row);
    for (size_t i = 0; i < COUNT_OF(CACHED_ROWS); i++) {
        bench_case.rows = CACHED_ROWS[i];
        bench_case.operations = 2.0 * bench_case.rows * (double)bench_case.weight.rows * COLS;
        list_add(list, bench_case, "product %s rows %d in L2", name, bench_case.rows);
    }
}

static void add_weights(List *list, int threads) {
    static const int bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    static const Weight others[] = {
        {.quant = QUANT_MXFP4, .bits = 4, .group = 32},
        {.quant = QUANT_MXFP8, .bits = 8, .group = 32},
        {.quant = QUANT_NVFP4, .bits = 4, .group = 16},
        {.quant = QUANT_SYMMETRIC, .bits = 5, .group = 32, .dtype = DTYPE_F16},
        {.quant = QUANT_SYMMETRIC, .bits = 8, .group = 32, .dtype = DTYPE_F16},
        {.quant = QUANT_K, .bits = 4, .group = 32, .dtype = DTYPE_U8},
        {.quant = QUANT_K_SYMMETRIC, .bits = 6, .group = 16, .dtype = DTYPE_U8},
        {.quant = QUANT_TERNARY, .bits = 2, .group = 64, .dtype = DTYPE_BF16},
        {.quant = QUANT_NONE, .dtype = DTYPE_F16},
        {.quant = QUANT_NONE, .dtype = DTYPE_BF16},
    };
    Weight kinds[COUNT_OF(bits) * COUNT_OF(groups) + COUNT_OF(others)];
    size_t count = 0;
    for (size_t b = 0; b < COUNT_OF(bits); b++)
        for (size_t g = 0; g < COUNT_OF(groups); g++)
            kinds[count++] = (Weight){.quant = QUANT_AFFINE, .bits = bits[b], .group = groups[g], .dtype = DTYPE_BF16};
    for (size_t i = 0; i < COUNT_OF(others); i++) kinds[count++] = others[i];
    for (size_t i = 0; i < count; i++) add_products(list, &kinds[i]);
    for (size_t i = 0; i < count; i++) add_cached_product(list, &kinds[i], threads);
}

/* Keys and values are read once; every query meets what it sees. */
static void add_attention(List *list, BenchCase bench_case, const char *format) {
    const double seen = bench_case.depth + (bench_case.rows + 1) / 2.0, width = 2.0 * bench_case.dim;
    bench_case.run = run_attention;
    bench_case.bytes = (double)(bench_case.depth + bench_case.rows) * bench_case.kv_heads * width * 2;
    bench_case.operations = 2.0 * bench_case.rows * seen * bench_case.heads * width;
    char what[32];
    snprintf(what, sizeof what, format, bench_case.depth);
    list_add(list, bench_case, "attention %d/%d heads of %d %s", bench_case.heads, bench_case.kv_heads, bench_case.dim,
        what);
}

static void add_attentions(List *list) {
    static const struct { int heads, kv_heads, dim; } shapes[] = {{32, 8, 64}, {14, 2, 64}, {32, 8, 128}, {28, 4, 128}};
    static const int depths[] = {1024, 4096, DEPTH_MAX}, prompts[] = {0, 4096};
    for (size_t s = 0; s < COUNT_OF(shapes); s++) {
        BenchCase bench_case = {.heads = shapes[s].heads, .kv_heads = shapes[s].kv_heads, .dim = shapes[s].dim};
        for (size_t d = 0; d < COUNT_OF(depths); d++) {
            bench_case.rows = 1;
            bench_case.depth = depths[d];
            add_attention(list, bench_case, "depth %d");
        }
        for (size_t d = 0; d < COUNT_OF(prompts); d++) {
            bench_case.rows = LINE_ROWS_MAX;
            bench_case.depth = prompts[d];
            add_attention(list, bench_case, "prompt at %d");
        }
    }
}

static const struct {
    const char *name;
    KvForm k, v;
} formats[] = {{"f16", KV_FULL, KV_FULL}, {"q8", KV_Q8, KV_Q8}, {"turbo6", KV_Q6, KV_Q6}, {"turbo5", KV_Q5, KV_Q5},
    {"turbo4", KV_Q4, KV_Q4}, {"turbo3", KV_Q4, KV_Q3}};

static void add_codings(List *list) {
    for (size_t f = 1; f < COUNT_OF(formats); f++) {
        BenchCase bench_case = {.run = run_coding,
            .kv_heads = KV_HEADS_MAX,
            .dim = DIM_MAX,
            .depth = KV_PAGE_TOKENS,
            .code = {.k = formats[f].k, .v = formats[f].v}};
        bench_case.bytes = 4.0 * KV_PAGE_TOKENS * bench_case.dim * bench_case.kv_heads;
        list_add(list, bench_case, "code 128 tokens of %d heads of %d %s", bench_case.kv_heads, bench_case.dim,
            formats[f].name);
    }
}

/* What codes cost besides the products of int8. A score is scaled twice, its exponential is five multiplications, its
 * weight is scaled, and rounded in a running sum: nine of f32 for each query and token. With AVX2 products are summed
 * in 16 bits, and widened by a multiplication for four (two, where codes fill a byte). And all of these and what makes
 * bytes of codes are instructions that must be issued; codes are looked up once for the queries of a kv head that go
 * together. */
static void count_besides(const BenchFixture *fixture, BenchCase *bench_case, double scores) {
    enum { MULTIPLICATIONS = 9 };
    const KvForm forms[] = {bench_case->code.k, bench_case->code.v};
    bench_case->integer = true;
    bench_case->floats = 2.0 * MULTIPLICATIONS * scores;
    for (int i = 0; i < 2 && !strcmp(fixture->backend->ops->name, "avx2"); i++)
        bench_case->besides += bench_case->operations / 2 * (forms[i] <= KV_Q4 ? 0.5 : 1);
    const int own = bench_case->rows * bench_case->heads / bench_case->kv_heads,
              together = own < ATTENTION_QUERIES ? own : ATTENTION_QUERIES;
    bench_case->instructions = scores / KV_PAGE_TOKENS / together *
        limits_scan(fixture->backend->ops->name, bench_case->code.k, bench_case->code.v, bench_case->dim, together);
}

/* One row far into a text, over pages as they were computed and as codes; the last shape is Qwen3.5-4B's. */
static void add_coded_attentions(List *list) {
    static const struct { int heads, kv_heads, dim; } shapes[] = {{12, 2, DIM_MAX}, {32, 8, DIM_MAX}, {16, 4, 256}};
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        for (size_t f = 0; f < COUNT_OF(formats); f++) {
            BenchCase bench_case = {.run = run_attention,
                .heads = shapes[s].heads,
                .kv_heads = shapes[s].kv_heads,
                .dim = shapes[s].dim,
                .code = {.k = formats[f].k, .v = formats[f].v}};
            for (bench_case.rows = 1; bench_case.rows <= LINE_ROWS_MAX; bench_case.rows *= LINE_ROWS_MAX) {
                bench_case.depth = bench_case.rows == 1 ? DEPTH_MAX : DEPTH_MAX / 4;
                const double seen = bench_case.depth + (bench_case.rows + 1) / 2.0,
                             tokens = bench_case.depth + bench_case.rows;
                const double token = formats[f].k == KV_FULL
                    ? 4.0 * bench_case.dim * bench_case.kv_heads
                    : (double)(code_bytes(&bench_case, false) + code_bytes(&bench_case, true)) / KV_PAGE_TOKENS;
                bench_case.bytes = tokens * token;
                bench_case.operations = 4.0 * bench_case.rows * seen * bench_case.heads * bench_case.dim;
                bench_case.besides = bench_case.instructions = 0;
                if (formats[f].k != KV_FULL)
                    count_besides(list->fixture, &bench_case, bench_case.rows * seen * bench_case.heads);
                list_add(list, bench_case, "attention %d/%d heads of %d %s %d %s", bench_case.heads,
                    bench_case.kv_heads, bench_case.dim, bench_case.rows == 1 ? "depth" : "prompt at", bench_case.depth,
                    formats[f].name);
            }
        }
}

/* The same of latents: both products meet them, and the keys beside them one. Of 16 heads, as DeepSeek-V2-Lite has. */
static void add_latent_attentions(List *list) {
    for (size_t f = 0; f < COUNT_OF(formats); f++) {
        BenchCase bench_case = {.run = run_attention,
            .heads = LATENT_HEADS,
            .kv_heads = 1,
            .dim = LATENT_KEY,
            .latent = true,
            .code = {.k = formats[f].k, .v = formats[f].v}};
        for (bench_case.rows = 1; bench_case.rows <= LINE_ROWS_MAX; bench_case.rows *= LINE_ROWS_MAX) {
            bench_case.depth = bench_case.rows == 1 ? DEPTH_MAX : DEPTH_MAX / 4;
            const double seen = bench_case.depth + (bench_case.rows + 1) / 2.0,
                         tokens = bench_case.depth + bench_case.rows;
            bench_case.bytes = tokens *
                (formats[f].k == KV_FULL
                        ? 2.0 * (LATENT + LATENT_KEY)
                        : (double)(code_bytes(&bench_case, false) + code_bytes(&bench_case, true)) / KV_PAGE_TOKENS);
            bench_case.operations = 2.0 * bench_case.rows * seen * bench_case.heads * (2 * LATENT + LATENT_KEY);
            bench_case.integer = formats[f].k != KV_FULL;
            list_add(list, bench_case, "attention %d heads of latents %s %d %s", bench_case.heads,
                bench_case.rows == 1 ? "depth" : "prompt at", bench_case.depth, formats[f].name);
        }
    }
}

/* The shapes of Qwen3.5-4B and Nemotron-H-8B. */
static void add_states(List *list) {
    static const int rows[] = {1, LINE_ROWS_MAX};
    static const Recurrence shapes[] = {
        {.kind = RECURRENCE_DELTA, .key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128},
        {.kind = RECURRENCE_SSD, .key_heads = 8, .value_heads = 128, .key_dim = 128, .value_dim = 64}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        for (size_t n = 0; n < COUNT_OF(shapes); n++) {
            BenchCase bench_case = {
                .run = run_recurrence, .rows = rows[i], .depth = STATE_DEPTH, .recurrence = shapes[n]};
            Recurrence *op = &bench_case.recurrence;
            const bool delta = op->kind == RECURRENCE_DELTA;
            const int tail = STATE_DEPTH % RECURRENT_PAGE_TOKENS;
            op->q_scale = op->k_scale = op->dt_scale = 1;
            op->dt_max = INFINITY;
            bench_case.bytes = (double)(recurrence_anchor_width(op) + tail * recurrence_row_width(op)) * sizeof(float);
            bench_case.operations = 2.0 * rows[i] * op->value_heads *
                ((delta ? 3 : 2) * op->key_dim + (delta ? 1.0 : 0.5) * RECURRENT_PAGE_TOKENS) * op->value_dim;
            list_add(list, bench_case, "%s %d heads of %d × %d rows %d", delta ? "delta" : "ssd", op->value_heads,
                op->key_dim, op->value_dim, rows[i]);
        }
        BenchCase conv = {.run = run_conv, .rows = rows[i], .depth = STATE_DEPTH};
        list_add(list, conv, "conv %d of %d channels rows %d", CONV_TAPS, CONV_CHANNELS, rows[i]);
        BenchCase norm = {.run = run_gated_norm, .rows = rows[i], .width = HEADS_MAX * DIM_MAX};
        list_add(list, norm, "gated norm %d rows %d", HEADS_MAX * DIM_MAX, rows[i]);
    }
}

static void add_others(List *list) {
    static const int rows[] = {1, LINE_ROWS_MAX};
    const Weight table = {
        .rows = EMBED_ROWS, .cols = COLS, .quant = QUANT_AFFINE, .bits = 4, .group = 64, .dtype = DTYPE_BF16};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        list_add(list, (BenchCase){.run = run_norm, .rows = rows[i], .width = COLS}, "norm %d rows %d", COLS, rows[i]);
        list_add(
            list, (BenchCase){.run = run_activate, .rows = rows[i], .width = ROWS}, "silu %d rows %d", ROWS, rows[i]);
        list_add(
            list, (BenchCase){.run = run_embed, .rows = rows[i], .weight = table}, "embed 4-bit g64 rows %d", rows[i]);
    }
    for (int group = 16; group <= 64 && strcmp(list->fixture->backend->ops->name, "ref"); group *= 2) {
        BenchCase bench_case = {.run = run_quantise, .width = ROWS, .weight = {.group = group}};
        list_add(list, bench_case, "quantise %d g%d, one thread", ROWS, group);
    }
    BenchCase sample = {.run = run_sample, .sampling = {.top_p = 1, .repetition_penalty = 1, .logprobs = -1}};
    list_add(list, sample, "sample 256k greedy");
    sample.sampling.temperature = 0.7f;
    list_add(list, sample, "sample 256k");
    sample.sampling.top_k = 40;
    list_add(list, sample, "sample 256k top-k 40");
    sample.sampling.top_k = 0;
    sample.sampling.top_p = 0.95f;
    list_add(list, sample, "sample 256k top-p 0.95");
    sample.flat = true;
    list_add(list, sample, "sample 256k top-p 0.95, flat logits");
    sample.flat = false;
    sample.sampling.top_k = 40;
    list_add(list, sample, "sample 256k top-k 40 top-p 0.95");
}

int bench_cases_list(const BenchFixture *fixture, const char *only, BenchCase *bench_cases) {
    List list = {fixture, only, bench_cases, 0};
    add_weights(&list, fixture->threads);
    add_attentions(&list);
    add_coded_attentions(&list);
    add_latent_attentions(&list);
    add_codings(&list);
    add_states(&list);
    add_others(&list);
    return list.count;
}
