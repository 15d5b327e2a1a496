/* Step 3.5 Flash: layers with a window and without, each kind with its own heads and rotary embedding; norms on q and
 * k, a gate for each head, experts beside a shared one, with limits on what is multiplied in the last layers.
 * Publishers' files have norms minus one. References: mlx_lm/models/step3p5.py; transformers/models/step3p7. */
#include "family/family.h"
#include "family/gguf/models.h"

#include <math.h>

typedef struct Step3p5 {
    Dims d, sliding;                                               /* sliding: of layers with a window */
    const Json *types, *thetas, *factors, *limits, *shared_limits; /* for each layer; NULL: none */
    const Json *scaled; /* kinds of layers to which rope_scaling applies; NULL: all */
    const Json *list;   /* layers with experts, as a list, or as a text */
    Slice text;
    double theta;
    int window, shared_size;
    bool gated, raw;
    Moe moe;
    LoadNorm *norm;
} Step3p5;

static const MoeNames names_mlx = {
    "mlp", "gate.gate", "switch_mlp", "gate_proj", "up_proj", "down_proj", NULL, .bias = "gate.router_bias"};
static const MoeNames names_raw = {"moe", "gate", "", "gate_proj", "up_proj", "down_proj", NULL, .bias = "router_bias"};

static Dims load_sliding(Loader *ld, Dims d) {
    const LoadPlace here = load_place(ld);
    if (!load_has_field(ld, "attention_other_setting")) return d;
    load_enter(ld, "attention_other_setting", "");
    d.heads = load_int_or(ld, "num_attention_heads", d.heads);
    d.kv_heads = load_int_or(ld, "num_attention_groups", d.kv_heads);
    load_expect_int(ld, "head_dim", d.head_dim);
    load_expect_int(ld, "true_head_dim", d.head_dim);
    load_ignore(ld, "attention_type", NULL);
    load_return(ld, &here);
    family_check(ld, &d);
    return d;
}

static Step3p5 load_fields(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"num_key_value_heads", "num_attention_groups"}, {0}};
    load_field_names(ld, fields);
    Step3p5 s = {.d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5}),
        .types = load_list(ld, "layer_types", -1),
        .factors = load_list(ld, "partial_rotary_factors", -1),
        .limits = load_list(ld, "swiglu_limits", -1),
        .shared_limits = load_list(ld, "swiglu_limits_shared", -1),
        .scaled = load_list(ld, "yarn_only_types", -1),
        .text = load_string(ld, "moe_layers_enum"),
        .window = load_int_or(ld, "sliding_window", 512),
        .shared_size = load_int_or(ld, "share_expert_dim", 1280),
        .gated = load_bool_or(ld, "use_head_wise_attn_gate", true)};
    if (!s.text.size) s.list = load_list(ld, "moe_layers_enum", -1);
    s.sliding = load_sliding(ld, s.d);
    if (load_is_list(ld, "rope_theta"))
        s.thetas = load_list(ld, "rope_theta", -1);
    else
        s.theta = load_positive_or(ld, "rope_theta", 10000);
    s.raw = load_has_part(ld, ".moe.gate.weight");
    s.norm = s.raw ? load_rms_plus_one : load_rms;
    s.moe =
        family_moe_open(ld, s.raw ? &names_raw : &names_mlx, s.d.hidden, load_int_or(ld, "moe_intermediate_size", 1280),
            load_int_or(ld, "moe_num_experts", 288), load_int_or(ld, "moe_top_k", 8));
    MoeComponent *moe = &s.moe.moe;
    moe->score = ROUTE_SIGMOID;
    moe->epsilon = 1e-20f;
    moe->norm_topk_prob = load_bool_or(ld, "norm_expert_weight", true);
    moe->scale = load_positive_or(ld, "moe_router_scaling_factor", 3);
    load_expect_text(ld, "moe_router_activation", "sigmoid");
    load_ignore(ld, "num_nextn_predict_layers", "use_moe_router_bias", "need_fp32_gate", "use_qk_norm", "max_seq_len",
        "use_moe", "moe_every_n_layer", "use_rope_layers", "att_impl_type", "sink", "use_cache", NULL);
    load_skip(ld, "model.layers.%d.", spec->layer_count);
    load_skip(ld, ".mtp");
    return s;
}

static bool is_sliding(Loader *ld, const Step3p5 *s, int i) {
    if (!s->types) return i % 2 == 0;
    return family_kind(ld, "layer_types", s->types, i, "sliding_attention", "full_attention");
}

static bool has_experts(const Step3p5 *s, int layer) {
    if (s->list) return family_listed(s->list, layer);
    return s->text.size ? family_text_has(s->text, layer) : layer > 0;
}

static const Rope *rope_of(Loader *ld, const Step3p5 *s, int i, bool sliding) {
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
    own.head_gate = s->gated;
    if (s->gated) own.gate = load_linear(ld, "self_attn.g_proj", d->heads, d->hidden, false);
    return (Component){.kind = COMPONENT_ATTENTION, .attention = own};
}

static void load_layer(Loader *ld, Spec *spec, Step3p5 *s, int i, const Rope *rope, bool sliding) {
    const NormNames norms = {s->norm, "input_layernorm", NULL, "post_attention_layernorm", NULL};
    const bool experts = has_experts(s, i);
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
    load_text_part(ld);
    Step3p5 s = load_fields(ld, spec);
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
