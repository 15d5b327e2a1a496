/* The fields of Step 3.5 and 3.7: lists with a value for each layer, or, as transformers saves them, an object for each
 * kind of layer. */
#include "family/step3p5.h"

#include <math.h>
#include <stdio.h>

/* As transformers saves them. */
static const LoadName saved_fields[] = {
    {"moe_num_experts", "n_routed_experts"}, {"moe_top_k", "num_experts_per_tok"}, {0}};

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

/* rope_parameters has an object for each kind of layer. */
static const Rope *load_saved_rope(Loader *ld, const Dims *d, const char *type) {
    const LoadPlace here = load_place(ld);
    load_enter(ld, "rope_parameters", "");
    int dims = d->head_dim;
    if (load_has_field(ld, type)) {
        load_enter(ld, type, "");
        dims = load_rotary_dims(ld, d->head_dim, 1);
    }
    load_return(ld, &here);
    return load_rope(ld, &(RopeOptions){.head_dim = d->head_dim, .dims = dims, .theta = 10000, .layer_type = type});
}

/* What transformers saves in other fields. */
static void load_saved(Loader *ld, const Spec *spec, Step3p5 *s) {
    s->mlp_types = load_list(ld, "mlp_layer_types", spec->layer_count);
    s->sliding.heads = load_int_or(ld, "num_sliding_attention_heads", s->d.heads);
    family_check(ld, &s->sliding);
    s->full = load_saved_rope(ld, &s->d, "full_attention");
    s->windowed = load_saved_rope(ld, &s->d, "sliding_attention");
    s->scale = 1 / sqrtf(load_positive_or(ld, "query_pre_attn_scalar", s->d.head_dim));
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "attention_bias", false);
    load_expect_bool(ld, "mlp_bias", false);
    load_ignore(ld, "per_layer_config", "mtp_layer_types", "mtp_mlp_layer_types", "output_router_logits", NULL);
}

Step3p5 step3p5_fields(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"num_key_value_heads", "num_attention_groups"}, {0}};
    const bool saved = load_has_field(ld, "rope_parameters") && load_has_field(ld, "mlp_layer_types");
    load_field_names(ld, saved ? saved_fields : fields);
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
    moe->scale = load_positive_or(ld, "moe_router_scaling_factor", saved ? 1 : 3);
    if (saved) load_saved(ld, spec, &s);
    load_expect_text(ld, "moe_router_activation", "sigmoid");
    load_ignore(ld, "num_nextn_predict_layers", "use_moe_router_bias", "need_fp32_gate", "use_qk_norm", "max_seq_len",
        "use_moe", "moe_every_n_layer", "use_rope_layers", "att_impl_type", "sink", "use_cache", NULL);
    load_skip(ld, "model.layers.%d.", spec->layer_count);
    load_skip(ld, ".mtp");
    return s;
}
