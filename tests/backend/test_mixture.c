/* Experts computed together against each row's experts alone, with the same bits: every kind of weight, rows spread
 * evenly and not, experts of unlike widths, both precisions, one thread and several. */
#include "backend/steps.h"
#include "matrices.h"

enum {
    HIDDEN = 128,
    COUNT = 7 /* and a wider shared one */,
    USED = 3,
    SLOTS = USED + 1,
    ROWS_MAX = 90,
    PAIRS_MAX = ROWS_MAX * SLOTS
};

typedef struct Bank {
    Matrix matrix[3][COUNT + 1];
    Weight weight[3][COUNT + 1];
} Bank;

static Bank *expert_cache_make(const Kind *kind, const Kind *other, int inner) {
    Bank *bank = calloc(1, sizeof *bank);
    for (int e = 0; e <= COUNT; e++) {
        const int width = e == COUNT ? 2 * inner : inner;
        for (int i = 0; i < 3; i++) { /* in a mixed bank down has another kind */
            bank->matrix[i][e] =
                matrix_make(i == 2 ? other : kind, i == 2 ? HIDDEN : width, i == 2 ? width : HIDDEN, i != 1);
            bank->weight[i][e] = bank->matrix[i][e].weight;
        }
    }
    return bank;
}

static void expert_cache_free(Bank *bank) {
    for (int i = 0; i < 3; i++)
        for (int e = 0; e <= COUNT; e++) matrix_free(&bank->matrix[i][e]);
    free(bank);
}

/* skew: all rows use the same experts; otherwise each its own. */
static void choose(int rows, bool skew, int32_t *index) {
    for (int r = 0; r < rows; r++) {
        const int from = skew ? 2 : (int)(test_random(&ops_seed) % COUNT);
        for (int i = 0; i < USED; i++) index[r * SLOTS + i] = (from + 2 * i) % COUNT;
        index[r * SLOTS + USED] = COUNT;
    }
}

/* One row, one expert after the other, by the operations that dense models run on. */
static void alone(
    Backend *backend, const Bank *bank, const float *x, const int32_t *index, const float *weight, float *out) {
    memset(out, 0, HIDDEN * sizeof *out);
    for (int i = 0; i < SLOTS; i++) {
        const int e = index[i];
        float between[4096], y[HIDDEN];
        const Glu glu = {.rows = 1,
            .x = x,
            .gate = &bank->weight[0][e],
            .up = &bank->weight[1][e],
            .activation = {.kind = ACT_SILU},
            .out = between};
        backend->ops->glu(backend, &glu);
        const Matmul down = {.rows = 1, .x = between, .count = 1, .weight = {&bank->weight[2][e]}, .out = {y}};
        backend->ops->matmul(backend, &down);
        for (int k = 0; k < HIDDEN; k++) out[k] += weight[i] * y[k];
    }
}

static void check(
    Backend *backend, Backend *single, const char *what, const Bank *bank, int inner, int rows, bool skew) {
    float *x = random_floats(ROWS_MAX * HIDDEN, 2), *weight = random_floats(PAIRS_MAX, 1);
    float *work = random_floats(PAIRS_MAX * (2 * inner + HIDDEN + 2), 1), *out = random_floats(ROWS_MAX * HIDDEN, 1);
    float wanted[HIDDEN];
    int32_t index[PAIRS_MAX];
    choose(rows, skew, index);
    const Step *step = step_of_rows(rows, 0);
    backend->ops->begin(backend, step);
    single->ops->begin(single, step);
    const Experts op = {.rows = rows,
        .count = COUNT + 1,
        .top_k = SLOTS,
        .x = x,
        .gate = bank->weight[0],
        .up = bank->weight[1],
        .down = bank->weight[2],
        .activation = {.kind = ACT_SILU},
        .index = index,
        .weight = weight,
        .work = work,
        .out = out};
    backend->ops->experts(backend, &op);
    /* In a sample, the reference computes every third row alone: it unpacks each expert anew. */
    const int stride = test_sampled() && !strcmp(backend->ops->name, "ref") ? 3 : 1;
    for (int r = rows % stride; r < rows; r += stride) {
        alone(single, bank, x + r * HIDDEN, index + r * SLOTS, weight + r * SLOTS, wanted);
        TEST_MSG(same_bits(wanted, out + r * HIDDEN, HIDDEN), "%s, %s, %d bits, row %d of %d%s", backend->ops->name,
            what, bank->weight[0][0].bits, r, rows, skew ? ", all alike" : "");
    }
    free(x);
    free(weight);
    free(work);
    free(out);
}

static void check_all(const char *name, int threads, bool precise) {
    static const int row_counts[] = {1, 2, 5, 17, ROWS_MAX};
    Backend *backend = open_backend(name, threads, precise, 128), *single = open_backend(name, 1, precise, 1);
    if (!backend) return;
    const int kind_count = sizeof kinds / sizeof kinds[0];
    for (int k = 0; k < kind_count; k++) {
        const int inner = k % 2 ? 256 : 384;
        Bank *bank = expert_cache_make(&kinds[k], &kinds[k % 3 ? k : (k + 5) % kind_count], inner);
        for (size_t i = test_sampled() ? (size_t)k % 4 : 0; i < COUNT_OF(row_counts); i += test_sampled() ? 4 : 1)
            check(backend, single, quant_name(kinds[k].quant), bank, inner, row_counts[i], i % 2);
        check(backend, single, quant_name(kinds[k].quant), bank, inner, ROWS_MAX, true);
        expert_cache_free(bank);
    }
    backend_close(single);
    backend_close(backend);
}

/* More experts in use than are run together. */
static void check_many(const char *name) {
    enum { MANY = 300, INNER = 64, WIDE = 64, ROWS = 80, OWN = 4 };
    Backend *backend = open_backend(name, 2, false, 128);
    if (!backend) return;
    Weight *weight[3];
    Matrix matrix[3];
    for (int i = 0; i < 3; i++) {
        matrix[i] = matrix_make(&kinds[0], MANY * INNER, WIDE, false);
        weight[i] = malloc(MANY * sizeof *weight[i]);
        for (int e = 0; e < MANY; e++) weight[i][e] = weight_rows(&matrix[i].weight, e * INNER, INNER);
    }
    float *x = random_floats(ROWS * WIDE, 1), *weights = random_floats(ROWS * OWN, 1),
          *out = random_floats(ROWS * WIDE, 1), *one = random_floats(WIDE, 1),
          *work = random_floats(ROWS * OWN * (INNER + WIDE + 2), 1);
    int32_t index[ROWS * OWN];
    for (int i = 0; i < ROWS * OWN; i++) index[i] = i * 7 % MANY;
    Experts op = {.rows = ROWS,
        .count = MANY,
        .top_k = OWN,
        .x = x,
        .gate = weight[0],
        .up = weight[1],
        .down = weight[2],
        .activation = {.kind = ACT_GELU},
        .index = index,
        .weight = weights,
        .work = work,
        .out = out};
    backend->ops->begin(backend, step_of_rows(ROWS, 0));
    backend->ops->experts(backend, &op);
    backend_close(backend);
    backend = open_backend(name, 1, false, 1);
    op.rows = 1;
    op.out = one;
    for (int r = 0; r < ROWS; r++) {
        op.x = x + r * WIDE;
        op.index = index + r * OWN;
        op.weight = weights + r * OWN;
        backend->ops->experts(backend, &op);
        TEST_MSG(same_bits(one, out + r * WIDE, WIDE), "%s: row %d of many", name, r);
    }
    for (int i = 0; i < 3; i++) {
        matrix_free(&matrix[i]);
        free(weight[i]);
    }
    free(x);
    free(weights);
    free(out);
    free(one);
    free(work);
    backend_close(backend);
}

int main(void) {
    static const char *const names[] = {"ref", "avx2", "avx512", "amx", "neon"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        check_all(names[i], 1, false);
        check_all(names[i], 2, i > 0);
        check_many(names[i]);
    }
    return test_done();
}
