/* Jamba: Mamba-1 with norms of time step, B and C, attention without positions in some layers; experts in some. Which
 * layers have experts, and that their weights are a softmax over all of them: transformers/models/jamba. mlx_lm/models/
 * jamba.py counts the layers otherwise where the period is not 2, and takes the softmax over the best experts. */
#include "family/gguf/models.h"
#include "family/recurrent.h"

static const NormNames norms = {
    .load = load_rms, .attention_input = "input_layernorm", .ffn_input = "pre_ff_layernorm"};
static const MoeNames names = {
    "feed_forward", "router", "switch_mlp", "gate_proj", "up_proj", "down_proj", .shared = NULL};

static Mamba1 load_sizes(Loader *ld, const Dims *d) {
    const int expand = load_int_or(ld, "mamba_expand", 2);
    const bool fits = (int64_t)expand * d->hidden <= MATRIX_COLS_MAX;
    load_require(ld, fits, "mamba_expand is %d, at most %d channels can be", expand, MATRIX_COLS_MAX);
    const int inner = fits ? expand * d->hidden : d->hidden;
    return (Mamba1){.hidden = d->hidden,
        .inner = inner,
        .state = load_int_or(ld, "mamba_d_state", 16),
        .rank = family_mamba_rank(ld, "mamba_dt_rank", d->hidden),
        .taps = load_int_or(ld, "mamba_d_conv", 4),
        .bias = load_bool_or(ld, "mamba_proj_bias", false),
        .conv_bias = load_bool_or(ld, "mamba_conv_bias", true),
        .eps = d->eps,
        .norms = true,
        .names = {"dt_layernorm", "b_layernorm", "c_layernorm"}};
}

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-6});
    const Mamba1 sizes = load_sizes(ld, &d);
    const Json *types = load_list(ld, "layers_block_type", spec->layer_count);
    const int period = load_int_or(ld, "attn_layer_period", 8), offset = load_count_or(ld, "attn_layer_offset", 4);
    const int every = load_int_or(ld, "expert_layer_period", 2), first = load_count_or(ld, "expert_layer_offset", 1);
    const int experts = load_int_or(ld, "num_experts", 16);
    Moe moe = {0};
    if (experts > 1)
        moe = family_moe_open(
            ld, &names, d.hidden, d.intermediate_size, experts, load_int_or(ld, "num_experts_per_tok", 2));
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "num_logits_to_keep", "output_router_logits", "router_aux_loss_coef", "use_mamba_kernels",
        "sliding_window", "num_experts_per_tok", "use_associative_scan", "use_mambapy", NULL);
    family_ends_named(ld, spec, &d, "model.embed_tokens", "model.final_layernorm");
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const bool recurrent =
            types ? family_is_recurrent(ld, "layers_block_type", types, i, "mamba", "attention") : i % period != offset;
        const Component mixer = recurrent ? family_mamba1(ld, "mamba", &sizes)
                                          : (Component){.kind = COMPONENT_ATTENTION,
                                                .attention = family_attention(ld, &d, "o_proj", NULL, false, false)};
        const Activation silu = {.kind = ACT_SILU};
        const bool mixture = experts > 1 && i % every == first;
        const Component ffn = mixture
            ? (Component){.kind = COMPONENT_MOE, .moe = family_moe(ld, &moe)}
            : (Component){.kind = COMPONENT_GLU,
                  .glu = family_glu(ld, "feed_forward", d.hidden, d.intermediate_size, silu, false)};
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &mixer, .ffn = &ffn});
    }
}

const Family jamba_family = {.load = load, .gguf = &jamba_gguf};
