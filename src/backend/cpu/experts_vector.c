/* Experts with vector kernels. The products of many experts share one run of the pool in four phases: prepare the
 * inputs of gate and up, multiply, prepare the inputs of down, multiply. Pieces of all experts are distributed
 * together, so threads have equal work however rows are spread over experts, and synchronise three times instead of
 * several times per expert. */
#include "base/math.h"
#include "backend/cpu/experts.h"
#include "backend/cpu/linear/product.h"

enum { SUM_ALONE = 1 << 15 /* floats summed without waking threads */ };

/* Rows of one expert. */
typedef struct ExpertRows {
    Product up, down;                     /* up: gate as well */
    int64_t up_items_end, down_items_end; /* cumulative items up to this expert */
} ExpertRows;

typedef struct Together {
    ExpertsDriver driver;
    CpuBackend *cpu;
    int count;
    size_t up_bytes, down_bytes; /* bytes of prepared rows; those of down replace those of up */
    int64_t up_grain, down_grain;
    ExpertRows rows[EXPERTS_BATCH_MAX];
} Together;

/* ---- a run ---- */

static void run_items(Together *t, int slot, int index) {
    const bool down = slot == 1;
    int64_t first, count;
    for (int i = 0; pool_next(t->cpu->pool, slot, index, down ? t->down_grain : t->up_grain, &first, &count); i = 0) {
        for (int64_t begin = 0; count > 0; i++) {
            const ExpertRows *r = &t->rows[i];
            const int64_t end = down ? r->down_items_end : r->up_items_end;
            if (first < end) {
                const int64_t taken = count < end - first ? count : end - first;
                product_run(down ? &r->down : &r->up, index, first - begin, taken);
                first += taken;
                count -= taken;
            }
            begin = end;
        }
    }
}

static void together_task(void *argument, int index, int count) {
    Together *t = argument;
    Pool *pool = t->cpu->pool;
    /* The first thread rotates from expert to expert, as many experts have one row only. */
    for (int i = 0; i < t->count; i++) product_prepare(&t->rows[i].up, index, (index + i) % count, count);
    pool_barrier(pool, index);
    run_items(t, 0, index);
    pool_barrier(pool, index);
    for (int i = 0; i < t->count; i++) product_prepare(&t->rows[i].down, index, (index + i) % count, count);
    pool_barrier(pool, index);
    run_items(t, 1, index);
}

static void run_noted(ExpertsDriver *driver) {
    Together *t = (Together *)driver;
    if (!t->count) return;
    const ExpertRows *last = &t->rows[t->count - 1];
    pool_share(t->cpu->pool, 0, last->up_items_end);
    pool_share(t->cpu->pool, 1, last->down_items_end);
    pool_run(t->cpu->pool, together_task, t);
    t->count = 0;
}

/* ---- experts of one run ---- */

static Product up_product(const Together *t, const ExpertWeights *w, int first) {
    const bool weighed = t->driver.op->weigh_inputs;
    return (Product){.x = weighed ? t->driver.pairs.y + first * t->driver.pairs.hidden : t->driver.op->x,
        .from = weighed ? NULL : t->driver.pairs.row + first,
        .count = w->gate->data == w->up->data ? 1 : 2, /* without a gate both are the same matrix */
        .weight = {w->gate, w->up},
        .out = {t->driver.pairs.between + first * t->driver.pairs.inner},
        .finish = FINISH_GLU,
        .activation = t->driver.op->activation};
}

static Product down_product(const Together *t, const ExpertWeights *w, int first) {
    return (Product){.x = t->driver.pairs.between + first * t->driver.pairs.inner,
        .count = 1,
        .weight = {w->down},
        .out = {t->driver.pairs.y + first * t->driver.pairs.hidden},
        .finish = FINISH_STORE};
}

/* Adds up to `rows` of the pairs from `first` on, all of one expert's; returns how many had room. */
static int add_rows(Together *t, const ExpertWeights *w, int first, int rows) {
    if (t->count == EXPERTS_BATCH_MAX) run_noted(&t->driver);
    ExpertRows *r = &t->rows[t->count];
    r->up = up_product(t, w, first);
    r->down = down_product(t, w, first);
    rows = min_int(rows, product_begin(&r->up, t->cpu, rows));
    rows = min_int(rows, product_begin(&r->down, t->cpu, rows));
    product_begin(&r->up, t->cpu, rows); /* fewer rows may use another method */
    const size_t up_bytes = product_place(&r->up, rows, NULL), down_bytes = product_place(&r->down, rows, NULL);
    if (t->count &&
        (t->up_bytes + up_bytes > PRODUCT_SPACE_BYTES || t->down_bytes + down_bytes > PRODUCT_SPACE_BYTES)) {
        run_noted(&t->driver);
        return 0;
    }
    if (!t->count) {
        t->up_bytes = t->down_bytes = 0;
        t->up_grain = t->down_grain = INT64_MAX;
    }
    product_place(&r->up, rows, t->cpu->work + t->up_bytes);
    product_place(&r->down, rows, t->cpu->work + t->down_bytes);
    t->up_bytes += up_bytes;
    t->down_bytes += down_bytes;
    const int64_t up_grain = product_grain(&r->up), down_grain = product_grain(&r->down);
    t->up_grain = up_grain < t->up_grain ? up_grain : t->up_grain;
    t->down_grain = down_grain < t->down_grain ? down_grain : t->down_grain;
    r->up_items_end = product_items(&r->up) + (t->count ? r[-1].up_items_end : 0);
    r->down_items_end = product_items(&r->down) + (t->count ? r[-1].down_items_end : 0);
    t->count++;
    return rows;
}

static void note_expert(ExpertsDriver *driver, const ExpertWeights *w) {
    const int begin = driver->pairs.begin[w->expert], end = driver->pairs.begin[w->expert + 1];
    if (driver->op->weigh_inputs) expert_weigh_inputs(driver->op, &driver->pairs, w->expert, begin, end - begin);
    for (int first = begin; first < end;) first += add_rows((Together *)driver, w, first, end - first);
}

/* ---- the operation ---- */

static void sum_task(void *argument, int index, int count) {
    const ExpertsDriver *driver = argument;
    for (int row = index; row < driver->op->rows; row += count) expert_sum(driver->op, &driver->pairs, row);
}

static void sum_rows(ExpertsDriver *driver) {
    const Experts *op = driver->op;
    if (op->rows * driver->pairs.hidden * op->top_k < SUM_ALONE)
        sum_task(driver, 0, 1);
    else
        pool_run(((Together *)driver)->cpu->pool, sum_task, driver);
}

void vector_experts(Backend *backend, const Experts *op) {
    Together t; /* rows are set as experts are noted */
    t.driver = (ExpertsDriver){.batch = EXPERTS_BATCH_MAX, .add = note_expert, .flush = run_noted, .sum = sum_rows};
    t.cpu = cpu_backend(backend);
    t.count = 0;
    experts_run(&t.driver, op);
}
