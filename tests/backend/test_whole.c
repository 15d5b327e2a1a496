/* Mixtures as a whole on backends that have such an operation: generated rows against `ref`, and each alone and among
 * others, with the same bits. Nothing to do where there is no GPU. */
#include "backend/plugin.h"
#include "matrices.h"

enum { COUNT = 7 /* and a wider shared one */, GENERATED = 64 };

typedef struct Whole {
    int hidden, inner, used, shared; /* shared: rows of the shared expert's router */
    Norm norm;
    float *norm_weight, *norm_bias;
    Activation activation;
    Matrix bank[3][COUNT + 1], router, shared_gate;
} Whole;

static Whole whole_make(
    const Kind *kind, const Kind *other, const Kind *router, int hidden, int inner, int wider, int variant) {
    Whole w = {.hidden = hidden, .inner = inner, .used = variant % 3 + 1, .shared = variant % 3};
    w.activation = variant % 2 ? ACT_SILU_CLAMPED : ACT_SILU;
    for (int e = 0; e <= COUNT; e++) {
        const int width = e == COUNT ? wider : inner;
        for (int i = 0; i < 3; i++)
            w.bank[i][e] =
                matrix_make(i == 2 ? other : kind, i == 2 ? hidden : width, i == 2 ? width : hidden, variant % 2);
    }
    w.router = matrix_make(router, COUNT, hidden, variant % 2);
    w.shared_gate = matrix_make(router, w.shared ? w.shared : 1, hidden, false);
    w.norm_weight = random_floats(hidden, 1);
    w.norm_bias = random_floats(hidden, 1);
    w.norm = (Norm){
        variant % 4 == 3 ? NORM_LAYER : NORM_RMS, hidden, 1e-5f, w.norm_weight, variant % 4 == 3 ? w.norm_bias : NULL};
    return w;
}
static void whole_free(Whole *w) {
    for (int e = 0; e <= COUNT; e++)
        for (int i = 0; i < 3; i++) matrix_free(&w->bank[i][e]);
    matrix_free(&w->router);
    matrix_free(&w->shared_gate);
    free(w->norm_weight);
    free(w->norm_bias);
}

/* The same where a backend finds it. */
typedef struct There {
    Backend *backend;
    const Whole *whole;
    Weight bank[3][COUNT + 1], router, shared_gate, norm_weight, norm_bias;
    float *x, *normed, *logits, *shared_logits, *weight, *work, *sum, *residual;
    int32_t *index;
} There;

static void *take(Backend *b, int64_t count) {
    Error error = {0};
    void *memory = b->ops->alloc(b, (size_t)count * sizeof(float), MEMORY_STEP, &error);
    TEST_MSG(memory != NULL, "%s", error.text);
    return memory;
}
static Weight bound(Backend *b, const Weight *weight) {
    Error error = {0};
    Weight w = *weight;
    TEST_MSG(b->ops->bind(b, &w, &error), "%s", error.text);
    return w;
}
static There there_make(Backend *b, const Whole *w) {
    There t = {.backend = b, .whole = w};
    const int slots = w->used + 1;
    for (int e = 0; e <= COUNT; e++)
        for (int i = 0; i < 3; i++) t.bank[i][e] = bound(b, &w->bank[i][e].weight);
    t.router = bound(b, &w->router.weight);
    t.shared_gate = bound(b, &w->shared_gate.weight);
    const Weight vector = {
        .rows = 1, .cols = w->hidden, .quant = QUANT_NONE, .dtype = DTYPE_F32, .data = w->norm_weight};
    t.norm_weight = bound(b, &vector);
    Weight other = vector;
    other.data = w->norm_bias;
    t.norm_bias = bound(b, &other);
    t.x = take(b, GENERATED * w->hidden);
    t.normed = take(b, GENERATED * w->hidden);
    t.logits = take(b, GENERATED * COUNT);
    t.shared_logits = take(b, GENERATED * 2);
    t.weight = take(b, GENERATED * slots);
    t.index = take(b, GENERATED * slots);
    t.work = take(b, GENERATED * slots * (2 * w->inner + w->hidden + 2));
    t.sum = take(b, GENERATED * w->hidden);
    t.residual = take(b, GENERATED * w->hidden);
    return t;
}
static void there_free(There *t) {
    Backend *b = t->backend;
    for (int e = 0; e <= COUNT; e++)
        for (int i = 0; i < 3; i++) b->ops->unbind(b, &t->bank[i][e]);
    b->ops->unbind(b, &t->router);
    b->ops->unbind(b, &t->shared_gate);
    b->ops->unbind(b, &t->norm_weight);
    b->ops->unbind(b, &t->norm_bias);
    void *const memory[] = {
        t->x, t->normed, t->logits, t->shared_logits, t->weight, t->index, t->work, t->sum, t->residual};
    for (size_t i = 0; i < COUNT_OF(memory); i++) b->ops->release(b, memory[i]);
}

/* x [rows, hidden] → out, what is added to a residual of x. */
static void run_whole(const There *t, int variant, int rows, int generated, const float *x, float *out) {
    Backend *b = t->backend;
    const Whole *w = t->whole;
    const size_t bytes = (size_t)rows * (size_t)w->hidden * sizeof *x;
    int32_t zeros[GENERATED] = {0};
    const int32_t *tables[1] = {zeros};
    const Run run = {.rows = rows, .tables = tables};
    const Step step = {.rows = rows,
        .generated = generated,
        .tokens = zeros,
        .positions = zeros,
        .run_count = 1,
        .runs = &run,
        .axes = 1};
    b->ops->begin(b, &step);
    b->ops->upload(b, t->x, x, bytes);
    b->ops->upload(b, t->residual, x, bytes);
    const Norm norm = {
        w->norm.kind, w->hidden, w->norm.eps, t->norm_weight.data, w->norm.bias ? t->norm_bias.data : NULL};
    const bool normed = variant != 2;
    const Mixture op = {.x = t->x,
        .norm = normed ? &norm : NULL,
        .out_norm = variant == 1 ? &norm : NULL,
        .normed = t->normed,
        .router = {.rows = rows,
            .generated = generated,
            .x = normed ? t->normed : t->x,
            .count = w->shared ? 2 : 1,
            .weight = {&t->router, &t->shared_gate},
            .out = {t->logits, t->shared_logits},
            .fine = true},
        .route = {.rows = rows,
            .experts = COUNT,
            .used = w->used,
            .logits = t->logits,
            .score = (RouteScore)(variant % 3),
            .normalise = variant % 2,
            .epsilon = 1e-6f,
            .scale = 1.5f,
            .shared = 1,
            .shared_logits = w->shared ? t->shared_logits : NULL,
            .shared_pair = w->shared == 2,
            .index = t->index,
            .weight = t->weight},
        .experts = {.rows = rows,
            .generated = generated,
            .count = COUNT + 1,
            .used = w->used + 1,
            .x = normed ? t->normed : t->x,
            .gate = t->bank[0],
            .up = t->bank[1],
            .down = t->bank[2],
            .activation = w->activation,
            .index = t->index,
            .weight = t->weight,
            .work = t->work,
            .out = t->sum},
        .residual = t->residual,
        .scale = 0.75f};
    if (b->ops->mixture) {
        b->ops->mixture(b, &op);
    } else {
        if (normed) b->ops->norm(b, rows, t->x, &norm, t->normed);
        b->ops->matmul(b, &op.router);
        b->ops->route(b, &op.route);
        b->ops->experts(b, &op.experts);
        b->ops->add(b, rows, w->hidden, t->residual, t->sum, op.scale, op.out_norm);
    }
    Error error = {0};
    TEST_MSG(b->ops->wait(b, b->ops->submit(b), &error), "%s", error.text);
    b->ops->download(b, out, t->residual, bytes);
}

/* wider: the shared expert's inner width. */
static void check_size(Backend *device, Backend *ref, int k, int hidden, int inner, int wider, int variant) {
    static const int row_counts[] = {2, 3, 4, 5, 8, 9, 17, 33, GENERATED};
    const Kind *kind = &kinds[k], *other = variant % 2 ? &kinds[(k + 5) % COUNT_OF(kinds)] : kind;
    Whole whole = whole_make(kind, other, variant % 3 ? kind : &kinds[10] /* bf16 */, hidden, inner, wider, variant);
    There there = there_make(device, &whole), wanted_there = there_make(ref, &whole);
    float *x = random_floats(GENERATED * hidden, 2), *wanted = random_floats(GENERATED * hidden, 1),
          *one = random_floats(GENERATED * hidden, 1), *out = random_floats(GENERATED * hidden, 1);
    run_whole(&wanted_there, variant, GENERATED, 0, x, wanted);
    for (int r = 0; r < GENERATED; r++) run_whole(&there, variant, 1, 1, x + r * hidden, one + r * hidden);
    double sum = 0, off = 0;
    for (int i = 0; i < GENERATED * hidden; i++) {
        sum += (wanted[i] - x[i]) * (wanted[i] - x[i]);
        off += (wanted[i] - one[i]) * (wanted[i] - one[i]);
    }
    TEST_MSG(off <= 4e-6 * sum, "%s %d bits, %d x %d, variant %d: %.2e from ref", quant_name(kinds[k].quant),
        kinds[k].bits, hidden, inner, variant, sqrt(off / sum));
    for (size_t i = 0; i < COUNT_OF(row_counts); i++) {
        const int rows = row_counts[i];
        run_whole(&there, variant, rows, rows, x, out);
        for (int r = 0; r < rows; r++)
            TEST_MSG(same_bits(one + r * hidden, out + r * hidden, hidden),
                "%s %d bits, %d x %d, variant %d: row %d of %d", quant_name(kinds[k].quant), kinds[k].bits, hidden,
                inner, variant, r, rows);
    }
    free(x);
    free(wanted);
    free(one);
    free(out);
    there_free(&there);
    there_free(&wanted_there);
    whole_free(&whole);
}

static void check_whole(Backend *device, Backend *ref, int k, int size, int variant) {
    static const int sizes[][2] = {{2, 2}, {5, 3}, {10, 4}};
    const Kind *kind = &kinds[k], *other = variant % 2 ? &kinds[(k + 5) % COUNT_OF(kinds)] : kind;
    int unit = 32;
    if (kind->group > unit) unit = kind->group;
    if (other->group > unit) unit = other->group;
    const int hidden = unit * sizes[size][0], inner = unit * sizes[size][1];
    check_size(device, ref, k, hidden, inner, 2 * inner, variant);
}

int main(void) {
    Error error = {0};
    const BackendOptions options = {.device = "cuda", .cpu = "auto", .rows_max = GENERATED, .scratch_bytes = 1 << 10};
    Backend *device = backend_open(&options, &error), *ref = open_backend("ref", 1, false, GENERATED);
    TEST_MSG((device != NULL) == plugin_usable(), "%s", error.text);
    for (int k = 0; device && k < (int)COUNT_OF(kinds); k++)
        for (int i = 0; i < 2; i++) check_whole(device, ref, k, (k + i) % 3, (k + 3 * i) % 5);
    /* A row of the wider one is read in two pieces, both shorter than the others' rows. */
    if (device) check_size(device, ref, 0, 64, 4096, 4160, 0);
    backend_close(device);
    backend_close(ref);
    return test_done();
}
