/* A product with updates of low rank (LoRA) has the bits of its operations in turn, on every vector backend: matrices
 * of every kind, ranks below and above a register's lanes, one row to several tiles, 1 to 3 threads. */
#include "matrices.h"

enum { ROWS_MAX = 130, OUTS = 3, RANK_MAX = 70, NARROW = 256, WIDE = 4352 /* more than a thread prepares alone */ };

typedef enum Form { STORED, ADDED, GATED } Form;

typedef struct Set { /* W, A and B of OUTS matrices; the middle one has no update */
    Matrix w[OUTS], a[OUTS], b[OUTS];
    int64_t cols;
    int rank;
} Set;

static const Kind plain = {QUANT_NONE, 16, 0, DTYPE_BF16}, exact = {QUANT_NONE, 32, 0, DTYPE_F32};
static const int64_t heights[OUTS] = {150, 37, 150};
static int cases;

static Set set_make(const Kind *kind, int64_t cols, int rank) {
    Set set = {.cols = cols, .rank = rank};
    for (int i = 0; i < OUTS; i++) {
        set.w[i] = matrix_make(kind, heights[i], cols, i == 0);
        set.a[i] = matrix_make(i ? &plain : &exact, rank, cols, false);
        set.b[i] = matrix_make(i ? &exact : &plain, heights[i], rank, false);
    }
    return set;
}

static void set_free(Set *set) {
    for (int i = 0; i < OUTS; i++) {
        matrix_free(&set->w[i]);
        matrix_free(&set->a[i]);
        matrix_free(&set->b[i]);
    }
}

/* The matrices that a form takes: all, the first, or those of equal height. */
static int taken(Form form, int place[OUTS]) {
    static const int pairs[] = {0, 2};
    const int count = form == STORED ? OUTS : form == ADDED ? 1 : 2;
    for (int i = 0; i < count; i++) place[i] = form == GATED ? pairs[i] : i;
    return count;
}

/* The operations in turn; the result is in out[0], or in all of `out` where they are stored. */
static void in_turn(Backend *b, const LowRankMatmul *op, float *work) {
    const Matmul *product = &op->product;
    if (op->residual) {
        const MatmulAdd add = {.rows = product->rows,
            .x = product->x,
            .weight = product->weight[0],
            .scale = op->residual_scale,
            .residual = op->residual};
        b->ops->matmul_add(b, &add);
    } else {
        b->ops->matmul(b, product);
    }
    for (int i = 0; i < product->count; i++) {
        if (!op->a[i]) continue;
        const Matmul shrink = {.rows = product->rows,
            .x = product->x,
            .norm = product->norm,
            .count = 1,
            .weight = {op->a[i]},
            .out = {work}};
        const MatmulAdd expand = {.rows = product->rows,
            .x = work,
            .weight = op->b[i],
            .scale = op->scale[i],
            .residual = op->residual ? op->residual : product->out[i]};
        b->ops->matmul(b, &shrink);
        b->ops->matmul_add(b, &expand);
    }
    if (!op->gated) return;
    const Multiply multiply = {.rows = product->rows,
        .width = product->weight[0]->rows,
        .x = product->out[0],
        .activation = op->activation,
        .y = product->out[1],
        .y_stride = product->weight[1]->rows,
        .out = product->out[0]};
    b->ops->multiply(b, &multiply);
}

static void check(Backend *b, Set *set, Form form, int rows, bool normed) {
    float *x = random_floats(rows * set->cols, 1), *weight = random_floats(set->cols, 1);
    float *low_rank = random_floats(OUTS * rows * set->rank, 0), *work = random_floats(rows * set->rank, 0);
    float *out[OUTS], *expected[OUTS];
    const Norm norm = {NORM_RMS, set->cols, 1e-5F, weight, NULL};
    int place[OUTS];
    const int count = taken(form, place), stored = form == STORED ? count : 1;
    LowRankMatmul op = {.product = {.rows = rows, .x = x, .norm = normed ? &norm : NULL, .count = count}};
    for (int i = 0; i < count; i++) {
        const int at = place[i];
        out[i] = random_floats(rows * heights[at], 1);
        expected[i] = copy_floats(out[i], rows * heights[at]);
        op.product.weight[i] = &set->w[at].weight;
        op.product.out[i] = expected[i];
        if (at == 1) continue;
        op.a[i] = &set->a[at].weight;
        op.b[i] = &set->b[at].weight;
        op.scale[i] = 0.7F + (float)i;
        op.low_rank[i] = low_rank + i * rows * set->rank;
    }
    if (form == ADDED) {
        op.residual = expected[0];
        op.residual_scale = 0.3F;
    }
    op.gated = form == GATED;
    op.activation = (Activation){.kind = ACT_SILU};
    in_turn(b, &op, work);
    memcpy(op.product.out, out, sizeof out);
    if (form == ADDED) op.residual = out[0];
    b->ops->low_rank_matmul(b, &op);
    for (int i = 0; i < stored; i++)
        TEST_MSG(same_bits(out[i], expected[i], rows * heights[place[i]]),
            "%s: form %d, %s of %lld columns, rank %d, %d rows: matrix %d", b->ops->name, form,
            quant_name(set->w[0].weight.quant), (long long)set->cols, set->rank, rows, i);
    cases++;
    for (int i = 0; i < count; i++) {
        free(out[i]);
        free(expected[i]);
    }
    free(x);
    free(weight);
    free(low_rank);
    free(work);
}

static void check_backend(const char *name, int threads, bool precise) {
    static const int counts[] = {1, 2, 5, 17, ROWS_MAX}, ranks[] = {1, 8, 16, 20, RANK_MAX};
    Backend *b = open_backend(name, threads, precise, ROWS_MAX);
    ops_seed = 1;
    for (size_t k = 0; b && b->ops->low_rank_matmul && k < COUNT_OF(kinds); k++) {
        const bool wide = k % 3 == (size_t)threads % 3;
        Set set = set_make(&kinds[k], wide ? WIDE : NARROW, ranks[(k + (size_t)threads) % COUNT_OF(ranks)]);
        for (size_t c = 0; c < COUNT_OF(counts) - wide; c++) {
            check(b, &set, STORED, counts[c], c % 2);
            check(b, &set, ADDED, counts[c], false);
            check(b, &set, GATED, counts[c], c % 2 == 0);
        }
        set_free(&set);
    }
    backend_close(b);
}

int main(void) {
    for (size_t i = 0; i < COUNT_OF(vector_names); i++)
        for (int threads = 1; threads <= 3; threads++) check_backend(vector_names[i], threads, threads == 2);
    printf("%d cases\n", cases);
    return test_done();
}
