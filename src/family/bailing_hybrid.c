/* Ling 2.5 and Ring 2.5 (bailing_hybrid): lightning attention, and multi-head latent attention in the last layer of
 * each group; experts as bailing_moe's. Ling 3.0 has the same model_type, and in place of lightning attention Kimi's
 * delta attention, whose decay is bounded; its latent attention has a gate for each head. References:
 * mlx_lm/models/bailing_hybrid.py, bailing_moe_v3.py; transformers/models/bailing_hybrid (3.0). */
#include "family/bailing.h"
#include "family/gguf/models.h"
#include "family/mla.h"
#include "family/recurrent.h"

#include <math.h>

static MlaFamily load_latent(Loader *ld, const Dims *d, const Bailing *b) {
    MlaFamily s = {.d = *d,
        .q_rank = load_count_or(ld, "q_lora_rank", 0),
        .rope_dim = load_int(ld, "qk_rope_head_dim"),
        .bias = b->qkv_bias,
        .latent_eps = d->eps,
        .sizes = {.heads = d->heads,
            .nope_dim = load_int(ld, "qk_nope_head_dim"),
            .width = load_int(ld, "v_head_dim"),
            .latent = load_int(ld, "kv_lora_rank")}};
    load_require(ld, d->heads <= EXPERTS_MAX, "num_attention_heads is %d, at most %d can be", d->heads, EXPERTS_MAX);
    s.rope = load_rope(ld,
        &(RopeOptions){
            .head_dim = s.rope_dim, .theta = 10000, .interleaved = load_bool_or(ld, "rope_interleave", true)});
    s.scale = load_yarn_attention(ld) / sqrtf((float)(s.sizes.nope_dim + s.rope_dim));
    return s;
}

/* Where the config does not say it, experts are chosen as the newer models' are. */
static Bailing load_choice(Loader *ld, const Dims *d) {
    Bailing b = bailing_open(ld, d);
    if (!load_has_field(ld, "score_function")) b.moe.moe.score = ROUTE_SIGMOID;
    if (!load_has_field(ld, "use_qk_norm")) b.norms = true;
    if (!load_has_field(ld, "moe_router_enable_expert_bias")) b.moe.names.bias = "gate.expert_bias";
    return b;
}

/* ---- Ling 3.0 ---- */

/* Limits of layers, which no reference computes: null or 0. */
static void refuse_limits(Loader *ld, const char *field) {
    const Json *limits = load_list(ld, field, -1);
    for (int i = 0; limits && i < (int)limits->size; i++)
        load_require(
            ld, family_number(ld, field, limits, i, 0) == 0, "%s[%d] is a limit, which is not supported", field, i);
}

static DeltaAttention load_delta_fields(Loader *ld, const Dims *d) {
    const DeltaAttention delta = {.hidden = d->hidden,
        .heads = d->heads,
        .head_dim = load_int_or(ld, "linear_head_dim", d->head_dim),
        .taps = load_int_or(ld, "short_conv_kernel_size", 4),
        .eps = d->eps,
        .bound = load_bool_or(ld, "kda_safe_gate", true) ? -load_negative_or(ld, "kda_lower_bound", -5) : 0};
    family_check_recurrence(ld, "delta attention", delta.heads, delta.heads, delta.head_dim, delta.head_dim);
    family_check_taps(ld, delta.taps);
    load_expect_bool(ld, "no_kda_lora", true);
    load_expect_text(ld, "gated_attention_proj_granularity_type", "head_wise");
    refuse_limits(ld, "expert_swiglu_limit_list");
    refuse_limits(ld, "share_expert_swiglu_limit_list");
    load_expect_int(ld, "linear_num_heads", delta.heads);
    load_expect_int(ld, "linear_conv_kernel_dim", delta.taps);
    load_ignore(ld, "num_key_value_heads", "layer_types", "mlp_layer_types", "qk_head_dim", "layer_group_size",
        "kda_lower_bound", "attention_bias", NULL);
    return delta;
}

/* Layers whose file has the tensors of delta attention, whose result publishers call o_proj, transformers dense. */
static Component load_mixer(Loader *ld, const DeltaAttention *delta, const MlaFamily *latent) {
    static const LoadName usual[] = {{"self_attn", "attention"}, {0}};
    static const LoadName dense[] = {{"self_attn", "attention"}, {"attention.o_proj", "attention.dense"}, {0}};
    load_module_names(ld, usual);
    if (load_has(ld, "self_attn.dense.weight")) load_module_names(ld, dense);
    if (load_has(ld, "self_attn.dt_bias")) return family_delta_attention(ld, delta);
    Component mixer = {.kind = COMPONENT_MLA, .mla = mla_load_attention(ld, latent)};
    mixer.mla.gate = load_linear(ld, "self_attn.g_proj", latent->sizes.heads, latent->d.hidden, false);
    return mixer;
}

static void load_ling3(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"n_group", "num_expert_group"}, {"norm_topk_prob", "moe_renormalize"},
        {"num_experts_per_tok", "num_experts_per_token"}, {"max_position_embeddings", "model_max_length"}, {0}};
    load_field_names(ld, fields);
    const Dims d = family_dims(ld, spec);
    Bailing b = load_choice(ld, &d);
    b.moe.moe.norm_topk_prob = load_bool_or(ld, "norm_topk_prob", true); /* even where one expert is chosen */
    const MlaFamily latent = load_latent(ld, &d, &b);
    const DeltaAttention delta = load_delta_fields(ld, &d);
    bailing_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component mixer = load_mixer(ld, &delta, &latent);
        b.dense = load_has(ld, "mlp.gate_proj.weight") ? spec->layer_count : 0;
        bailing_block(ld, spec, i, &d, &b, &mixer);
    }
}

static void load(Loader *ld, Spec *spec) {
    if (load_has_part(ld, ".attention.dt_bias")) {
        load_ling3(ld, spec);
        return;
    }
    static const LoadName names[] = {{"self_attn", "attention"}, {"attention.o_proj", "attention.dense"}, {0}};
    const Dims d = family_dims(ld, spec);
    const int group = load_int(ld, "layer_group_size"), groups = load_int_or(ld, "group_norm_size", 1);
    const Rope *rope = load_rope(
        ld, &(RopeOptions){.head_dim = d.head_dim, .dims = load_rotary_dims(ld, d.head_dim, 0.5), .theta = 10000});
    Bailing b = load_choice(ld, &d);
    const MlaFamily latent = load_latent(ld, &d, &b);
    family_check_recurrence(ld, "lightning attention", d.heads, d.heads, d.head_dim, d.head_dim);
    load_require(ld, (int64_t)d.heads * d.head_dim % groups == 0,
        "group_norm_size is %d, which does not divide the heads' results", groups);
    load_ignore(ld, "linear_attn_norm_group_size", "linear_silu", "linear_mode", "use_linear_silu", "topk_method",
        "rotary_dim", "qk_head_dim", NULL);
    bailing_ends(ld, spec, &d);
    load_module_names(ld, names);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const bool whole = (i + 1) % group == 0 || i >= spec->layer_count / group * group;
        const double place = (double)i / (spec->layer_count > 2 ? spec->layer_count - 1 : 1);
        family_layer(ld, spec, i);
        const Component mixer = whole ? (Component){.kind = COMPONENT_MLA, .mla = mla_load_attention(ld, &latent)}
                                      : bailing_lightning(ld, &d, &b, d.head_dim, rope, groups, 1 - place + 1e-5);
        bailing_block(ld, spec, i, &d, &b, &mixer);
    }
}

const Family bailing_hybrid_family = {.load = load, .gguf = &bailing_hybrid_gguf};
