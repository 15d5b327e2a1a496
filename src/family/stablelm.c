/* StableLM 2: layer norms with biases, partly rotated heads; in the 12B a norm of each head's own on q and k, and both
 * parts of a layer read the same norm. Reference: mlx_lm/models/stablelm.py. */
#include "family/dense.h"
#include "family/gguf/models.h"

static void load(Loader *ld, Spec *spec) {
    static const NormNames both = {
        load_layer_norm, .attention_input = "input_layernorm", .ffn_input = "post_attention_layernorm"};
    static const NormNames one = {load_layer_norm, .attention_input = "input_layernorm"};
    static const LoadName epoch[] = {{"layer_norm_eps", "norm_eps"}, {"partial_rotary_factor", "rope_pct"}, {0}};
    Dense row = {.eps_field = "layer_norm_eps",
        .eps = 1e-5,
        .fields = load_has_field(ld, "rope_pct") ? epoch : NULL, /* StableLM Epoch */
        .norms = &both,
        .rotary_factor = 0.25,
        .qkv_bias = {"use_qkv_bias", false}};
    const bool head_norms = load_bool_or(ld, "qk_layernorm", false);
    if ((row.parallel = load_bool_or(ld, "use_parallel_residual", false))) row.norms = &one;
    const Dims d = dense_load(ld, spec, &row);
    for (int i = 0; head_norms && i < spec->layer_count; i++) {
        AttentionComponent *attention = &family_layer(ld, spec, i)->components[0].attention;
        attention->q_factors = load_rows(ld, "self_attn.q_layernorm.norms.%d.weight", d.heads, d.head_dim);
        attention->k_factors = load_rows(ld, "self_attn.k_layernorm.norms.%d.weight", d.kv_heads, d.head_dim);
        attention->head_norm = load_layer_norm(ld, NULL, d.head_dim, d.eps);
    }
}

const Family stablelm_family = {.load = load, .gguf = &stablelm_gguf};
