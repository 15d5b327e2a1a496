#include "backend/mla.h"

#include <string.h>

/* Takes a piece of the work area. */
static float *carve(float **work, int64_t count) {
    float *part = *work;
    *work += count;
    return part;
}

static void host_copy(
    Backend *backend, int rows, const float *from, int64_t from_width, float *to, int64_t to_width, int64_t count) {
    for (int row = 0; row < rows; row++)
        memcpy(to + row * to_width, from + row * from_width, (size_t)count * sizeof *to);
}

/* One matrix per head: out[row, head] = W[head] · x[row, head]. Stride of x: x_width from head to head, heads · x_width
 * from row to row. spare: [rows · (rows + cols of a matrix)] to gather a head's rows. */
static void multiply_heads(Backend *backend, CopyColumns *copy, int rows, int decode_rows, int heads, const float *x,
    int64_t x_width, const Weight *weight, float *spare, float *out) {
    const int64_t in = weight[0].cols, width = weight[0].rows;
    float *from = spare, *to = spare + rows * in;
    for (int h = 0; h < heads; h++) {
        const float *own = x + h * x_width;
        float *result = out + h * width;
        if (rows > 1) copy(backend, rows, own, heads * x_width, from, in, in);
        const Matmul op = {.rows = rows,
            .decode_rows = decode_rows,
            .x = rows > 1 ? from : own,
            .count = 1,
            .weight = {&weight[h]},
            .out = {rows > 1 ? to : result}};
        backend->ops->matmul(backend, &op);
        if (rows > 1) copy(backend, rows, to, width, result, heads * width, width);
    }
}

void mla_attend(Backend *backend, const Mla *op, CopyColumns *copy) {
    const KvLayout *l = &op->attention.kv.layout;
    const int heads = op->attention.heads, rows = op->rows;
    const int64_t queries = (int64_t)rows * heads, width = op->nope_dim + l->head_dim;
    float *work = op->work, *rotating = carve(&work, queries * l->head_dim),
          *latents = carve(&work, queries * l->value_dim), *attended = carve(&work, queries * l->value_dim);
    if (op->latent_norm) backend->ops->norm(backend, rows, op->latent, op->latent_norm, op->latent);
    copy(backend, (int)queries, op->q + op->nope_dim, width, rotating, l->head_dim, l->head_dim);
    multiply_heads(backend, copy, rows, op->decode_rows, heads, op->q, width, op->w_uk, work, latents);
    Attention attention = op->attention;
    attention.q = rotating;
    attention.k = op->k;
    attention.v = op->latent;
    attention.q_latent = latents;
    attention.out = attended;
    backend->ops->attention(backend, &attention);
    multiply_heads(backend, copy, rows, op->decode_rows, heads, attended, l->value_dim, op->w_uv, work, op->out);
}

void host_mla(Backend *backend, const Mla *op) { mla_attend(backend, op, host_copy); }
