/* Weights divided over ranks. */
#include <stdlib.h>
#include <string.h>

#include "backend/tensor_parallel_internal.h"
#include "base/checked.h"

/* Ensures room for `bytes` of columns; a rank that computes with them in place takes the buffer over. */
static bool columns_room(Parallel *t, size_t bytes, Error *error) {
    if (bytes <= t->columns_bytes) return true;
    free(t->columns);
    t->columns = malloc(bytes);
    t->columns_bytes = t->columns ? bytes : 0;
    return t->columns || fail(error, ERROR_MEMORY, "no memory for %zu bytes of a matrix", bytes);
}

static bool divides(const Weight *w, int64_t count, int64_t unit, int parts, const char *what, Error *error) {
    if (count % (unit * parts) == 0) return true;
    return fail(error, ERROR_UNSUPPORTED,
        "a matrix of %lld × %lld cannot be divided among %d devices: %lld %s are not %d times a multiple of %lld",
        (long long)w->rows, (long long)w->cols, parts, (long long)count, what, parts, (long long)unit);
}

/* Writes one rank's share of w to out. */
static bool cut(Parallel *t, const Weight *w, int part, Weight *out, Error *error) {
    *out = *w;
    if (w->split == SPLIT_NONE) return true;
    const bool vector = w->rows == 1 && w->quant == QUANT_NONE && w->dtype == DTYPE_F32;
    if (w->split == SPLIT_ROWS && !vector) {
        const int64_t rows = w->rows / t->count;
        if (!divides(w, w->rows, 1, t->count, "rows", error)) return false;
        *out = weight_rows(w, part * rows, rows);
        return true;
    }
    const int64_t cols = w->cols / t->count;
    if (!divides(w, w->cols, weight_column_unit(w), t->count, "columns", error)) return false;
    Weight shape = *w;
    shape.cols = cols;
    if (!columns_room(t, weight_columns_bytes(&shape), error)) return false;
    *out = weight_columns(w, part * cols, cols, t->columns);
    if (part > 0) out->bias = NULL; /* rank 0 alone adds the bias */
    return true;
}

/* Ensures room for the partial products with this matrix until they are summed. */
static bool terms_room(Parallel *t, const Weight *w, Error *error) {
    size_t floats, bytes;
    if (parallel_sums(t) || w->split != SPLIT_COLUMNS || w->rows <= t->widest) return true;
    if (!size_mul((size_t)t->base.rows_max, (size_t)w->rows, &floats) || !size_mul(floats, sizeof(float), &bytes))
        return fail(error, ERROR_MEMORY, "no memory for a step of %d rows", t->base.rows_max);
    t->widest = 0;
    for (int p = 0; p < t->count; p++) {
        Backend *part = parallel_enter(t, p);
        part->ops->release(part, t->terms[p]);
        if (!(t->terms[p] = part->ops->alloc(part, bytes, MEMORY_STEP, error))) return false;
    }
    free(t->sum);
    free(t->more);
    t->sum = malloc(bytes);
    t->more = malloc(bytes);
    if (!t->sum || !t->more) return fail(error, ERROR_MEMORY, "no memory for a step of %d rows", t->base.rows_max);
    t->widest = w->rows;
    return true;
}

static void unbind_parts(Parallel *t, Shared *shared, int parts) {
    for (int p = 0; p < parts; p++) {
        Backend *part = parallel_enter(t, p);
        if (shared->data[p]) part->ops->unbind(part, &shared->part[p]);
        free(shared->columns[p]);
    }
    free(shared);
}

bool parallel_bind(Backend *backend, Weight *weight, Error *error) {
    Parallel *t = parallel_of(backend);
    Shared *shared = calloc(1, sizeof *shared);
    if (!shared) return fail(error, ERROR_MEMORY, "no memory for a weight");
    bool ok = terms_room(t, weight, error);
    for (int p = 0; ok && p < t->count; p++) {
        Backend *part = parallel_enter(t, p);
        Weight own = {0};
        ok = cut(t, weight, p, &own, error) && part->ops->bind(part, &own, error);
        if (!ok) {
            unbind_parts(t, shared, p);
            return false;
        }
        shared->part[p] = own;
        shared->data[p] = own.data;
        shared->bias[p] = own.bias;
        if (own.data == t->columns && t->columns) { /* the rank computes in place */
            shared->columns[p] = t->columns;
            t->columns = NULL;
            t->columns_bytes = 0;
        }
    }
    if (!ok) {
        free(shared);
        return false;
    }
    weight->data = shared;
    weight->scales = weight->biases = NULL;
    if (weight->bias) weight->bias = (const float *)(const void *)shared->bias;
    return true;
}

void parallel_unbind(Backend *backend, const Weight *weight) {
    Parallel *t = parallel_of(backend);
    parallel_forget(t);
    unbind_parts(t, (Shared *)weight->data, t->count);
}

/* ---- experts ---- */

const Weight *parallel_bank(Parallel *t, int part, const Weight *weights, int count) {
    for (const SharedBank *bank = t->banks; bank; bank = bank->next)
        if (bank->weights == weights) return bank->part[part];
    SharedBank *bank = calloc(1, sizeof *bank + (size_t)(t->count * count) * sizeof(Weight));
    if (!bank) return NULL;
    Weight *own = (Weight *)(void *)(bank + 1);
    for (int p = 0; p < t->count; p++, own += count) {
        bank->part[p] = own;
        for (int e = 0; e < count; e++) own[e] = shared_of(&weights[e])->part[p];
    }
    bank->weights = weights;
    bank->next = t->banks;
    t->banks = bank;
    return bank->part[part];
}

const Rope *parallel_rope(Parallel *t, int part, const Rope *rope) {
    SharedRope *one = t->ropes;
    while (one && one->rope != rope) one = one->next;
    if (!rope || one) return rope ? &one->part[part] : NULL;
    one = calloc(1, sizeof *one);
    CHECK(one != NULL); /* a small allocation, in the first step with these weights */
    for (int p = 0; p < t->count; p++) {
        one->part[p] = *rope;
        one->part[p].frequencies = ((const Shared *)(const void *)rope->frequencies)->data[p];
    }
    one->rope = rope;
    one->next = t->ropes;
    t->ropes = one;
    return &one->part[part];
}

void parallel_forget(Parallel *t) {
    while (t->banks) {
        SharedBank *bank = t->banks;
        t->banks = bank->next;
        free(bank);
    }
    while (t->ropes) {
        SharedRope *rope = t->ropes;
        t->ropes = rope->next;
        free(rope);
    }
}
