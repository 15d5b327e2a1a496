/* OpenELM: every layer has its own number of heads and its own width. GGUF files have ffn.proj_1 as two matrices.
 * Reference: mlx_lm/models/openelm.py. */
#include "family/family.h"
#include "family/gguf/models.h"

#include <math.h>

static Component load_ffn(Loader *ld, int hidden, int inner) {
    static const Activation silu = {.kind = ACT_SILU};
    Component out = {.kind = COMPONENT_GLU};
    if (load_has(ld, "ffn.proj_1.weight"))
        out.glu = family_fused_glu(ld, "ffn.proj_1", "ffn.proj_2", hidden, inner, silu, false);
    else
        out.glu = family_glu(ld, "ffn", hidden, inner, silu, false);
    return out;
}

/* The nearest multiple, but not less than 0.9 of x. */
static int divisible(double x, int divisor) {
    int rounded = (int)(x + divisor / 2.0) / divisor * divisor;
    rounded = rounded > divisor ? rounded : divisor;
    return rounded < 0.9 * x ? rounded + divisor : rounded;
}

static void load(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"model.layers", "transformer.layers"}, {0}};
    static const NormNames norms = {load_rms, .attention_input = "attn_norm", .ffn_input = "ffn_norm"};
    Dims d = {.hidden = load_int(ld, "model_dim"),
        .head_dim = load_int(ld, "head_dim"),
        .eps = load_positive_or(ld, "rms_norm_eps", 1e-6)};
    spec->hidden = d.hidden;
    spec->layer_count = load_int(ld, "num_transformer_layers");
    spec->vocab = load_int(ld, "vocab_size");
    spec->positions = load_int_or(ld, "max_context_length", 2048);
    const int divisor = load_int(ld, "ffn_dim_divisor");
    const Json *factors = load_list(ld, "ffn_multipliers", spec->layer_count);
    const bool qk_norm = load_bool_or(ld, "normalize_qk_projections", true);
    const Rope *rope =
        load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta_field = "rope_freq_constant", .theta = 10000});
    load_require(ld, factors, "ffn_multipliers must be a list of numbers");
    load_expect_bool(ld, "ffn_with_glu", true);
    load_expect_text(ld, "activation_fn_name", "swish");
    load_expect_text(ld, "normalization_layer_name", "rms_norm");
    load_ignore(ld, "num_gqa_groups", "qkv_multipliers", "rope_max_length", NULL);
    load_module_names(ld, names);
    const bool tied = load_bool_or(ld, "share_input_output_layers", true);
    family_ends_as(ld, spec, &d, "transformer.token_embeddings", "transformer.norm", load_rms, tied);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        d.heads = load_int_at(ld, "num_query_heads", i, 1);
        d.kv_heads = load_int_at(ld, "num_kv_heads", i, 1);
        family_check(ld, &d);
        const int inner =
            divisible(fmin(family_number(ld, "ffn_multipliers", factors, i, 1), 1024) * d.hidden, divisor);
        family_layer(ld, spec, i);
        AttentionComponent own = family_fused_attention(ld, &d, "attn.qkv_proj", "attn.out_proj", rope, false, false);
        if (qk_norm) own.op.q_norm = load_rms(ld, "attn.q_norm", d.head_dim, d.eps);
        if (qk_norm) own.op.k_norm = load_rms(ld, "attn.k_norm", d.head_dim, d.eps);
        const Component attention = {.kind = COMPONENT_ATTENTION, .attention = own};
        const Component ffn = load_ffn(ld, d.hidden, inner);
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &attention, .ffn = &ffn});
    }
}

const Family openelm_family = {.load = load, .gguf = &openelm_gguf};
