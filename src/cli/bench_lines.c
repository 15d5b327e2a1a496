/* The lines of `apus bench --operations`. Weights lie one after the other in a memory larger than any cache, and each
 * call takes the next, so that they come from memory as in a model. */
#include "cli/bench_lines.h"

#include <fnmatch.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "backend/kv_code.h"
#include "base/clock.h"

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
    LATENT = 512, /* of latent attention, and the keys beside it */
    LATENT_KEY = 64,
    LATENT_HEADS = 16,
    DEPTH_MAX = 32768,
    PAGES_MAX = (DEPTH_MAX + LINE_ROWS_MAX) / KV_PAGE_TOKENS + 1,
    CACHED_BYTES = 256 << 10, /* per thread: fits every second-level cache */
    ALIGN = 64,
    MEMORY_USUAL = 1 << 30,
    CACHES = 4,      /* how often the last cache fits into the memory, at least */
    MEMORY_PART = 4, /* of the machine's, at most one in so many */
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

bool bed_open(Bed *bed, const BenchPlan *plan, Error *error) {
    const BackendOptions options = {.cpu = plan->cpu,
        .threads = plan->threads,
        .precise = plan->precise,
        .rows_max = LINE_ROWS_MAX,
        .scratch_bytes = 1 << 16};
    *bed = (Bed){.threads = plan->threads, .backend = backend_open(&options, error)};
    return bed->backend != NULL;
}

bool bed_fill(Bed *bed, Error *error) {
    const size_t rows = LINE_ROWS_MAX, stride = 2 * ROWS;
    bed->bytes = memory_bytes();
    bed->memory = aligned_alloc(2 << 20, bed->bytes);
    bed->x = random_floats(rows * ROWS, 1);
    bed->out = random_floats(rows * ROWS, 1);
    bed->q = random_floats(rows * HEADS_MAX * DIM_MAX, 1);
    bed->k = random_floats(rows * KV_HEADS_MAX * DIM_MAX, 1);
    bed->v = random_floats(rows * KV_HEADS_MAX * DIM_MAX, 1);
    bed->q_latent = random_floats(rows * LATENT_HEADS * LATENT, 1);
    bed->codes = aligned_alloc(ALIGN, stride);
    bed->scales = random_floats(stride, 1);
    bed->sums = random_floats(stride, 1);
    bed->logits = random_floats(LOGITS, LOGITS_SPREAD);
    bed->flat = random_floats(LOGITS, LOGITS_SPREAD);
    bed->draft = random_floats(LOGITS, LOGITS_SPREAD);
    bed->tokens = calloc(rows, sizeof *bed->tokens);
    bed->positions = calloc(rows, sizeof *bed->positions);
    bed->pages = calloc(PAGES_MAX, sizeof *bed->pages);
    bed->frequencies = calloc(DIM_MAX / 2, sizeof *bed->frequencies);
    if (!sampler_scratch_open(&bed->sampler, LOGITS, error)) return false;
    const void *taken[] = {bed->memory, bed->x, bed->out, bed->q, bed->k, bed->v, bed->q_latent, bed->codes,
        bed->scales, bed->sums, bed->logits, bed->flat, bed->draft, bed->tokens, bed->positions, bed->pages,
        bed->frequencies};
    bool ok = true;
    for (size_t i = 0; i < COUNT_OF(taken); i++) ok = ok && taken[i];
    if (!ok) return fail(error, ERROR_MEMORY, "no memory for the operands of a line");
    for (int i = 0; i < LINE_ROWS_MAX; i++) bed->tokens[i] = (int32_t)((uint32_t)i * 40503u % EMBED_ROWS);
    for (int i = 0; i < PAGES_MAX; i++) bed->pages[i] = i;
    for (int i = 0; i < LIKELY; i++) bed->logits[i * (LOGITS / LIKELY)] = (float)(LOGITS_SPREAD + LIKELY - i);
    for (int i = 0; i < DIM_MAX / 2; i++) bed->frequencies[i] = powf(10000, -(float)i * 2 / DIM_MAX);
    madvise(bed->memory, bed->bytes, MADV_HUGEPAGE);
    Pool *pool = pool_open(bed->threads, error);
    if (!pool) return false;
    Fill fill = {bed->memory, bed->bytes};
    pool_run(pool, fill_part, &fill);
    pool_close(pool);
    return true;
}

void bed_close(Bed *bed) {
    backend_close(bed->backend);
    sampler_scratch_close(&bed->sampler);
    void *taken[] = {bed->memory, bed->x, bed->out, bed->q, bed->k, bed->v, bed->q_latent, bed->codes, bed->scales,
        bed->sums, bed->logits, bed->flat, bed->draft, bed->tokens, bed->positions, bed->pages, bed->frequencies};
    for (size_t i = 0; i < COUNT_OF(taken); i++) free(taken[i]);
    *bed = (Bed){0};
}

/* ---- running ---- */

/* Where a call's bytes begin, and the next call's after it. */
static uint8_t *take(const Bed *bed, Line *line, size_t bytes) {
    if (line->at + bytes > bed->bytes) line->at = 0;
    uint8_t *memory = bed->memory + line->at;
    if (!line->stay) line->at += align_up(bytes);
    return memory;
}

static Weight place(const Bed *bed, Line *line) {
    Weight w = line->weight;
    const size_t data = align_up((size_t)w.rows * weight_row_bytes(&w)),
                 scales = align_up((size_t)w.rows * weight_scale_bytes(&w));
    const bool affine = w.quant == QUANT_AFFINE;
    uint8_t *memory = take(bed, line, data + scales * (affine ? 2 : 1));
    w.data = memory;
    if (w.quant != QUANT_NONE) w.scales = memory + data;
    if (affine) w.biases = memory + data + scales;
    return w;
}

/* One sequence of line->depth tokens, and line->rows more. */
static void begin(const Bed *bed, const Line *line, const int32_t *const *tables, Run *run) {
    *run = (Run){.rows = line->rows, .position = line->depth, .tables = tables};
    for (int i = 0; i < line->rows; i++) bed->positions[i] = line->depth + i;
    const Step step = {
        .rows = line->rows, .tokens = bed->tokens, .positions = bed->positions, .run_count = 1, .runs = run, .axes = 1};
    bed->backend->ops->begin(bed->backend, &step);
}

static int64_t run_product(Bed *bed, Line *line, int calls) {
    Run run;
    begin(bed, line, NULL, &run);
    const int64_t start = clock_ns();
    for (int i = 0; i < calls; i++) {
        const Weight w = place(bed, line);
        const Matmul op = {.rows = line->rows, .x = bed->x, .count = 1, .weight = {&w}, .out = {bed->out}};
        bed->backend->ops->matmul(bed->backend, &op);
    }
    return clock_ns() - start;
}

static int64_t run_embed(Bed *bed, Line *line, int calls) {
    Run run;
    begin(bed, line, NULL, &run);
    const int64_t start = clock_ns();
    for (int i = 0; i < calls; i++) {
        const Weight w = place(bed, line);
        const Embed op = {.rows = line->rows, .tokens = bed->tokens, .table = &w, .scale = 1, .out = bed->out};
        bed->backend->ops->embed(bed->backend, &op);
    }
    return clock_ns() - start;
}

static KvLayout layout_of(const Line *line) {
    return (KvLayout){line->kv_heads, line->dim, line->latent ? LATENT : line->dim, DTYPE_F16, line->latent};
}

static size_t code_bytes(const Line *line, bool values) {
    const KvLayout layout = layout_of(line);
    return kv_code_bytes(&layout, values ? line->code.v : line->code.k, values);
}

static int line_pages(const Line *line) { return (line->depth + line->rows + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS; }

/* Pages for a call. Where codes are seen, the few exact pages lie at the memory's beginning, each in its place. */
static KvLayer place_cache(const Bed *bed, Line *line) {
    const KvLayout layout = layout_of(line);
    const size_t page = bed->backend->ops->kv_layer_bytes(bed->backend, &layout), pages = (size_t)line_pages(line);
    KvLayer kv = {.layout = layout, .base = bed->memory, .page_stride = page};
    if (line->code.k == KV_EXACT) {
        kv.base = take(bed, line, pages * page);
        return kv;
    }
    const size_t k = code_bytes(line, false), v = code_bytes(line, true);
    uint8_t *codes = take(bed, line, pages * (k + v));
    kv.k_codes[line->code.k] = (KvStore){codes, k};
    kv.v_codes[line->code.v] = (KvStore){codes + pages * k, v};
    return kv;
}

static int64_t run_attention(Bed *bed, Line *line, int calls) {
    const Rope rope = {.dims = line->dim, .frequencies = bed->frequencies, .scale = 1};
    int32_t *const table = bed->pages;
    const size_t q_count = (size_t)(line->rows * line->heads * line->dim);
    const size_t k_count = (size_t)(line->rows * line->kv_heads * line->dim);
    const size_t latent_count = (size_t)(line->rows * line->heads * LATENT);
    const KvCoding coding = {
        .hot = CODED_HOT, .sink = KV_PAGE_TOKENS, .layers = &line->code, .k_pages = &table, .v_pages = &table};
    const int32_t *tables = table;
    Run run;
    begin(bed, line, &tables, &run);
    if (line->code.k != KV_EXACT) run.coding = &coding;
    int64_t ns = 0;
    for (int i = 0; i < calls; i++) {
        const Attention op = {.heads = line->heads,
            .kv = place_cache(bed, line),
            .scale = 1 / sqrtf((float)line->dim),
            .rope = &rope,
            .q = bed->q,
            .k = bed->k,
            .v = bed->v,
            .q_latent = line->latent ? bed->q_latent : NULL,
            .out = bed->out};
        /* They may be overwritten, scaled as well: again and again, they would end in denormals. */
        memcpy(bed->q, bed->x, q_count * sizeof *bed->q);
        memcpy(bed->k, bed->x, k_count * sizeof *bed->k);
        if (line->latent) memcpy(bed->q_latent, bed->x, latent_count * sizeof *bed->q_latent);
        const int64_t start = clock_ns();
        bed->backend->ops->attention(bed->backend, &op);
        ns += clock_ns() - start;
    }
    return ns;
}

/* One page of one layer. */
static int64_t run_coding(Bed *bed, Line *line, int calls) {
    int64_t ns = 0;
    uint64_t pairs[KV_HEADS_MAX] = {0};
    const KvCode code = {.k = line->code.k, .v = line->code.v, .bias_pairs = pairs};
    for (int i = 0; i < calls; i++) {
        const KvLayer kv = place_cache(bed, line);
        const KvEncode page = {.layer = &kv, .code = &code};
        const int64_t start = clock_ns();
        bed->backend->ops->kv_encode(bed->backend, 1, &page);
        ns += clock_ns() - start;
    }
    return ns;
}

static int64_t run_norm(Bed *bed, Line *line, int calls) {
    const Norm norm = {NORM_RMS, line->width, 1e-6f, bed->q, NULL};
    const int64_t start = clock_ns();
    for (int i = 0; i < calls; i++) bed->backend->ops->norm(bed->backend, line->rows, bed->x, &norm, bed->out);
    return clock_ns() - start;
}

static int64_t run_activate(Bed *bed, Line *line, int calls) {
    const int64_t start = clock_ns();
    for (int i = 0; i < calls; i++)
        bed->backend->ops->activate(bed->backend, line->rows * line->width, bed->x, ACT_SILU, bed->out);
    return clock_ns() - start;
}

/* By the kernel itself, one row on one thread: in the backend it is a part of every product. */
static int64_t run_quantise(Bed *bed, Line *line, int calls) {
    const LinearKernels *kernels = cpu_backend(bed->backend)->kernels->linear;
    const int64_t start = clock_ns();
    for (int i = 0; i < calls; i++)
        kernels->quantise(bed->x, line->width, line->weight.group, bed->codes, bed->scales, bed->sums);
    return clock_ns() - start;
}

static int64_t run_sample(Bed *bed, Line *line, int calls) {
    Sampler sampler;
    sampler_init(&sampler, &line->sampling, LOGITS, 0, NULL); /* without penalties there is no history to keep */
    int64_t ns = 0;
    for (int i = 0; i < calls; i++) {
        TokenOut token;
        memcpy(bed->draft, line->flat ? bed->flat : bed->logits, LOGITS * sizeof *bed->draft);
        const int64_t start = clock_ns();
        sampler_next(&sampler, &bed->sampler, bed->draft, i, &token);
        ns += clock_ns() - start;
    }
    return ns;
}

/* ---- the list ---- */

typedef struct List {
    const Bed *bed;
    const char *only;
    Line *lines;
    int count;
} List;

PRINTF_LIKE(3, 4)
static void list_add(List *list, Line line, const char *format, ...) {
    char pattern[2 * LINE_NAME_MAX] = "*";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line.name, sizeof line.name, format, arguments);
    va_end(arguments);
    if (list->only) snprintf(pattern, sizeof pattern, "*%s*", list->only);
    if (fnmatch(pattern, line.name, 0)) return;
    CHECK(list->count < LINES_MAX);
    list->lines[list->count++] = line;
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
    Line line = {.run = run_product, .weight = *kind, .integer = linear_is_integer(kind)};
    line.weight.cols = COLS;
    line.weight.rows = ROWS;
    line.bytes = (double)ROWS *
        (double)(weight_row_bytes(&line.weight) +
            weight_scale_bytes(&line.weight) * (kind->quant == QUANT_AFFINE ? 2 : 1));
    for (size_t i = 0; i < count; i++) {
        line.rows = rows[i];
        line.operations = 2.0 * rows[i] * ROWS * COLS;
        list_add(list, line, "product %s rows %d", name, rows[i]);
    }
}

static void add_cached_product(List *list, const Weight *kind, int threads) {
    char name[32];
    name_weight(kind, name, sizeof name);
    Line line = {.run = run_product, .weight = *kind, .integer = linear_is_integer(kind), .stay = true};
    line.weight.cols = COLS;
    line.weight.rows = 1;
    const size_t row = weight_row_bytes(&line.weight) + 2 * weight_scale_bytes(&line.weight);
    line.weight.rows = (int64_t)((size_t)CACHED_BYTES * (size_t)threads / row);
    for (size_t i = 0; i < COUNT_OF(CACHED_ROWS); i++) {
        line.rows = CACHED_ROWS[i];
        line.operations = 2.0 * line.rows * (double)line.weight.rows * COLS;
        list_add(list, line, "product %s rows %d in L2", name, line.rows);
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
static void add_attention(List *list, Line line, const char *format) {
    const double seen = line.depth + (line.rows + 1) / 2.0, width = 2.0 * line.dim;
    line.run = run_attention;
    line.bytes = (double)(line.depth + line.rows) * line.kv_heads * width * 2;
    line.operations = 2.0 * line.rows * seen * line.heads * width;
    char what[32];
    snprintf(what, sizeof what, format, line.depth);
    list_add(list, line, "attention %d/%d heads of %d %s", line.heads, line.kv_heads, line.dim, what);
}

static void add_attentions(List *list) {
    static const struct { int heads, kv_heads, dim; } shapes[] = {{32, 8, 64}, {14, 2, 64}, {32, 8, 128}, {28, 4, 128}};
    static const int depths[] = {1024, 4096, DEPTH_MAX}, prompts[] = {0, 4096};
    for (size_t s = 0; s < COUNT_OF(shapes); s++) {
        Line line = {.heads = shapes[s].heads, .kv_heads = shapes[s].kv_heads, .dim = shapes[s].dim};
        for (size_t d = 0; d < COUNT_OF(depths); d++) {
            line.rows = 1;
            line.depth = depths[d];
            add_attention(list, line, "depth %d");
        }
        for (size_t d = 0; d < COUNT_OF(prompts); d++) {
            line.rows = LINE_ROWS_MAX;
            line.depth = prompts[d];
            add_attention(list, line, "prompt at %d");
        }
    }
}

static const struct {
    const char *name;
    KvForm k, v;
} formats[] = {{"f16", KV_EXACT, KV_EXACT}, {"q8", KV_CODE8, KV_CODE8}, {"turbo6", KV_CODE6, KV_CODE6},
    {"turbo5", KV_CODE5, KV_CODE5}, {"turbo4", KV_CODE4, KV_CODE4}, {"turbo3", KV_CODE4, KV_CODE3}};

static void add_codings(List *list) {
    for (size_t f = 1; f < COUNT_OF(formats); f++) {
        Line line = {.run = run_coding,
            .kv_heads = KV_HEADS_MAX,
            .dim = DIM_MAX,
            .depth = KV_PAGE_TOKENS,
            .code = {.k = formats[f].k, .v = formats[f].v}};
        line.bytes = 4.0 * KV_PAGE_TOKENS * line.dim * line.kv_heads;
        list_add(list, line, "code 128 tokens of %d heads of %d %s", line.kv_heads, line.dim, formats[f].name);
    }
}

/* What codes cost besides the products of int8. A score is scaled twice, its exponential is five multiplications, its
 * weight is scaled, and rounded in a running sum: nine of f32 for each query and token. With AVX2 products are summed
 * in 16 bits, and widened by a multiplication for four (two, where codes fill a byte). And all of these and what makes
 * bytes of codes are instructions that must be issued; codes are looked up once for the queries of a kv head that go
 * together. */
static void count_besides(const Bed *bed, Line *line, double scores) {
    enum { MULTIPLICATIONS = 9 };
    const KvForm forms[] = {line->code.k, line->code.v};
    line->integer = true;
    line->floats = 2.0 * MULTIPLICATIONS * scores;
    for (int i = 0; i < 2 && !strcmp(bed->backend->ops->name, "avx2"); i++)
        line->besides += line->operations / 2 * (forms[i] <= KV_CODE4 ? 0.5 : 1);
    const int own = line->rows * line->heads / line->kv_heads,
              together = own < ATTENTION_QUERIES ? own : ATTENTION_QUERIES;
    line->instructions = scores / KV_PAGE_TOKENS / together *
        limits_scan(bed->backend->ops->name, line->code.k, line->code.v, line->dim, together);
}

/* One row far into a text, over pages as they were computed and as codes. */
static void add_coded_attentions(List *list) {
    static const struct { int heads, kv_heads; } shapes[] = {{12, 2}, {32, 8}};
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        for (size_t f = 0; f < COUNT_OF(formats); f++) {
            Line line = {.run = run_attention,
                .heads = shapes[s].heads,
                .kv_heads = shapes[s].kv_heads,
                .dim = DIM_MAX,
                .code = {.k = formats[f].k, .v = formats[f].v}};
            for (line.rows = 1; line.rows <= LINE_ROWS_MAX; line.rows *= LINE_ROWS_MAX) {
                line.depth = line.rows == 1 ? DEPTH_MAX : DEPTH_MAX / 4;
                const double seen = line.depth + (line.rows + 1) / 2.0, tokens = line.depth + line.rows;
                const double token = formats[f].k == KV_EXACT
                    ? 4.0 * line.dim * line.kv_heads
                    : (double)(code_bytes(&line, false) + code_bytes(&line, true)) / KV_PAGE_TOKENS;
                line.bytes = tokens * token;
                line.operations = 4.0 * line.rows * seen * line.heads * line.dim;
                line.besides = line.instructions = 0;
                if (formats[f].k != KV_EXACT) count_besides(list->bed, &line, line.rows * seen * line.heads);
                list_add(list, line, "attention %d/%d heads of %d %s %d %s", line.heads, line.kv_heads, line.dim,
                    line.rows == 1 ? "depth" : "prompt at", line.depth, formats[f].name);
            }
        }
}

/* The same of latents: both products meet them, and the keys beside them one. Of 16 heads, as DeepSeek-V2-Lite has. */
static void add_latent_attentions(List *list) {
    for (size_t f = 0; f < COUNT_OF(formats); f++) {
        Line line = {.run = run_attention,
            .heads = LATENT_HEADS,
            .kv_heads = 1,
            .dim = LATENT_KEY,
            .latent = true,
            .code = {.k = formats[f].k, .v = formats[f].v}};
        for (line.rows = 1; line.rows <= LINE_ROWS_MAX; line.rows *= LINE_ROWS_MAX) {
            line.depth = line.rows == 1 ? DEPTH_MAX : DEPTH_MAX / 4;
            const double seen = line.depth + (line.rows + 1) / 2.0, tokens = line.depth + line.rows;
            line.bytes = tokens *
                (formats[f].k == KV_EXACT
                        ? 2.0 * (LATENT + LATENT_KEY)
                        : (double)(code_bytes(&line, false) + code_bytes(&line, true)) / KV_PAGE_TOKENS);
            line.operations = 2.0 * line.rows * seen * line.heads * (2 * LATENT + LATENT_KEY);
            line.integer = formats[f].k != KV_EXACT;
            list_add(list, line, "attention %d heads of latents %s %d %s", line.heads,
                line.rows == 1 ? "depth" : "prompt at", line.depth, formats[f].name);
        }
    }
}

static void add_others(List *list) {
    static const int rows[] = {1, LINE_ROWS_MAX};
    const Weight table = {
        .rows = EMBED_ROWS, .cols = COLS, .quant = QUANT_AFFINE, .bits = 4, .group = 64, .dtype = DTYPE_BF16};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        list_add(list, (Line){.run = run_norm, .rows = rows[i], .width = COLS}, "norm %d rows %d", COLS, rows[i]);
        list_add(list, (Line){.run = run_activate, .rows = rows[i], .width = ROWS}, "silu %d rows %d", ROWS, rows[i]);
        list_add(list, (Line){.run = run_embed, .rows = rows[i], .weight = table}, "embed 4-bit g64 rows %d", rows[i]);
    }
    for (int group = 16; group <= 64 && strcmp(list->bed->backend->ops->name, "ref"); group *= 2) {
        Line line = {.run = run_quantise, .width = ROWS, .weight = {.group = group}};
        list_add(list, line, "quantise %d g%d, one thread", ROWS, group);
    }
    Line sample = {.run = run_sample, .sampling = {.top_p = 1, .repetition_penalty = 1, .logprobs = -1}};
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

int lines_list(const Bed *bed, const char *only, Line *lines) {
    List list = {bed, only, lines, 0};
    add_weights(&list, bed->threads);
    add_attentions(&list);
    add_coded_attentions(&list);
    add_latent_attentions(&list);
    add_codings(&list);
    add_others(&list);
    return list.count;
}
