/* Products of components, with the updates of adapters. Rows of a call are taken in parts of one adapter; the products
 * of the matrices themselves are computed for all rows together wherever that gives a row the bits that it has alone.
 */
#include "model/component.h"

/* Consecutive rows of a call with one adapter, a part of it; 0: none. */
typedef struct AdapterRows {
    int first, rows, adapter;
} AdapterRows;

/* The part behind *part; false: there is none. *chunk: where to look first. */
static bool next_part(const ComponentCall *call, int *chunk, AdapterRows *part) {
    const Step *step = call->adapted;
    part->first += part->rows;
    part->rows = 0;
    for (; *chunk < step->chunk_count && part->first + part->rows < call->rows; (*chunk)++) {
        const SequenceChunk *c = &step->chunks[*chunk];
        const int end = c->row + c->rows - call->first;
        if (end <= part->first) continue;
        if (part->rows > 0 && c->adapter != part->adapter) break;
        part->adapter = c->adapter;
        part->rows = (end < call->rows ? end : call->rows) - part->first;
    }
    return part->rows > 0;
}

/* Decode rows among a part's rows. */
static int part_decode_rows(const AdapterRows *part, int decode_rows) {
    const int rows = decode_rows - part->first;
    return rows < 0 ? 0 : rows < part->rows ? rows : part->rows;
}

static const LowRank *update_of(const Weight *weight, int adapter) {
    const LowRank *update = adapter > 0 && weight->updates ? &weight->updates[adapter - 1] : NULL;
    return update && update->a.rows > 0 ? update : NULL;
}

/* out[i] += scale · B·(A · norm(x)) for a part's rows. */
static void add_updates(const ComponentCall *call, const AdapterRows *part, const Matmul *op, float scale) {
    const BackendOps *ops = call->backend->ops;
    const int decode_rows = part_decode_rows(part, op->decode_rows);
    const LowRank *updates[MATMUL_MAX];
    float *out[MATMUL_MAX], *work = call->low_rank;
    Matmul shrink = {.rows = part->rows,
        .decode_rows = decode_rows,
        .x = op->x + part->first * op->weight[0]->cols,
        .norm = op->norm};
    for (int i = 0; i < op->count; i++) {
        const LowRank *update = update_of(op->weight[i], part->adapter);
        if (!update) continue;
        updates[shrink.count] = update;
        out[shrink.count] = op->out[i] + part->first * op->weight[i]->rows;
        shrink.weight[shrink.count] = &update->a;
        shrink.out[shrink.count++] = work;
        work += part->rows * update->a.rows;
    }
    if (shrink.count == 0) return;
    ops->matmul(call->backend, &shrink);
    for (int i = 0; i < shrink.count; i++) {
        const MatmulAdd expand = {.rows = part->rows,
            .decode_rows = decode_rows,
            .x = shrink.out[i],
            .weight = &updates[i]->b,
            .scale = scale * updates[i]->scale,
            .residual = out[i]};
        ops->matmul_add(call->backend, &expand);
    }
}

/* The product with the updates of an adapter that all rows have, in one operation, which `op` describes without them.
 * False: nothing was done. */
static bool low_rank_matmul(const ComponentCall *call, LowRankMatmul op) {
    const BackendOps *ops = call->backend->ops;
    const Matmul *product = &op.product;
    const float scale = op.residual ? op.residual_scale : 1;
    AdapterRows part = {0};
    float *work = call->low_rank;
    int chunk = 0, updates = 0;
    if (!ops->low_rank_matmul || !next_part(call, &chunk, &part) || part.rows < product->rows) return false;
    for (int i = 0; i < product->count; i++) {
        const LowRank *update = update_of(product->weight[i], part.adapter);
        if (!update) continue;
        op.a[i] = &update->a;
        op.b[i] = &update->b;
        op.scale[i] = scale * update->scale;
        op.low_rank[i] = work;
        work += product->rows * update->a.rows;
        updates++;
    }
    if (updates > 0) ops->low_rank_matmul(call->backend, &op);
    return updates > 0;
}

void component_matmul(const ComponentCall *call, const Matmul *op) {
    if (call->adapted && low_rank_matmul(call, (LowRankMatmul){.product = *op})) return;
    call->backend->ops->matmul(call->backend, op);
    int chunk = 0;
    for (AdapterRows part = {0}; call->adapted && next_part(call, &chunk, &part);) add_updates(call, &part, op, 1);
}

void component_glu(const ComponentCall *call, const Glu *op) {
    if (!call->adapted || !(op->gate->updates || op->up->updates)) {
        call->backend->ops->glu(call->backend, op);
        return;
    }
    /* in its parts, with the bits that it has as a whole */
    ComponentCall own = *call;
    float *up = call->low_rank;
    own.low_rank += op->rows * op->up->rows;
    const Matmul products = {.rows = op->rows,
        .decode_rows = op->decode_rows,
        .x = op->x,
        .norm = op->norm,
        .count = 2,
        .weight = {op->gate, op->up},
        .out = {op->out, up}};
    const Multiply multiply = {.rows = op->rows,
        .width = op->gate->rows,
        .x = op->out,
        .activation = op->activation,
        .y = up,
        .y_stride = op->up->rows,
        .out = op->out};
    if (low_rank_matmul(&own, (LowRankMatmul){.product = products, .gated = true, .activation = op->activation}))
        return;
    component_matmul(&own, &products);
    call->backend->ops->multiply(call->backend, &multiply);
}

/* The rows of a part through a norm behind the product. */
static void add_normed(const ComponentCall *call, const AdapterRows *taken, const MatmulAdd *op) {
    const BackendOps *ops = call->backend->ops;
    const int64_t rows = op->weight->rows, cols = op->weight->cols;
    MatmulAdd part = *op;
    part.rows = taken->rows;
    part.decode_rows = part_decode_rows(taken, op->decode_rows);
    part.x += taken->first * cols;
    part.residual += taken->first * rows;
    const LowRank *update = update_of(op->weight, taken->adapter);
    if (!update) {
        ops->matmul_add(call->backend, &part);
        return;
    }
    float *product = call->low_rank + taken->rows * update->a.rows;
    const Matmul whole = {.rows = part.rows,
        .decode_rows = part.decode_rows,
        .x = part.x,
        .count = 1,
        .weight = {op->weight},
        .out = {product}};
    ops->matmul(call->backend, &whole);
    const AdapterRows own = {.rows = taken->rows, .adapter = taken->adapter};
    add_updates(call, &own, &whole, 1);
    ops->add(call->backend, part.rows, rows, part.residual, product, op->scale, op->norm);
}

void component_matmul_add(const ComponentCall *call, const MatmulAdd *op) {
    const Matmul product = {.rows = op->rows,
        .decode_rows = op->decode_rows,
        .x = op->x,
        .count = 1,
        .weight = {op->weight},
        .out = {op->residual}};
    int chunk = 0;
    const LowRankMatmul low_rank = {.product = product, .residual = op->residual, .residual_scale = op->scale};
    if (call->adapted && !op->norm && low_rank_matmul(call, low_rank)) return;
    if (!call->adapted || !op->norm) call->backend->ops->matmul_add(call->backend, op);
    if (!call->adapted) return;
    for (AdapterRows part = {0}; next_part(call, &chunk, &part);) {
        if (op->norm)
            add_normed(call, &part, op);
        else
            add_updates(call, &part, &product, op->scale);
    }
}

void component_project(const ComponentCall *call, Matmul *op, const Weight *weight, float *out) {
    if (weight && weight->rows > 0) {
        op->weight[op->count] = weight;
        op->out[op->count++] = out;
    }
    if (op->count < (weight ? MATMUL_MAX : 1)) return;
    component_matmul(call, op);
    op->count = 0;
}
