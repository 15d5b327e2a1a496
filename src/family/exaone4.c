/* EXAONE 3 (exaone): a llama with GPT-2's names. EXAONE 4: norms behind both parts of a layer and on the heads of q and
 * k; where some layers have a window, the others have no rotary embedding.
 * References: mlx_lm/models/exaone.py, exaone4.py. */
#include "family/dense.h"
#include "family/gguf/models.h"

static void load_exaone(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"num_hidden_layers", "num_layers"}, {"hidden_act", "activation_function"}, {0}};
    static const LoadName names[] = {{"model.layers", "transformer.h"}, {"model.embed_tokens", "transformer.wte"},
        {"model.norm", "transformer.ln_f"}, {"self_attn.o_proj", "attn.attention.out_proj"},
        {"self_attn", "attn.attention"}, {"mlp.gate_proj", "mlp.c_fc_0"}, {"mlp.up_proj", "mlp.c_fc_1"},
        {"mlp.down_proj", "mlp.c_proj"}, {"input_layernorm", "ln_1"}, {"post_attention_layernorm", "ln_2"}, {0}};
    static const Dense row = {.fields = fields,
        .names = names,
        .eps_field = "layer_norm_epsilon",
        .eps = 1e-5,
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false},
        .mlp_bias = {"mlp_bias", false},
        .tied = true,
        .ignored = {"embed_dropout"}};
    dense_load(ld, spec, &row);
}

static void load_exaone4(Loader *ld, Spec *spec) {
    static const NormNames norms = {
        load_rms, .attention_output = "post_attention_layernorm", .ffn_output = "post_feedforward_layernorm"};
    static const Dense row = {.eps = 1e-5,
        .norms = &norms,
        .q_norm = "q_norm",
        .k_norm = "k_norm",
        .qk_norm = {NULL, true},
        .full_every = 4,
        .full_unrotated = true,
        .ignored = {"layer_types"}};
    dense_load(ld, spec, &row);
}

const Family exaone_family = {.load = load_exaone, .gguf = &exaone_gguf};
const Family exaone4_family = {.load = load_exaone4, .gguf = &exaone4_gguf};
