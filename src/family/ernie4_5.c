/* Ernie 4.5, dense: a llama that rotates pairs of neighbours. Reference: mlx_lm/models/ernie4_5.py. */
#include "family/dense.h"

static void load(Loader *ld, Spec *spec) {
    static const Dense row = {.interleaved = true,
        .qkv_bias = {"use_bias", false},
        .out_bias = {"use_bias", false},
        .mlp_bias = {"use_bias", false},
        .tied = true};
    dense_load(ld, spec, &row);
}

static const GgufField fields[] = {
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"use_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {0},
};

const Family ernie4_5_family = {
    .load = load,
    .gguf = &(const GgufModel){.architecture = "ernie4_5",
        .class_name = "Ernie4_5ForCausalLM",
        .names = {gguf_ends, gguf_norms, gguf_qkv, gguf_glu},
        .fields = {gguf_sizes, gguf_rms, gguf_silu, fields}},
};
