/* Step 3.5 Flash: layers with a window and without, each kind with its own heads and rotary embedding; norms on q and
 * k, a gate for each head, experts beside a shared one, with limits on what is multiplied in the last layers.
 * Publishers' files have norms minus one. References: mlx_lm/models/step3p5.py; transformers/models/step3p7. */
#include "family/gguf/models.h"
#include "family/step3p5.h"

#include <math.h>

static bool is_sliding(Loader *ld, const Step3p5 *s, int i) {
    if (!s->types) return i % 2 == 0;
    return family_kind(ld, "layer_types", s->types, i, "sliding_attention", "full_attention");
}

static bool has_experts(Loader *ld, const Step3p5 *s, int layer) {
    if (s->mlp_types) return family_kind(ld, "mlp_layer_types", s->mlp_types, layer, "sparse", "dense");
    if (s->list) return family_listed(s->list, layer);
    return s->text.size ? family_text_has(s->text, layer) : layer > 0;
}

static const Rope *rope_of(Loader *ld, const Step3p5 *s, int i, bool sliding) {
    if (s->full) return sliding ? s->windowed : s->full;
    const int dims = (int)(s->d.head_dim * fmin(family_number(ld, "partial_rotary_factors", s->factors, i, 1), 1));
    return load_rope(ld,
        &(RopeOptions){.head_dim = s->d.head_dim,
            .dims = dims > 0 ? dims : 1,
            .own_theta = family_number(ld, "rope_theta", s->thetas, i, s->theta),
            .unscaled = s->scaled && s->scaled->size &&
                !family_has_text(s->scaled, s->types && sliding ? "sliding_attention" : "full_attention")});
}

static Component load_attention(Loader *ld, const Step3p5 *s, int i, bool sliding, const Rope *rope) {
    const Dims *d = sliding ? &s->sliding : &s->d;
    AttentionComponent own = family_attention(ld, d, "o_proj", rope, false, false);
    own.op.window = sliding ? s->window : 0;
    own.op.q_norm = s->norm(ld, "self_attn.q_norm", d->head_dim, d->eps);
    own.op.k_norm = s->norm(ld, "self_attn.k_norm", d->head_dim, d->eps);
    if (s->scale > 0) own.op.scale = s->scale;
    own.head_gate = s->gated;
    if (s->gated) own.gate = load_linear(ld, "self_attn.g_proj", d->heads, d->hidden, false);
    return (Component){.kind = COMPONENT_ATTENTION, .attention = own};
}

static void load_layer(Loader *ld, Spec *spec, Step3p5 *s, int i, const Rope *rope, bool sliding) {
    const NormNames norms = {s->norm, "input_layernorm", NULL, "post_attention_layernorm", NULL};
    const bool experts = has_experts(ld, s, i);
    const double shared_limit = family_number(ld, "swiglu_limits_shared", s->shared_limits, i, 0);
    family_layer(ld, spec, i);
    const Component attention = load_attention(ld, s, i, sliding, rope);
    Block block = {
        .dims = &s->d, .norms = &norms, .attention = &attention, .activation = family_limited_silu(shared_limit)};
    if (!experts) {
        family_block(ld, spec, i, &block);
        return;
    }
    s->moe.moe.activation = family_limited_silu(family_number(ld, "swiglu_limits", s->limits, i, 0));
    block.moe = &s->moe;
    Layer *layer = family_block(ld, spec, i, &block);
    Component *shared = layer_add(spec, layer, COMPONENT_GLU);
    shared->parallel = true;
    shared->glu = family_glu(
        ld, s->raw ? "share_expert" : "mlp.share_expert", s->d.hidden, s->shared_size, block.activation, false);
}

static void load(Loader *ld, Spec *spec) {
    load_ignore(ld, "projector_bias", NULL);
    load_text_part(ld);
    Step3p5 s = step3p5_fields(ld, spec);
    const Rope *ropes[2] = {0};
    double thetas[2] = {0}, factors[2] = {0};
    const bool tied = load_bool_or(ld, "tie_word_embeddings", false);
    family_ends_as(ld, spec, &s.d, "model.embed_tokens", "model.norm", s.norm, tied);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const bool sliding = is_sliding(ld, &s, i);
        const double theta = family_number(ld, "rope_theta", s.thetas, i, s.theta);
        const double factor = family_number(ld, "partial_rotary_factors", s.factors, i, 1);
        if (!ropes[sliding] || theta != thetas[sliding] || factor != factors[sliding])
            ropes[sliding] = rope_of(ld, &s, i, sliding);
        thetas[sliding] = theta;
        factors[sliding] = factor;
        load_layer(ld, spec, &s, i, ropes[sliding], sliding);
    }
}

const Family step3p5_family = {.load = load, .gguf = &step3p5_gguf};
