/* Experts with vector kernels. The products of many experts share one run of the pool in four phases: prepare the
 * inputs of gate and up, multiply, prepare the inputs of down, multiply. Pieces of all experts are distributed
 * together, so threads have equal work however rows are spread over experts, and synchronise three times instead of
 * several times per expert. */
#include "base/math.h"
#include "backend/cpu/experts.h"
#include "backend/cpu/linear/product.h"

enum { TOGETHER_MAX = 64, SUM_ALONE = 1 << 15 /* floats summed without waking threads */ };

/* Rows of one expert. */
typedef struct ExpertRows {
    Product up, down;                     /* up: gate as well */
    int64_t up_items_end, down_items_end; /* cumulative items up to this expert */
} ExpertRows;

typedef struct Together {
    CpuBackend *cpu;
    const Experts *op;
    const ExpertPairs *pairs;
    int count;
    size_t up_bytes, down_bytes; /* bytes of prepared rows; those of down replace those of up */
    int64_t up_grain, down_grain;
    ExpertRows rows[TOGETHER_MAX];
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

static void flush(Together *t) {
    if (!t->count) return;
    const ExpertRows *last = &t->rows[t->count - 1];
    pool_share(t->cpu->pool, 0, last->up_items_end);
    pool_share(t->cpu->pool, 1, last->down_items_end);
    pool_run(t->cpu->pool, together_task, t);
    t->count = 0;
}

/* ---- experts of one run ---- */

static Product up_product(const Together *t, const Weight *gate, const Weight *up, int first) {
    return (Product){.x = t->op->x,
        .from = t->pairs->row + first,
        .count = 2,
        .weight = {gate, up},
        .out = {t->pairs->between + first * t->pairs->inner},
        .finish = FINISH_GLU,
        .activation = t->op->activation};
}

static Product down_product(const Together *t, const Weight *down, int first) {
    return (Product){.x = t->pairs->between + first * t->pairs->inner,
        .count = 1,
        .weight = {down},
        .out = {t->pairs->y + first * t->pairs->hidden},
        .finish = FINISH_STORE};
}

/* Adds up to `rows` of the pairs from `first` on, all of one expert's; returns how many had room. */
static int add_rows(Together *t, const Weight *gate, const Weight *up, const Weight *down, int first, int rows) {
    if (t->count == TOGETHER_MAX) flush(t);
    ExpertRows *r = &t->rows[t->count];
    r->up = up_product(t, gate, up, first);
    r->down = down_product(t, down, first);
    rows = min_int(rows, product_begin(&r->up, t->cpu, rows));
    rows = min_int(rows, product_begin(&r->down, t->cpu, rows));
    product_begin(&r->up, t->cpu, rows); /* fewer rows may use another method */
    const size_t up_bytes = product_place(&r->up, rows, NULL), down_bytes = product_place(&r->down, rows, NULL);
    if (t->count &&
        (t->up_bytes + up_bytes > PRODUCT_SPACE_BYTES || t->down_bytes + down_bytes > PRODUCT_SPACE_BYTES)) {
        flush(t);
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

static void add_expert(Together *t, int e, const Weight *gate, const Weight *up, const Weight *down) {
    for (int first = t->pairs->begin[e], end = t->pairs->begin[e + 1]; first < end;)
        first += add_rows(t, gate, up, down, first, end - first);
}

/* ---- the operation ---- */

/* Runs loaded experts together while others load. */
static void run_sourced(Together *t) {
    ExpertProvider *source = t->op->source;
    ProvidedExpert come[TOGETHER_MAX];
    for (int count; (count = source->acquire(source, t->op->micro_batch, TOGETHER_MAX, come)) > 0;) {
        for (int i = 0; i < count; i++) add_expert(t, come[i].expert, &come[i].gate, &come[i].up, &come[i].down);
        flush(t);
    }
}

static void sum_task(void *argument, int index, int count) {
    const Together *t = argument;
    for (int row = index; row < t->op->rows; row += count) expert_sum(t->op, t->pairs, row);
}

void vector_experts(Backend *backend, const Experts *op) {
    const ExpertPairs pairs = expert_pairs(op);
    Together t;
    t.cpu = cpu_backend(backend);
    t.op = op;
    t.pairs = &pairs;
    t.count = 0;
    if (op->source && expert_want(op, &pairs)) return;
    for (int e = 0; e < op->count; e++)
        if (expert_is_due(op, &pairs, e)) add_expert(&t, e, &op->gate[e], &op->up[e], &op->down[e]);
    flush(&t);
    if (op->source) run_sourced(&t);
    if (op->rows * pairs.hidden * op->top_k < SUM_ALONE)
        sum_task(&t, 0, 1);
    else
        pool_run(t.cpu->pool, sum_task, &t);
}
