/* Granite 4: Mamba-2 in most layers and attention in the others, then a dense network, or experts with a shared one;
 * embeddings, attention, residuals and logits have factors. References: mlx_lm/models/granitemoehybrid.py; the limits
 * of the time step, which a file without time_step_limit does not have, and the gated norm of each group, where mlx-lm
 * has one over all: transformers/models/granitemoehybrid. */
#include "family/gguf/models.h"
#include "family/granite.h"
#include "family/recurrent.h"

/* MLX calls the shared network of a model without experts mlp. */
static Component load_dense(Loader *ld, const Dims *d, int shared) {
    const Activation silu = {.kind = ACT_SILU};
    return (Component){.kind = COMPONENT_GLU,
        .glu = load_has(ld, "shared_mlp.input_linear.weight")
            ? granite_shared(ld, d->hidden, shared)
            : family_glu(ld, "mlp", d->hidden, d->intermediate_size, silu, false)};
}

Mamba2 granite_mamba2(Loader *ld, const Dims *d) {
    const int heads = load_int(ld, "mamba_n_heads"), expand = load_int_or(ld, "mamba_expand", 2);
    const bool wide = (int64_t)expand * d->hidden > MATRIX_COLS_MAX;
    load_require(ld, !wide, "mamba_expand is %d, at most %d channels can be", expand, MATRIX_COLS_MAX);
    Mamba2 m = {.hidden = d->hidden,
        .heads = heads,
        .head_dim = family_mamba2_head_dim(ld, "mamba_d_head", wide ? heads : expand * d->hidden, heads),
        .state = load_int(ld, "mamba_d_state"),
        .groups = load_int_or(ld, "mamba_n_groups", 1),
        .taps = load_int_or(ld, "mamba_d_conv", 4),
        .bias = load_bool_or(ld, "mamba_proj_bias", false),
        .conv_bias = load_bool_or(ld, "mamba_conv_bias", true),
        .eps = d->eps};
    m.out_bias = m.bias;
    family_mamba2_check(ld, &m);
    m.norm_group = (int64_t)m.heads * m.head_dim / m.groups;
    return m;
}

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-6});
    const bool bias = load_bool_or(ld, "attention_bias", false);
    const float scale = load_positive_or(ld, "attention_multiplier", 1),
                residual = load_positive_or(ld, "residual_multiplier", 1);
    const int experts = load_count_or(ld, "num_local_experts", 0), used = load_count_or(ld, "num_experts_per_tok", 0);
    const int shared = load_int_or(ld, "shared_intermediate_size", d.intermediate_size);
    const Json *types = load_list(ld, "layer_types", spec->layer_count);
    Moe moe = {0};
    if (experts) moe = family_moe_open(ld, &moe_granite, d.hidden, d.intermediate_size, experts, used);
    moe.moe.score = ROUTE_TOP_SOFTMAX;
    moe.shared = shared;
    const bool turns = load_text_is(ld, "position_embedding_type", "rope");
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000});
    load_require(ld, types, "layer_types is missing");
    bool mamba = false;
    for (int i = 0; types && i < spec->layer_count; i++)
        mamba = family_is_recurrent(ld, "layer_types", types, i, "mamba", "attention") || mamba;
    const Mamba2 sizes = mamba ? granite_mamba2(ld, &d) : (Mamba2){0};
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "output_router_logits", "router_aux_loss_coef", "mamba_chunk_size", "mamba_expand", "rope_theta",
        "normalization_function", "init_method", "mlp_bias", "use_mamba_kernels", "mamba_n_heads", "mamba_d_head",
        "mamba_d_state", "mamba_n_groups", "mamba_d_conv", "mamba_proj_bias", "mamba_conv_bias", NULL);
    family_ends(ld, spec, &d);
    spec->embedding_scale = load_positive_or(ld, "embedding_multiplier", 1);
    spec->logit_scale = 1 / load_positive_or(ld, "logits_scaling", 1);
    load_layers(ld, spec);
    for (int i = 0; types && i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        Component mixer;
        if (family_is_recurrent(ld, "layer_types", types, i, "mamba", "attention")) {
            mixer = family_mamba2(ld, "mamba", &sizes);
        } else {
            mixer = (Component){.kind = COMPONENT_ATTENTION,
                .attention = family_attention(ld, &d, "o_proj", turns ? rope : NULL, bias, bias)};
            mixer.attention.op.scale = scale;
        }
        const Component ffn = experts ? granite_mixture(ld, &moe) : load_dense(ld, &d, shared);
        family_block(ld, spec, i, &(Block){.dims = &d, .attention = &mixer, .ffn = &ffn, .residual_scale = residual});
    }
}

const Family granitemoehybrid_family = {.load = load, .gguf = &granitemoehybrid_gguf};
