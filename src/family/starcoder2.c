/* StarCoder 2: layer norms with biases, biases everywhere, a feed-forward network without a gate.
 * References: transformers/models/starcoder2; mlx_lm/models/starcoder2.py, which computes the erf form of GELU whatever
 * the config says, and no window. The models were trained with the tanh form, which their configs name and which is the
 * default where a config has no hidden_act. */
#include "family/dense.h"
#include "family/gguf/models.h"

static void load(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"mlp.up_proj", "mlp.c_fc"}, {"mlp.down_proj", "mlp.c_proj"}, {0}};
    static const NormNames norms = {
        load_layer_norm, .attention_input = "input_layernorm", .ffn_input = "post_attention_layernorm"};
    Dense row = {.names = names,
        .eps_field = "norm_epsilon",
        .eps = 1e-5,
        .norms = &norms,
        .theta = 10000,
        .qkv_bias = {"use_bias", true},
        .out_bias = {"use_bias", true},
        .mlp_bias = {"use_bias", true},
        .ffn = DENSE_MLP,
        .activation = {.kind = ACT_GELU_TANH},
        .activation_text = "gelu_pytorch_tanh",
        .window_everywhere = true,
        .tied = true,
        .ignored = {"embedding_dropout", "residual_dropout", "mlp_type", "norm_type"}};
    if (load_text_is(ld, "hidden_act", "gelu")) {
        row.activation.kind = ACT_GELU;
        row.activation_text = "gelu";
    }
    dense_load(ld, spec, &row);
}

const Family starcoder2_family = {.load = load, .gguf = &starcoder2_gguf};
