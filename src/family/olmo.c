/* OLMo: layer norms without weights, values of q, k and v clipped in some. OLMo 2: norms behind both parts of a layer
 * and over all heads of q and k. OLMo 3: the same with windows, where the scaled rotary embedding is that of full
 * layers. All layers were trained with one rope_theta, the config's, as mlx-lm has it; transformers 5 takes a top-level
 * rope_theta for full layers alone and 500,000 for those with a window, which is what the published configs say anyway.
 * References: transformers/models/olmo, mlx_lm/models/olmo2.py, olmo3.py. */
#include "family/dense.h"
#include "family/gguf/models.h"

/* Without weights. */
static const Norm *load_plain(Loader *ld, const char *name, int64_t width, float eps) {
    return load_layer_norm(ld, NULL, width, eps);
}

static void load_olmo(Loader *ld, Spec *spec) {
    static const NormNames norms = {load_plain, .attention_input = "", .ffn_input = ""};
    static const Dense row = {.eps_field = "layer_norm_eps",
        .eps = 1e-5,
        .norms = &norms,
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false}};
    if (load_has_field(ld, "d_model")) { /* as MLX converts the publisher's own files */
        hf_olmo_load(ld, spec);
        return;
    }
    const float clip = load_positive_or(ld, "clip_qkv", 0);
    dense_load(ld, spec, &row);
    for (int i = 0; i < spec->layer_count; i++) spec->layers[i].components[0].attention.clip = clip;
}

static const NormNames norms = {
    load_rms, .attention_output = "post_attention_layernorm", .ffn_output = "post_feedforward_layernorm"};

static void load_olmo2(Loader *ld, Spec *spec) {
    static const Dense row = {.eps = 1e-5,
        .norms = &norms,
        .q_norm = "q_norm",
        .k_norm = "k_norm",
        .qk_norm = {NULL, true},
        .norm_full = true,
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false},
        .mlp_bias = {"mlp_bias", false}};
    dense_load(ld, spec, &row);
}

static void load_olmo3(Loader *ld, Spec *spec) {
    static const Dense row = {.eps = 1e-5,
        .norms = &norms,
        .q_norm = "q_norm",
        .k_norm = "k_norm",
        .qk_norm = {NULL, true},
        .norm_full = true,
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false},
        .theta = 500000,
        .window = 4096,
        .full_every = 4,
        .window_unscaled = true};
    dense_load(ld, spec, &row);
}

const Family olmo_family = {.load = load_olmo, .gguf = &olmo_gguf};
const Family olmo2_family = {.load = load_olmo2, .gguf = &olmo2_gguf};
const Family olmo3_family = {.load = load_olmo3, .gguf = &olmo3_gguf};
