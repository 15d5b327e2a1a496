/* What every part of a layer gets: where it reads, where it adds, and memory to work in. */
#pragma once
#include "model/spec.h"

typedef struct Block {
    Backend *backend;
    const KvLayer *cache;  /* what the layer remembers */
    int rows, decode_rows; /* the first so many lie behind the end of their prompts (Step.generated) */
    const float *x;        /* [rows, hidden] */
    const Norm *in;        /* applied to x first; NULL: none */
    float *work;           /* [rows · the part's width] */
    float *residual;       /* [rows, hidden] += scale · out(result) */
    const Norm *out;
    const Norm *next; /* through what the residual will be read next; NULL: not known */
    float scale;
    int micro_batch; /* of sources */
    bool begun;      /* an FFN's begin() was called for it */
} Block;
