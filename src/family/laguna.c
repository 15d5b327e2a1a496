/* Laguna: layers with a window and without, each with its own number of heads, softplus gates of heads, a rotary
 * embedding for each kind of layer; experts chosen by sigmoids. References: transformers/models/laguna;
 * mlx_lm/models/laguna.py for its names and the second score. */
#include "family/family.h"
#include "family/gguf/models.h"

typedef struct Laguna {
    Dims d;
    Windows windows;
    const Rope *full, *sliding;
    const Json *sparse; /* mlp_layer_types; NULL: all but the first layer are */
    bool bias, out_bias, gated, per_element;
    Moe moe;
} Laguna;

/* rope_parameters has an object for each kind of layer. */
static const Rope *load_rope_of(Loader *ld, const Dims *d, const char *type, double theta, double factor) {
    const LoadPlace here = load_place(ld);
    const bool common = load_has_field(ld, "partial_rotary_factor"); /* for kinds that have none of their own */
    int dims = load_rotary_dims(ld, d->head_dim, factor);
    if (load_has_field(ld, "rope_parameters")) {
        load_enter(ld, "rope_parameters", "");
        if (load_has_field(ld, type)) {
            load_enter(ld, type, "");
            if (!common || load_has_field(ld, "partial_rotary_factor")) dims = load_rotary_dims(ld, d->head_dim, 1);
        }
        load_return(ld, &here);
    }
    return load_rope(ld, &(RopeOptions){.head_dim = d->head_dim, .dims = dims, .theta = theta, .layer_type = type});
}

static void load_moe_fields(Loader *ld, Laguna *s) {
    s->moe = family_moe_open(ld, &moe_deepseek, s->d.hidden, load_int_or(ld, "moe_intermediate_size", 512),
        load_int_or(ld, "num_experts", 256), load_int_or(ld, "num_experts_per_tok", 8));
    MoeComponent *moe = &s->moe.moe;
    const bool root = load_text_is(ld, "moe_router_score_func", "sqrtsoftplus");
    if (!root) load_expect_text(ld, "moe_router_score_func", "sigmoid");
    moe->score = root ? ROUTE_SQRT_SOFTPLUS : ROUTE_SIGMOID;
    moe->norm_topk_prob = true;
    moe->scale = load_positive_or(ld, "moe_routed_scaling_factor", 1);
    moe->router_softcap = load_number_or(ld, "moe_router_logit_softcapping", 0);
    s->moe.shared = load_int_or(ld, "shared_expert_intermediate_size", 512);
    load_expect_bool(ld, "moe_apply_router_weight_on_input", false);
    load_ignore(ld, "output_router_logits", "router_aux_loss_coef", NULL);
}

static Laguna load_fields(Loader *ld, Spec *spec) {
    Laguna s = {.d = family_sizes(ld, spec, &(Sizes){.eps = 1e-6}),
        .windows = {.types = load_list(ld, "layer_types", spec->layer_count),
            .width = load_int_or(ld, "sliding_window", 512)},
        .sparse = load_list(ld, "mlp_layer_types", spec->layer_count),
        .out_bias = load_bool_or(ld, "attention_bias", false),
        .per_element = load_text_is(ld, "gating", "per-element")};
    s.bias = load_bool_or(ld, "qkv_bias", s.out_bias);
    s.gated = s.per_element || load_text_is(ld, "gating", "per-head") || load_bool_or(ld, "gating", true);
    s.full = load_rope_of(ld, &s.d, "full_attention", 500000, 0.5);
    s.sliding = load_rope_of(ld, &s.d, "sliding_attention", 10000, 1);
    load_expect_text(ld, "hidden_act", "silu");
    load_moe_fields(ld, &s);
    family_ends(ld, spec, &s.d);
    load_layers(ld, spec);
    return s;
}

static void load(Loader *ld, Spec *spec) {
    Laguna s = load_fields(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const int window = s.windows.types ? family_window(ld, &s.windows, i) : 0;
        const bool experts = s.sparse ? family_kind(ld, "mlp_layer_types", s.sparse, i, "sparse", "dense") : i > 0;
        Dims d = s.d;
        d.heads = load_int_at(ld, "num_attention_heads_per_layer", i, d.heads);
        family_check(ld, &d);
        family_layer(ld, spec, i);
        AttentionComponent own = family_attention(ld, &d, "o_proj", window ? s.sliding : s.full, s.bias, s.out_bias);
        own.op.window = window;
        own.op.q_norm = load_rms(ld, "self_attn.q_norm", d.head_dim, d.eps);
        own.op.k_norm = load_rms(ld, "self_attn.k_norm", d.head_dim, d.eps);
        own.head_gate = own.gate_softplus = s.gated;
        load_require(ld, s.gated || !load_has(ld, "self_attn.g_proj.weight"),
            "gating is false, but the file has gates of attention");
        if (s.gated)
            own.gate = load_linear(
                ld, "self_attn.g_proj", s.per_element ? (int64_t)d.heads * d.head_dim : d.heads, d.hidden, false);
        const Component attention = {.kind = COMPONENT_ATTENTION, .attention = own};
        s.moe.names.router = load_has(ld, "mlp.gate.proj.weight") ? "gate.proj" : "gate";
        s.moe.names.shared = load_has(ld, "mlp.shared_expert.gate_proj.weight") ? "shared_expert" : "shared_experts";
        s.moe.names.bias = load_has(ld, "mlp.experts.e_score_correction_bias") ? "experts.e_score_correction_bias"
                                                                               : "gate.e_score_correction_bias";
        family_block(ld, spec, i, &(Block){.dims = &d, .attention = &attention, .moe = experts ? &s.moe : NULL});
    }
}

const Family laguna_family = {.load = load, .gguf = &laguna_gguf};
