/* Products with a matrix for each head, all of them in one run of the pool: alone each would be over before the threads
 * have begun. */
#include "backend/cpu/linear/product.h"
#include "backend/mla.h"
#include "base/math.h"

enum { HEADS_TOGETHER = 32 };

typedef struct Heads {
    CpuBackend *cpu;
    int count;
    int64_t items; /* pieces of each product */
    Product product[HEADS_TOGETHER];
} Heads;

static void heads_task(void *argument, int index, int count) {
    const Heads *heads = argument;
    Pool *pool = heads->cpu->pool;
    for (int i = 0; i < heads->count; i++) product_prepare(&heads->product[i], index, (index + i) % count, count);
    pool_barrier(pool, index);
    const int64_t grain = min_i64(product_grain(&heads->product[0]), heads->items);
    for (int64_t first, items; pool_next(pool, 0, index, grain, &first, &items);)
        for (int64_t taken; items > 0; first += taken, items -= taken) {
            const int64_t at = first % heads->items;
            taken = min_i64(items, heads->items - at);
            product_run(&heads->product[first / heads->items], index, at, taken);
        }
}

/* Sets the places of a head's product, whose rows begin with `first`. */
static void use_head(Product *p, const HeadProducts *op, int head, int first) {
    p->x = op->x + head * op->x_head + first * op->x_row;
    p->weight[0] = &op->weight[head];
    p->out[0] = op->out + head * op->out_head + first * op->out_row;
}

/* Rows [first, first + rows) of some heads. one: the product of any head, begun for so many rows. */
static void multiply(
    Heads *heads, const HeadProducts *op, const Product *one, int head, int count, int first, int rows) {
    uint8_t *space = heads->cpu->work;
    heads->count = count;
    for (int i = 0; i < count; i++) {
        Product *p = &heads->product[i];
        *p = *one;
        use_head(p, op, head + i, first);
        space += product_place(p, rows, space);
    }
    heads->items = product_items(&heads->product[0]);
    pool_share(heads->cpu->pool, 0, count * heads->items);
    pool_run(heads->cpu->pool, heads_task, heads);
}

static void multiply_heads(Backend *backend, const HeadProducts *op) {
    Heads heads; /* products are set before they are used */
    heads.cpu = cpu_backend(backend);
    for (int first = 0, rows; first < op->rows; first += rows) {
        Product one = {.x_stride = op->x_row, .count = 1, .out_stride = op->out_row, .finish = FINISH_STORE};
        use_head(&one, op, 0, first);
        rows = product_begin(&one, heads.cpu, op->rows - first);
        product_begin(&one, heads.cpu, rows); /* fewer rows may use another method */
        const int64_t room = (int64_t)(PRODUCT_SPACE_BYTES / (product_place(&one, rows, NULL) + 1));
        const int most = (int)min_i64(HEADS_TOGETHER, room > 1 ? room : 1);
        for (int head = 0; head < op->heads; head += most)
            multiply(&heads, op, &one, head, min_int(most, op->heads - head), first, rows);
    }
}

void cpu_mla(Backend *backend, const Mla *op) { mla_attend(backend, op, multiply_heads); }
