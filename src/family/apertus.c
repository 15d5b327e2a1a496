/* Apertus: norms on the heads of q and k, a feed-forward network without a gate whose xIELU has parameters of its
 * layer. Reference: mlx_lm/models/apertus.py, activations.py. */
#include "family/dense.h"
#include "family/gguf/models.h"

#include <math.h>

static float softplus(float x) { return fmaxf(x, 0) + log1pf(expf(-fabsf(x))); }

static float scalar(Loader *ld, const char *name) {
    const float *value = load_vector(ld, name, 1, 0);
    return value ? *value : 0;
}

static void load(Loader *ld, Spec *spec) {
    static const NormNames norms = {
        load_rms, .attention_input = "attention_layernorm", .ffn_input = "feedforward_layernorm"};
    static const Dense row = {.eps = 1e-5,
        .norms = &norms,
        .q_norm = "q_norm",
        .k_norm = "k_norm",
        .qk_norm = {NULL, true},
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false},
        .mlp_bias = {"mlp_bias", false},
        .ffn = DENSE_MLP,
        .activation_text = "xielu"};
    load_expect_bool(ld, "post_norm", false);
    load_expect_bool(ld, "qk_norm", true);
    dense_load(ld, spec, &row);
    for (int i = 0; i < spec->layer_count; i++) {
        Layer *layer = family_layer(ld, spec, i);
        const float beta = scalar(ld, "mlp.act_fn.beta"), eps = scalar(ld, "mlp.act_fn.eps");
        load_require(ld, fabsf(eps) < 1e-4f, "the eps of xIELU is %g, which is not near 0", (double)eps);
        layer->components[1].mlp.activation = (Activation){ACT_XIELU, .a = softplus(scalar(ld, "mlp.act_fn.alpha_p")),
            .b = beta + softplus(scalar(ld, "mlp.act_fn.alpha_n")), .c = beta};
    }
}

const Family apertus_family = {.load = load, .gguf = &apertus_gguf};
