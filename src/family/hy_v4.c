/* Hunyuan 4: latent attention with gates, sinks and an indexer, as in GLM-5, between independent hyper-connections; the
 * experts have a limit on what is multiplied, the shared one has none. Names are the publisher's, or those as
 * transformers writes them. Rotary pairs are neighbours, and norms of latents have rms_norm_eps: so computes vLLM,
 * and llama.cpp's converter says the same of the pairs; transformers 5.23 rotates halves, with an epsilon of 1e-6.
 * References: transformers/models/hy_v4 with both mended (tools/oracle); vllm/models/hy_v4. */
#include "family/mla.h"

typedef struct HyV4 {
    MlaFamily mla;
    int shared;
    bool saved; /* by transformers, which moves part of a name */
} HyV4;

static HyV4 load_fields(Loader *ld, Spec *spec) {
    HyV4 s = {.mla = mla_load_fields(ld, spec, 256), .saved = load_has_part(ld, ".hc_pre.hc_attn_layer.")};
    MoeComponent *moe = &s.mla.moe.moe;
    if (!load_has_field(ld, "first_k_dense_replace") && !load_has_field(ld, "mlp_layer_types")) s.mla.dense = 1;
    s.mla.index_rope_last = true;
    s.mla.latent_eps = s.mla.index_eps = s.mla.d.eps;
    mla_expect_indexed(ld, spec);
    mla_load_index(ld, spec, &s.mla, 16, true);
    s.mla.moe.names = moe_deepseek;
    family_moe_sigmoid(ld, &s.mla.moe);
    moe->norm_topk_prob = load_bool_or(ld, "norm_topk_prob", true); /* even where one expert is chosen */
    moe->scale = load_positive_or(ld, "routed_scaling_factor", 2.827);
    const float limit = load_number_or(ld, "swiglu_limit", 10);
    if (limit > 0) moe->activation = (Activation){ACT_SILU_LIMITED, .a = limit, .b = limit};
    s.shared = s.mla.moe.shared;
    s.mla.moe.shared = 0; /* has no limit */
    spec->hyper.streams = load_int_or(ld, "hc_mult", 4);
    spec->hyper.magnitude = load_positive_or(ld, "hc_magnitude", 2);
    spec->hyper.eps = load_positive_or(ld, "hc_eps", 1e-6);
    load_require(
        ld, spec->hyper.streams <= STREAMS_MAX, "hc_mult is %d, at most %d can be", spec->hyper.streams, STREAMS_MAX);
    load_expect_bool(ld, "enable_ihc", true);
    load_expect_bool(ld, "learnable_sink", true);
    load_expect_bool(ld, "gated_mla", true);
    load_expect_text(ld, "gating_type", "elementwise");
    load_ignore(ld, "learnable_sink_init", "enable_lm_head_fp32", NULL);
    load_skip(ld, "model.mtp_layers.");
    return s;
}

static Component load_attention(Loader *ld, Spec *spec, Layer *layer, const HyV4 *s, int i) {
    const HeadSizes *n = &s->mla.sizes;
    Component attention = mla_load_indexed(ld, spec, layer, &s->mla, i);
    attention.mla.op.sinks = load_vector(ld, "self_attn.learnable_sink_param", n->heads, 0);
    attention.mla.gate = load_linear(ld, "self_attn.linear_gate", (int64_t)n->heads * n->width, s->mla.d.hidden, false);
    return attention;
}

static void load_layer(Loader *ld, Spec *spec, const HyV4 *s, int i) {
    const Dims *d = &s->mla.d;
    const Activation silu = {.kind = ACT_SILU};
    const bool experts = i >= s->mla.dense;
    Layer *layer = family_layer(ld, spec, i);
    const HyperMix around =
        family_hyper(ld, spec, d->eps, s->saved ? "hc_pre.hc_attn_layer.hc_%s" : "hc_attn_layer.hc_pre.hc_%s");
    layer_add(spec, layer, COMPONENT_HYPER_COLLAPSE)->hyper = around;
    const Component attention = load_attention(ld, spec, layer, s, i);
    family_between(spec, layer, &around, &attention, load_rms(ld, "input_layernorm", d->hidden, d->eps), NULL);

    const HyperMix behind =
        family_hyper(ld, spec, d->eps, s->saved ? "hc_pre.hc_mlp_layer.hc_%s" : "hc_mlp_layer.hc_pre.hc_%s");
    const Norm *norm = load_rms(ld, "post_attention_layernorm", d->hidden, d->eps);
    const int width = experts ? s->shared : d->intermediate_size;
    const Component glu = {.kind = COMPONENT_GLU,
        .glu = family_glu(ld, experts ? "mlp.shared_experts" : "mlp", d->hidden, width, silu, false)};
    layer_add(spec, layer, COMPONENT_HYPER_COLLAPSE)->hyper = behind;
    if (experts) {
        const Component moe = {.kind = COMPONENT_MOE, .moe = family_moe(ld, &s->mla.moe)};
        family_between(spec, layer, &behind, &moe, norm, &glu);
    } else {
        family_between(spec, layer, &behind, &glu, norm, NULL);
    }
}

static void load(Loader *ld, Spec *spec) {
    static const LoadName saved[] = {{"gate_proj", "linear_gate"}, {0}};
    const HyV4 s = load_fields(ld, spec);
    if (load_has_part(ld, ".mlp.linear_gate.") || load_has_part(ld, ".shared_experts.linear_gate."))
        load_module_names(ld, saved);
    load_scope(ld, "%s", "model.");
    spec->hyper.head =
        family_hyper_head(ld, spec, s.mla.d.eps, s.saved ? "hc_pre.hc_head.hc_head_%s" : "hc_head.hc_head_%s");
    for (int i = 0; i < spec->layer_count; i++) load_layer(ld, spec, &s, i);
}

const Family hy_v4_family = {.load = load};
