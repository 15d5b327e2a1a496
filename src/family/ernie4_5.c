/* Ernie 4.5, dense: a llama that rotates pairs of neighbours. Reference: mlx_lm/models/ernie4_5.py. */
#include "family/dense.h"
#include "family/gguf/models.h"

static void load(Loader *ld, Spec *spec) {
    static const Dense row = {.head_dim = 128,
        .eps = 1e-5,
        .theta = 500000,
        .interleaved = true,
        .qkv_bias = {"use_bias", false},
        .out_bias = {"use_bias", false},
        .mlp_bias = {"use_bias", false},
        .tied = true};
    dense_load(ld, spec, &row);
}

const Family ernie4_5_family = {.load = load, .gguf = &ernie4_5_gguf};
