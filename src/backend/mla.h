/* MLA for backends that compute in host memory. */
#pragma once
#include "backend/backend.h"

/* A matrix for each head: out[row, head] = weight[head] · x[row, head]. Strides are in floats. */
typedef struct HeadProducts {
    int rows, decode_rows, heads;
    const Weight *weight; /* [heads], of one shape and kind */
    const float *x;
    int64_t x_row, x_head;
    float *out;
    int64_t out_row, out_head;
    float *work; /* [rows · (rows + cols of a matrix)] */
} HeadProducts;
typedef void MultiplyHeads(Backend *backend, const HeadProducts *op);

/* Computes MLA with the backend's own attention. */
void mla_attend(Backend *backend, const Mla *op, MultiplyHeads *multiply);
/* The same with the backend's own matmul, a head after the other. */
void host_mla(Backend *backend, const Mla *op);
