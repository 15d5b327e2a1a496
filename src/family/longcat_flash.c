/* LongCat-Flash: a layer is attention, dense network, attention, dense network; experts read what the first dense
 * network reads, and their sum is added behind the last one. Some experts are the identity. Latents and queries of
 * their low-rank spaces have factors. References: mlx_lm/models/longcat_flash.py; transformers/models/longcat_flash. */
#include "family/mla.h"

#include <math.h>
#include <stdio.h>

enum { HALVES = 2 };

static const MoeNames experts = {"mlp", "router.classifier", "switch_mlp", "gate_proj", "up_proj", "down_proj",
    .bias = "router.e_score_correction_bias"};

static const LoadName fields[] = {{"intermediate_size", "ffn_hidden_size"}, {"num_hidden_layers", "num_layers"},
    {"moe_intermediate_size", "expert_ffn_hidden_size"}, {"num_experts_per_tok", "moe_topk"}, {0}};

/* Modules of a half of a layer. */
static const LoadName halves[HALVES][5] = {
    {{"self_attn", "self_attn.0"}, {"mlps", "mlps.0"}, {"input_layernorm", "input_layernorm.0"},
        {"post_attention_layernorm", "post_attention_layernorm.0"}, {0}},
    {{"self_attn", "self_attn.1"}, {"mlps", "mlps.1"}, {"input_layernorm", "input_layernorm.1"},
        {"post_attention_layernorm", "post_attention_layernorm.1"}, {0}}};

static void load_moe_fields(Loader *ld, Moe *moe) {
    moe->names = experts;
    moe->moe.identities = load_count_or(ld, "zero_expert_num", 0);
    moe->moe.scale = load_positive_or(ld, "routed_scaling_factor", 6);
    moe->moe.norm_topk_prob = load_bool_or(ld, "norm_topk_prob", false);
    moe->moe.epsilon = 1e-20f;
    moe->router_bias = load_bool_or(ld, "router_bias", false);
    load_expect_text(ld, "zero_expert_type", "identity");
    load_require(ld, moe->moe.identities <= EXPERTS_MAX - moe->moe.experts,
        "n_routed_experts and zero_expert_num are %d and %d, together at most %d can be", moe->moe.experts,
        moe->moe.identities, EXPERTS_MAX);
}

/* transformers writes matrices of identities, too, which nothing reads. */
static void leave_identities(Loader *ld, const MoeComponent *moe) {
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    for (int e = moe->experts; e < moe->experts + moe->identities; e++)
        for (size_t i = 0; i < COUNT_OF(parts); i++) {
            char name[64];
            snprintf(name, sizeof name, "mlp.experts.%d.%s", e, parts[i]);
            load_leave(ld, name);
        }
}

static void load(Loader *ld, Spec *spec) {
    load_field_names(ld, fields);
    MlaFamily s = mla_load_fields(ld, spec, 128);
    const float hidden = (float)s.d.hidden;
    load_require(ld, s.mixed && s.q_rank, "n_routed_experts and q_lora_rank must be there");
    load_moe_fields(ld, &s.moe);
    load_expect_text(ld, "attention_method", "MLA");
    if (s.q_rank && load_bool_or(ld, "mla_scale_q_lora", true)) s.scale *= sqrtf(hidden / (float)s.q_rank);
    if (load_bool_or(ld, "mla_scale_kv_lora", true)) s.latent_factor = sqrtf(hidden / (float)s.sizes.latent);
    load_skip(ld, "model.mtp.");
    for (int i = 0; i < spec->layer_count; i++) {
        Layer *layer = family_layer(ld, spec, i);
        for (int half = 0; half < HALVES; half++) {
            load_module_names(ld, halves[half]);
            const Component attention = {.kind = COMPONENT_MLA, .mla = mla_load_attention(ld, &s)};
            const Component ffn = {.kind = COMPONENT_GLU,
                .glu =
                    family_glu(ld, "mlps", s.d.hidden, s.d.intermediate_size, (Activation){.kind = ACT_SILU}, false)};
            family_block_here(ld, spec, layer, &(Block){.dims = &s.d, .attention = &attention, .ffn = &ffn});
            load_module_names(ld, NULL);
        }
        const Component shortcut = {.kind = COMPONENT_MOE, .moe = family_moe(ld, &s.moe)};
        Component *own = family_add(spec, layer, &shortcut);
        own->input_norm = layer->components[1].input_norm;
        own->reads = 1;
        leave_identities(ld, &s.moe.moe);
    }
}

const Family longcat_flash_family = {.load = load};
