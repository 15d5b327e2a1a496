/* Command R and A (Cohere): both parts of a layer read one layer norm without a bias; pairs of neighbours rotate;
 * logits have a factor. Command R+ has a norm of each head's own on q and k. Cohere 2: three layers with a window to
 * one without, which has no rotary embedding. References: mlx_lm/models/cohere.py, cohere2.py. */
#include "family/dense.h"
#include "family/gguf/models.h"

static const NormNames norms = {load_layer_norm, .attention_input = "input_layernorm"};

static const Dense usual = {.eps_field = "layer_norm_eps",
    .eps = 1e-5,
    .norms = &norms,
    .theta = 500000,
    .interleaved = true,
    .qkv_bias = {"attention_bias", false},
    .out_bias = {"attention_bias", false},
    .parallel = true,
    .tied = true};

static Dims load(Loader *ld, Spec *spec, const Dense *row) {
    spec->logit_scale = load_positive_or(ld, "logit_scale", 0.0625);
    load_expect_bool(ld, "layer_norm_bias", false);
    load_expect_bool(ld, "tie_word_embeddings", true);
    load_expect_bool(ld, "use_parallel_block", true);
    load_expect_bool(ld, "use_gated_activation", true);
    load_expect_text(ld, "position_embedding_type", "rope_gptj");
    return dense_load(ld, spec, row);
}

static void load_cohere(Loader *ld, Spec *spec) {
    const bool head_norms = load_bool_or(ld, "use_qk_norm", false);
    const Dims d = load(ld, spec, &usual);
    for (int i = 0; head_norms && i < spec->layer_count; i++) {
        AttentionComponent *attention = &family_layer(ld, spec, i)->components[0].attention;
        const float *q = load_array(ld, "self_attn.q_norm.weight", d.heads, d.head_dim);
        const float *k = load_array(ld, "self_attn.k_norm.weight", d.kv_heads, d.head_dim);
        attention->head_norm = load_layer_norm(ld, NULL, d.head_dim, d.eps);
        attention->q_factors = q;
        attention->k_factors = k;
    }
}

static void load_cohere2(Loader *ld, Spec *spec) {
    Dense row = usual;
    row.theta = 10000;
    row.window = 4096;
    row.full_every = 4;
    row.full_unrotated = true;
    load_expect_bool(ld, "use_qk_norm", false);
    load_ignore(ld, "rotary_pct", "order_of_interleaved_layers", "use_embedding_sharing", "cache_implementation", NULL);
    load(ld, spec, &row);
}

const Family cohere_family = {.load = load_cohere, .gguf = &cohere_gguf};
const Family cohere2_family = {.load = load_cohere2, .gguf = &cohere2_gguf};
