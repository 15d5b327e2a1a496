/* Muse Glimmer (Meta), text: sandwich norms whose weights are stored minus one, and another eps of those behind; norms
 * without weights on the embedding, q and k; gates of attention; layers with a window rotate, the others do not.
 * References: transformers/models/muse_glimmer; mlx_lm/models/muse_glimmer.py. */
#include "family/family.h"
#include "family/gguf/models.h"

/* Files made from GGUF have weights of these norms, and the scale of queries in them. */
static const Norm *load_head_norm(Loader *ld, const char *name, const char *weight, const Dims *d) {
    return load_rms(ld, load_has(ld, weight) ? name : NULL, d->head_dim, d->eps);
}

/* The base of layers that rotate: that of the list, which other layers have 0 in; NULL: rope_theta. */
static const Rope *load_own_rope(Loader *ld, const Dims *d, const Json *thetas, int layers) {
    double theta = 0;
    for (int i = 0; thetas && i < layers; i++) {
        const double own = family_number(ld, "layer_rope_theta", thetas, i, 0);
        load_require(ld, own == 0 || theta == 0 || own == theta, "layer_rope_theta has several bases");
        theta = own > 0 ? own : theta;
    }
    RopeOptions options = {.head_dim = d->head_dim, .theta = 500000};
    const Rope *rope = load_rope(ld, &options);
    options.own_theta = theta;
    return theta > 0 ? load_rope(ld, &options) : rope;
}

static void load(Loader *ld, Spec *spec) {
    static const NormNames norms = {
        load_rms_plus_one, .attention_input = "input_layernorm", .ffn_input = "pre_feedforward_layernorm"};
    load_text_part(ld);
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5});
    const float behind = load_positive_or(ld, "post_norm_eps", 1e-8),
                scale = load_positive_or(ld, "qk_scale_factor", 3.87);
    const Json *types = load_list(ld, "layer_types", spec->layer_count),
               *thetas = load_list(ld, "layer_rope_theta", spec->layer_count);
    const int width = load_int_or(ld, "sliding_window", 2048);
    const Rope *rope = load_own_rope(ld, &d, thetas, spec->layer_count);
    spec->logit_scale = load_positive_or(ld, "output_multiplier", 0.19611613513818404);
    spec->logit_softcap = load_positive_or(ld, "final_logit_softcapping", 20);
    load_expect_text(ld, "hidden_activation", "silu");
    load_expect_bool(ld, "attention_bias", false);
    family_ends(ld, spec, &d);
    spec->embedding_norm = load_rms(ld, NULL, d.hidden, d.eps);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const bool plain = (spec->layer_count - 1 - i) % 4 == 0; /* where the config says nothing of it */
        const bool slides =
            types ? family_kind(ld, "layer_types", types, i, "sliding_attention", "full_attention") : !plain;
        const bool rotates = thetas ? family_number(ld, "layer_rope_theta", thetas, i, 0) > 0 : !plain;
        family_layer(ld, spec, i);
        AttentionComponent own = family_attention(ld, &d, "o_proj", rotates ? rope : NULL, false, false);
        own.op.window = slides ? width : 0;
        own.op.scale *= scale;
        own.op.q_norm = load_head_norm(ld, "self_attn.q_norm", "self_attn.q_norm.weight", &d);
        own.op.k_norm = load_head_norm(ld, "self_attn.k_norm", "self_attn.k_norm.weight", &d);
        own.gate = load_linear(ld, "self_attn.gate_proj", (int64_t)d.heads * d.head_dim, d.hidden, false);
        const Component attention = {.kind = COMPONENT_ATTENTION, .attention = own};
        Layer *layer = family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &attention});
        layer->components[0].output_norm = load_rms_plus_one(ld, "post_attention_layernorm", d.hidden, behind);
        layer->components[1].output_norm = load_rms_plus_one(ld, "post_feedforward_layernorm", d.hidden, behind);
    }
}

const Family muse_glimmer_family = {.load = load, .gguf = &muse_glimmer_gguf};
