/* BitNet b1.58: a llama with squared ReLU and a norm inside of both parts; its matrices are ternary (packed.c).
 * References: transformers/models/bitnet, mlx_lm/models/bitnet.py. */
#include "family/dense.h"

static void load(Loader *ld, Spec *spec) {
    static const Dense row = {.eps = 1e-5,
        .theta = 500000,
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false},
        .mlp_bias = {"mlp_bias", false},
        .activation = {.kind = ACT_RELU2},
        .activation_text = "relu2"};
    const Dims d = dense_load(ld, spec, &row);
    for (int i = 0; i < spec->layer_count; i++) {
        Component *components = family_layer(ld, spec, i)->components;
        components[0].attention.sub_norm =
            load_rms(ld, "self_attn.attn_sub_norm", (int64_t)d.heads * d.head_dim, d.eps);
        components[1].glu.sub_norm = load_rms(ld, "mlp.ffn_sub_norm", d.intermediate_size, d.eps);
    }
}

const Family bitnet_family = {.load = load};
