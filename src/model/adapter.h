/* LoRA adapters (Hu et al., arXiv 2106.09685): low-rank updates of a model's matrices, W·x + scale · B·(A·x), chosen
 * for each sequence (SequenceChunk.adapter). Several can be used in one step; a row's bits depend on its own adapter
 * alone. */
#pragma once
#include "tensor/tensor.h"

enum {
    ADAPTERS_MAX = 64,       /* adapters of one model */
    ADAPTER_RANK_MAX = 1024, /* rows of A */
};

/* The update of one matrix by one adapter. */
typedef struct LowRank {
    Weight a, b; /* [rank, cols], [rows, rank]; a.rows 0: the adapter leaves the matrix alone */
    float scale;
} LowRank;

typedef struct Adapter {
    const char *name;
    uint64_t checksum; /* checksum of its updates; never 0 */
    int matrices;      /* number of matrices that it updates */
    int rank;          /* the largest rank of an update */
} Adapter;

/* Directory with adapter_config.json and adapter_model.safetensors (PEFT) or adapters.safetensors (MLX). */
typedef struct AdapterSource {
    const char *name, *directory;
} AdapterSource;
