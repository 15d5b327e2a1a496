/* Ling 2.5 and Ring 2.5 (bailing_hybrid): lightning attention, and multi-head latent attention in the last layer of
 * each group; experts as bailing_moe's. Reference: mlx_lm/models/bailing_hybrid.py. Ling 3.0, which has the same
 * model_type and Kimi's delta attention with a bounded decay, is refused. */
#include "family/bailing.h"
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

static void load(Loader *ld, Spec *spec) {
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
    load_require(ld, !load_has(ld, "model.layers.0.attention.A_log"),
        "delta attention with a bounded decay (Ling 3.0) is not supported");
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

const Family bailing_hybrid_family = {.load = load};
