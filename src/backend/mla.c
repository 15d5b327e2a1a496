#include "backend/mla.h"

#include <string.h>

/* Takes a piece of the work area. */
static float *carve(float **work, int64_t count) {
    float *part = *work;
    *work += count;
    return part;
}

static void copy(int rows, const float *from, int64_t from_width, float *to, int64_t to_width, int64_t count) {
    for (int row = 0; row < rows; row++)
        memcpy(to + row * to_width, from + row * from_width, (size_t)count * sizeof *to);
}

static void multiply_heads(Backend *backend, const HeadProducts *op) {
    const int64_t in = op->weight[0].cols, width = op->weight[0].rows;
    float *from = op->work, *to = from + op->rows * in;
    for (int h = 0; h < op->heads; h++) {
        const float *own = op->x + h * op->x_head;
        float *result = op->out + h * op->out_head;
        if (op->rows > 1) copy(op->rows, own, op->x_row, from, in, in);
        const Matmul product = {.rows = op->rows,
            .decode_rows = op->decode_rows,
            .x = op->rows > 1 ? from : own,
            .count = 1,
            .weight = {&op->weight[h]},
            .out = {op->rows > 1 ? to : result}};
        backend->ops->matmul(backend, &product);
        if (op->rows > 1) copy(op->rows, to, width, result, op->out_row, width);
    }
}

void mla_attend(Backend *backend, const Mla *op, MultiplyHeads *multiply) {
    const KvLayout *l = &op->attention.kv.layout;
    const int heads = op->attention.heads, rows = op->rows;
    const int64_t queries = (int64_t)rows * heads, width = op->nope_dim + l->head_dim;
    float *work = op->work, *rotating = carve(&work, queries * l->head_dim),
          *latents = carve(&work, queries * l->value_dim), *attended = carve(&work, queries * l->value_dim);
    if (op->latent_norm) backend->ops->norm(backend, rows, op->latent, op->latent_norm, op->latent);
    copy((int)queries, op->q + op->nope_dim, width, rotating, l->head_dim, l->head_dim);
    const HeadProducts keys = {.rows = rows,
        .decode_rows = op->decode_rows,
        .heads = heads,
        .weight = op->w_uk,
        .x = op->q,
        .x_row = heads * width,
        .x_head = width,
        .out = latents,
        .out_row = (int64_t)heads * l->value_dim,
        .out_head = l->value_dim,
        .work = work};
    multiply(backend, &keys);
    Attention attention = op->attention;
    attention.q = rotating;
    attention.k = op->k;
    attention.v = op->latent;
    attention.q_latent = latents;
    attention.out = attended;
    backend->ops->attention(backend, &attention);
    const int64_t out_width = op->w_uv[0].rows;
    const HeadProducts values = {.rows = rows,
        .decode_rows = op->decode_rows,
        .heads = heads,
        .weight = op->w_uv,
        .x = attended,
        .x_row = (int64_t)heads * l->value_dim,
        .x_head = l->value_dim,
        .out = op->out,
        .out_row = heads * out_width,
        .out_head = out_width,
        .work = work};
    multiply(backend, &values);
}

void host_mla(Backend *backend, const Mla *op) { mla_attend(backend, op, multiply_heads); }
