/* A mixture of experts: the choice comes to the host, where rows are sorted by expert, and each expert in use is a
 * gated product and another one. To be replaced by kernels that read the choice on the device; until then such models
 * are not captured. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda.h"

/* Pairs of a row and one of its experts in the order of the experts: where each goes, and the row at each place. */
static void sort_pairs(const Experts *op, const int32_t *index, int32_t *place, int32_t *row, int *begin) {
    const int pairs = op->rows * op->used;
    int next[EXPERTS_MAX + 1];
    memset(begin, 0, (size_t)(op->count + 1) * sizeof *begin);
    for (int p = 0; p < pairs; p++) begin[index[p] + 1]++;
    for (int e = 0; e < op->count; e++) begin[e + 1] += begin[e];
    memcpy(next, begin, (size_t)op->count * sizeof *next);
    for (int p = 0; p < pairs; p++) {
        place[p] = next[index[p]]++;
        row[place[p]] = p / op->used;
    }
}

static int64_t widest(const Experts *op) {
    int64_t inner = 0;
    for (int e = 0; e < op->count; e++) inner = op->gate[e].rows > inner ? op->gate[e].rows : inner;
    return inner;
}

static void run_expert(Backend *backend, const Experts *op, int e, int rows, float *inner, float *y) {
    const Glu glu = {
        .rows = rows, .x = y, .gate = &op->gate[e], .up = &op->up[e], .activation = op->activation, .out = inner};
    const Matmul down = {.rows = rows, .x = inner, .count = 1, .weight = {&op->down[e]}, .out = {y}};
    backend->ops->glu(backend, &glu);
    backend->ops->matmul(backend, &down);
}

static void run(Backend *backend, const Experts *op, int32_t *index, int32_t *place, int32_t *row) {
    CudaBackend *b = cuda_of(backend);
    const int64_t hidden = op->down[0].rows, pairs = (int64_t)op->rows * op->used, inner = widest(op);
    const size_t bytes = (size_t)pairs * sizeof *index;
    int begin[EXPERTS_MAX + 2];
    float *y = op->work, *between = y + pairs * hidden;
    backend->ops->download(backend, index, op->index, bytes);
    if (b->fault.code != ERROR_NONE) return;
    sort_pairs(op, index, place, row, begin);
    if (!cuda_room(b, &b->choice, 2 * bytes, &b->fault)) return;
    int32_t *places = b->choice.memory, *rows = places + pairs;
    backend->ops->upload(backend, places, place, bytes);
    backend->ops->upload(backend, rows, row, bytes);
    cuda_ok(b, rows_gather(b->stream, (int)pairs, rows, op->x, hidden, y), "experts");
    for (int e = 0; e < op->count; e++) {
        const int count = begin[e + 1] - begin[e];
        if (count > 0) run_expert(backend, op, e, count, between + begin[e] * inner, y + begin[e] * hidden);
    }
    cuda_ok(b, rows_combine(b->stream, op->rows, op->used, hidden, y, places, op->weight, op->out), "experts");
}

void cuda_experts(Backend *backend, const Experts *op) {
    CudaBackend *b = cuda_of(backend);
    const size_t pairs = (size_t)op->rows * (size_t)op->used;
    b->asks_host = true;
    b->handed = NULL;
    CHECK(!b->capturing && op->count <= EXPERTS_MAX + 1);
    int32_t *numbers = malloc(3 * pairs * sizeof *numbers);
    if (numbers)
        run(backend, op, numbers, numbers + pairs, numbers + 2 * pairs);
    else if (b->fault.code == ERROR_NONE)
        fail(&b->fault, ERROR_MEMORY, "no memory for a choice of experts");
    free(numbers);
}
