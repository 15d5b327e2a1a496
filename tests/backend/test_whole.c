/* Mixtures as a whole on backends that have such an operation: generated rows against `ref`, and each alone and among
 * others, with the same bits. Nothing to do where there is no GPU. */
#include "backend/plugin.h"
#include "backend/steps.h"
#include "matrices.h"

enum { COUNT = 7, COUNT_MAX = 11, GENERATED = 64 };

typedef struct Whole {
    int hidden, inner;
    int count;  /* experts; one more is shared by all rows */
    int top_k;  /* experts of a row, without the shared one */
    int shared; /* rows of the shared expert's router */
    bool gateless, weigh_inputs, own_norm;
    Norm norm;
    float *norm_weight, *norm_bias, *own_weight;
    Activation activation;
    Matrix bank[3][COUNT_MAX + 1], router, shared_gate, dense[3];
} Whole;

/* wider: the shared expert's inner width. gateless: up is the gate as well. own_norm: the router has one, and a dense
 * network as wide as the shared expert is beside the experts. */
typedef struct Shape {
    const char *name;
    int hidden, inner, wider, count, top_k;
    bool gateless, weigh_inputs, own_norm;
} Shape;

static Whole whole_make(const Kind *kind, const Kind *other, const Kind *router, const Shape *shape, int variant) {
    const int hidden = shape->hidden, inner = shape->inner, wider = shape->wider;
    Whole w = {.hidden = hidden,
        .inner = inner,
        .count = shape->count,
        .top_k = shape->top_k,
        .shared = variant % 3,
        .gateless = shape->gateless,
        .weigh_inputs = shape->weigh_inputs,
        .own_norm = shape->own_norm};
    w.activation = variant % 2 ? (Activation){ACT_SILU_CLAMPED, .a = 1.25f, .b = 0.5f} : (Activation){.kind = ACT_SILU};
    if (w.gateless) w.activation = (Activation){.kind = ACT_RELU};
    for (int e = 0; e <= w.count; e++) {
        const int width = e == w.count ? wider : inner;
        for (int i = 0; i < 3; i++)
            w.bank[i][e] =
                matrix_make(i == 2 ? other : kind, i == 2 ? hidden : width, i == 2 ? width : hidden, variant % 2);
    }
    for (int i = 0; i < 3; i++)
        w.dense[i] = matrix_make(i == 2 ? other : kind, i == 2 ? hidden : wider, i == 2 ? wider : hidden, false);
    w.router = matrix_make(router, w.count, hidden, variant % 2);
    w.shared_gate = matrix_make(router, w.shared ? w.shared : 1, hidden, false);
    w.norm_weight = random_floats(hidden, 1);
    w.norm_bias = random_floats(hidden, 1);
    w.own_weight = random_floats(hidden, 1);
    w.norm = (Norm){
        variant % 4 == 3 ? NORM_LAYER : NORM_RMS, hidden, 1e-5f, w.norm_weight, variant % 4 == 3 ? w.norm_bias : NULL};
    return w;
}
static void whole_free(Whole *w) {
    for (int e = 0; e <= w->count; e++)
        for (int i = 0; i < 3; i++) matrix_free(&w->bank[i][e]);
    for (int i = 0; i < 3; i++) matrix_free(&w->dense[i]);
    matrix_free(&w->router);
    matrix_free(&w->shared_gate);
    free(w->norm_weight);
    free(w->norm_bias);
    free(w->own_weight);
}

/* The same where a backend finds it. */
typedef struct There {
    Backend *backend;
    const Whole *whole;
    Weight bank[3][COUNT_MAX + 1], router, shared_gate, dense[3], norm_weight, norm_bias, own_weight;
    float *x, *normed, *logits, *shared_logits, *weight, *work, *sum, *residual, *dense_inner, *dense_sum;
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
    const int slots = w->top_k + 1;
    for (int e = 0; e <= w->count; e++)
        for (int i = 0; i < 3; i++) t.bank[i][e] = bound(b, &w->bank[i][e].weight);
    for (int i = 0; i < 3; i++) t.dense[i] = bound(b, &w->dense[i].weight);
    t.router = bound(b, &w->router.weight);
    t.shared_gate = bound(b, &w->shared_gate.weight);
    const Weight vector = {
        .rows = 1, .cols = w->hidden, .quant = QUANT_NONE, .dtype = DTYPE_F32, .data = w->norm_weight};
    t.norm_weight = bound(b, &vector);
    Weight other = vector;
    other.data = w->norm_bias;
    t.norm_bias = bound(b, &other);
    other.data = w->own_weight;
    t.own_weight = bound(b, &other);
    t.x = take(b, GENERATED * w->hidden);
    t.normed = take(b, GENERATED * w->hidden);
    t.logits = take(b, GENERATED * w->count);
    t.shared_logits = take(b, GENERATED * 2);
    t.weight = take(b, GENERATED * slots);
    t.index = take(b, GENERATED * slots);
    t.work = take(b, GENERATED * slots * (2 * w->inner + w->hidden + 2));
    t.sum = take(b, GENERATED * w->hidden);
    t.residual = take(b, GENERATED * w->hidden);
    t.dense_inner = take(b, GENERATED * w->dense[0].weight.rows);
    t.dense_sum = take(b, GENERATED * w->hidden);
    return t;
}
static void there_free(There *t) {
    Backend *b = t->backend;
    for (int e = 0; e <= t->whole->count; e++)
        for (int i = 0; i < 3; i++) b->ops->unbind(b, &t->bank[i][e]);
    for (int i = 0; i < 3; i++) b->ops->unbind(b, &t->dense[i]);
    b->ops->unbind(b, &t->router);
    b->ops->unbind(b, &t->shared_gate);
    b->ops->unbind(b, &t->norm_weight);
    b->ops->unbind(b, &t->norm_bias);
    b->ops->unbind(b, &t->own_weight);
    void *const memory[] = {t->x, t->normed, t->logits, t->shared_logits, t->weight, t->index, t->work, t->sum,
        t->residual, t->dense_inner, t->dense_sum};
    for (size_t i = 0; i < COUNT_OF(memory); i++) b->ops->release(b, memory[i]);
}

static void add_dense(Backend *b, const DenseBeside *op) {
    const AddPair *sums = &op->sums;
    b->ops->glu(b, &op->glu);
    b->ops->matmul(b, &op->down);
    if (sums->x_norm) b->ops->norm(b, sums->rows, sums->x, sums->x_norm, sums->x);
    b->ops->add(b, sums->rows, sums->width, sums->x, sums->y, 1, sums->y_norm);
    b->ops->add(b, sums->rows, sums->width, sums->residual, sums->x, sums->scale, sums->norm);
}

/* x [rows, hidden] → out, what is added to a residual of x. */
static void run_whole(const There *t, int variant, int rows, int decode_rows, const float *x, float *out) {
    Backend *b = t->backend;
    const Whole *w = t->whole;
    const size_t bytes = (size_t)rows * (size_t)w->hidden * sizeof *x;
    b->ops->begin(b, step_of_rows(rows, decode_rows));
    b->ops->upload(b, t->x, x, bytes);
    b->ops->upload(b, t->residual, x, bytes);
    const Norm norm = {
        w->norm.kind, w->hidden, w->norm.eps, t->norm_weight.data, w->norm.bias ? t->norm_bias.data : NULL};
    const Norm own = {NORM_RMS, w->hidden, w->norm.eps, t->own_weight.data, NULL};
    const bool normed = variant != 2;
    const DenseBeside dense = {.glu = {.rows = rows,
                                   .decode_rows = decode_rows,
                                   .x = t->x,
                                   .norm = &own,
                                   .gate = &t->dense[0],
                                   .up = &t->dense[1],
                                   .activation = {.kind = ACT_GELU_TANH},
                                   .out = t->dense_inner},
        .down = {.rows = rows,
            .decode_rows = decode_rows,
            .x = t->dense_inner,
            .count = 1,
            .weight = {&t->dense[2]},
            .out = {t->dense_sum}},
        .sums = {.rows = rows,
            .width = w->hidden,
            .residual = t->residual,
            .x = t->dense_sum,
            .y = t->sum,
            .scale = 0.75f,
            .x_norm = variant ? &norm : NULL,
            .y_norm = &own,
            .norm = &norm}};
    const MoeBlock op = {.x = t->x,
        .norm = normed ? &norm : NULL,
        .out_norm = variant == 1 ? &norm : NULL,
        .normed = t->normed,
        .router = {.rows = rows,
            .decode_rows = decode_rows,
            .x = normed && !w->own_norm ? t->normed : t->x,
            .norm = w->own_norm ? &own : NULL,
            .count = w->shared ? 2 : 1,
            .weight = {&t->router, &t->shared_gate},
            .out = {t->logits, t->shared_logits},
            .fine = true},
        .route = {.rows = rows,
            .experts = w->count,
            .top_k = w->top_k,
            .logits = t->logits,
            .score = (RouteScore)(variant % 3),
            .norm_topk_prob = variant % 2,
            .epsilon = 1e-6f,
            .scale = 1.5f,
            .shared = 1,
            .shared_logits = w->shared ? t->shared_logits : NULL,
            .shared_pair = w->shared == 2,
            .index = t->index,
            .weight = t->weight},
        .experts = {.rows = rows,
            .decode_rows = decode_rows,
            .count = w->count + 1,
            .top_k = w->top_k + 1,
            .x = normed ? t->normed : t->x,
            .weigh_inputs = w->weigh_inputs,
            .gate = t->bank[w->gateless],
            .up = t->bank[1],
            .down = t->bank[2],
            .activation = w->activation,
            .index = t->index,
            .weight = t->weight,
            .work = t->work,
            .out = t->sum},
        .residual = w->own_norm ? NULL : t->residual,
        .scale = 0.75f,
        .dense = w->own_norm ? &dense : NULL};
    if (b->ops->moe_block) {
        b->ops->moe_block(b, &op);
    } else {
        if (normed) b->ops->norm(b, rows, t->x, &norm, t->normed);
        b->ops->matmul(b, &op.router);
        b->ops->route(b, &op.route);
        b->ops->experts(b, &op.experts);
        if (op.residual) b->ops->add(b, rows, w->hidden, t->residual, t->sum, op.scale, op.out_norm);
        if (op.dense) add_dense(b, op.dense);
    }
    Error error = {0};
    TEST_MSG(b->ops->wait(b, b->ops->submit(b), &error), "%s", error.text);
    b->ops->download(b, out, t->residual, bytes);
}

static void check_shape(Backend *device, Backend *ref, int k, const Shape *shape, int variant, int rows_most) {
    static const int row_counts[] = {2, 3, 4, 5, 8, 9, 17, 33, GENERATED};
    const int hidden = shape->hidden;
    const Kind *kind = &kinds[k], *other = variant % 2 ? &kinds[(k + 5) % COUNT_OF(kinds)] : kind;
    char name[128];
    snprintf(name, sizeof name, "%s %s %d bits, %d x %d, variant %d", shape->name, quant_name(kind->quant), kind->bits,
        hidden, shape->inner, variant);
    Whole whole = whole_make(kind, other, variant % 3 ? kind : &kinds[10] /* bf16 */, shape, variant);
    There there = there_make(device, &whole), wanted_there = there_make(ref, &whole);
    float *x = random_floats(GENERATED * hidden, 2), *wanted = random_floats(GENERATED * hidden, 1),
          *one = random_floats(GENERATED * hidden, 1), *out = random_floats(GENERATED * hidden, 1);
    run_whole(&wanted_there, variant, rows_most, 0, x, wanted);
    for (int r = 0; r < rows_most; r++) run_whole(&there, variant, 1, 1, x + r * hidden, one + r * hidden);
    double sum = 0, off = 0;
    for (int i = 0; i < rows_most * hidden; i++) {
        sum += (wanted[i] - x[i]) * (wanted[i] - x[i]);
        off += (wanted[i] - one[i]) * (wanted[i] - one[i]);
    }
    TEST_MSG(off <= 4e-6 * sum, "%s: %.2e from ref", name, sqrt(off / sum));
    for (size_t i = 0; i < COUNT_OF(row_counts) && row_counts[i] <= rows_most; i++) {
        const int rows = row_counts[i];
        run_whole(&there, variant, rows, rows, x, out);
        for (int r = 0; r < rows; r++)
            TEST_MSG(same_bits(one + r * hidden, out + r * hidden, hidden), "%s: row %d of %d", name, r, rows);
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
    const Shape shape = {"random", hidden, inner, 2 * inner, COUNT, variant % 3 + 1, false, false, false};
    check_shape(device, ref, k, &shape, variant, GENERATED);
}

/* Rows use all experts, so that no choice hangs on the rounding of a logit. */
static void check_unusual(Backend *device, Backend *ref, int k, int variant, int rows_most) {
    const Shape gateless = {"experts without a gate", 256, 384, 640, COUNT, COUNT, true, false, false},
                weighed = {"weighed inputs", 256, 384, 640, COUNT, COUNT, false, true, false},
                normed = {"a router's own norm, a network beside", 256, 384, 640, COUNT, COUNT, false, false, true};
    check_shape(device, ref, k, &gateless, variant, rows_most);
    check_shape(device, ref, k, &weighed, variant, rows_most);
    check_shape(device, ref, k, &normed, variant, rows_most);
}

/* Widths of published models. Shared memory is what they differ in: with wide experts, or many of them, the down
 * products of a row take more than half of a multiprocessor's. One expert more than a row uses is enough for that. */
static const Shape published[] = {
    {"Qwen1.5-MoE-A2.7B", 2048, 1408, 5632, 5, 4, false, false, false},
    {"DeepSeek-V2-Lite, Moonlight, Ling-lite", 2048, 1408, 2816, 7, 6, false, false, false},
    {"Ernie-4.5-21B", 2560, 1536, 3072, 7, 6, false, false, false},
    {"Hunyuan-A13B", 4096, 3072, 3072, 9, 8, false, false, false},
    {"OLMoE", 2048, 1024, 1024, 9, 8, false, false, false},
    {"Qwen3-30B-A3B", 2048, 768, 768, 9, 8, false, false, false},
    {"Qwen3-Next-80B", 2048, 512, 512, 11, 10, false, false, false},
    {"Qwen3-235B", 4096, 1536, 1536, 9, 8, false, false, false},
    {"Qwen2-57B-A14B", 3584, 2560, 20480, 9, 8, false, false, false},
    {"DeepSeek-V2", 5120, 1536, 3072, 7, 6, false, false, false},
    {"DeepSeek-V3, Kimi-K2", 7168, 2048, 2048, 9, 8, false, false, false},
    {"GLM-4.5-Air", 4096, 1408, 1408, 9, 8, false, false, false},
    {"dots.llm1", 4096, 1408, 2816, 7, 6, false, false, false},
    {"Granite-3-3B", 1536, 512, 512, 9, 8, false, false, false},
    {"gpt-oss-20b", 2880, 2880, 2880, 5, 4, false, false, false},
    {"Mixtral-8x7B", 4096, 14336, 14336, 3, 2, false, false, false},
    {"Phi-3.5-MoE", 4096, 6400, 6400, 3, 2, false, false, false},
    {"Llama-4-Scout", 5120, 8192, 8192, 2, 1, false, false, false},
    {"Llama-4-Scout, weighed inputs", 5120, 8192, 8192, 1, 1, false, true, false},
    {"Nemotron-3-Nano-30B-A3B", 2688, 1856, 3712, 6, 6, true, false, false},
};

/* 4 bits and 8; those for an emulator are the first ones with a row alone and two rows. */
static void check_published(Backend *device, Backend *ref, bool in_short) {
    const size_t count = in_short ? 2 : COUNT_OF(published);
    for (size_t i = 0; i < count; i++) {
        if (!in_short || i == 0) check_shape(device, ref, 0, &published[i], 0, in_short ? 2 : 5);
        if (!in_short || i == 1) check_shape(device, ref, 5, &published[i], 0, in_short ? 2 : 5);
    }
}

/* short, for an emulator: published shapes alone, two of them. */
int main(int argc, char **argv) {
    const bool in_short = argc > 1 && !strcmp(argv[1], "short");
    Error error = {0};
    const BackendOptions options = {.device = "cuda", .cpu = "auto", .rows_max = GENERATED, .scratch_bytes = 1 << 10};
    Backend *device = backend_open(&options, &error), *ref = open_backend("ref", 0, false, GENERATED);
    TEST_MSG((device != NULL) == plugin_usable(), "%s", error.text);
    if (!device) test_skip_backend("cuda");
    for (int k = 0; device && !in_short && k < (int)COUNT_OF(kinds); k++)
        for (int i = 0; i < 2; i++) check_whole(device, ref, k, (k + i) % 3, (k + 3 * i) % 5);
    /* A row of the wider one is read in two pieces, both shorter than the others' rows. */
    const Shape wider = {"wider", 64, 4096, 4160, COUNT, 1, false, false, false};
    if (device && !in_short) check_shape(device, ref, 0, &wider, 0, GENERATED);
    if (device) check_published(device, ref, in_short);
    for (int k = 0; device && k < (in_short ? 1 : (int)COUNT_OF(kinds)); k++)
        for (int variant = 0; variant < (in_short ? 1 : 2); variant++)
            check_unusual(device, ref, k, variant, in_short ? 5 : GENERATED);
    backend_close(device);
    backend_close(ref);
    return test_done();
}
