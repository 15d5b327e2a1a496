/* Families that are a DeepSeek-V2 or V3 with few changes. */
#include "family/gguf/models.h"
#include "family/mla.h"

#include <math.h>
#include <stdio.h>

/* GLM-4.7-Flash: a DeepSeek-V3 all of whose norms have rms_norm_eps, those of latents, too: so have Megatron's models
 * with latent attention, which is what trains them, and mlx-lm, vLLM and llama.cpp compute. transformers leaves the
 * default of its class there, 1e-6, which DeepSeek's own rms_norm_eps equals and this model's 1e-5 does not: logits of
 * random models differ from it by up to 1.1e-4. References: mlx_lm/models/glm4_moe_lite.py;
 * transformers/models/glm4_moe_lite. */
static void load_glm4_moe_lite(Loader *ld, Spec *spec) {
    MlaFamily s = mla_load_fields(ld, spec, 128);
    s.latent_eps = s.d.eps;
    s.moe.names = moe_deepseek;
    family_moe_sigmoid(ld, &s.moe);
    s.moe.moe.scale = load_positive_or(ld, "routed_scaling_factor", 1.8);
    if (!load_has_field(ld, "first_k_dense_replace") && !load_has_field(ld, "mlp_layer_types")) s.dense = 1;
    load_expect_text(ld, "scoring_func", "sigmoid");
    load_ignore(ld, "partial_rotary_factor", NULL);
    mla_load_blocks(ld, spec, &s);
}

/* Youtu-LLM: dense throughout. Reference: mlx_lm/models/youtu_llm.py. */
static void load_youtu_llm(Loader *ld, Spec *spec) {
    MlaFamily s = mla_load_fields(ld, spec, 128);
    s.latent_eps = s.d.eps;
    load_expect_bool(ld, "mlp_bias", false);
    load_expect_bool(ld, "rope_traditional", true);
    mla_load_blocks(ld, spec, &s);
}

/* Mistral 4 (Mistral Small 4): DeepSeek's layers, the softmax over all experts without a bias, and queries that grow
 * with the position. References: mlx_lm/models/mistral4.py; transformers/models/mistral4. */
void mistral4_load(Loader *ld, Spec *spec) {
    MlaFamily s = mla_load_fields(ld, spec, 128);
    const QueryScaling scaling = load_query_scaling(ld);
    MoeComponent *moe = &s.moe.moe;
    family_moe_sigmoid(ld, &s.moe);
    moe->score = ROUTE_SOFTMAX;
    moe->norm_topk_prob = load_bool_or(ld, "norm_topk_prob", true); /* even where one expert is chosen */
    mla_load_blocks(ld, spec, &s);
    for (int i = 0; i < spec->layer_count; i++) spec->layers[i].components[0].mla.query_scaling = scaling;
}

/* MiniCPM 3: dense throughout, with MiniCPM's factors. References: transformers/models/minicpm3;
 * mlx_lm/models/minicpm3.py, whose norms of latents have another eps. */
static void load_minicpm3(Loader *ld, Spec *spec) {
    const float depth = load_positive_or(ld, "scale_depth", 1.4), base = load_positive_or(ld, "dim_model_base", 256);
    spec->embedding_scale = load_positive_or(ld, "scale_emb", 12);
    MlaFamily s = mla_load_fields(ld, spec, load_int(ld, "hidden_size") / load_int(ld, "num_attention_heads"));
    s.rope = load_rope(ld, &(RopeOptions){.head_dim = s.rope_dim, .theta = 10000});
    s.residual_scale = depth / sqrtf((float)spec->layer_count);
    spec->logit_scale = base / (float)s.d.hidden;
    load_expect_bool(ld, "mlp_bias", false);
    mla_load_blocks(ld, spec, &s);
}

/* A.X K1: DeepSeek-V3 with a norm behind MoE blocks; published files have no correction bias. Reference:
 * transformers/models/axk1. */
static void load_axk1(Loader *ld, Spec *spec) {
    MlaFamily s = mla_load_fields(ld, spec, 128);
    s.moe.names = load_has_part(ld, ".e_score_correction_bias") ? moe_deepseek : moe_usual;
    s.moe_norm = true;
    if (!load_has_field(ld, "first_k_dense_replace") && !load_has_field(ld, "mlp_layer_types")) s.dense = 1;
    family_moe_sigmoid(ld, &s.moe);
    s.moe.moe.scale = load_positive_or(ld, "routed_scaling_factor", 2.5);
    load_expect_text(ld, "scoring_func", "sigmoid");
    mla_load_blocks(ld, spec, &s);
}

/* A norm with a gate of low rank, which is a component: what reads it is parallel to it. */
static void add_gated_norm(Loader *ld, Spec *spec, Layer *layer, const MlaFamily *s, const char *name, int rank) {
    char norm[64], down[64], up[64];
    snprintf(norm, sizeof norm, "%s.norm", name);
    snprintf(down, sizeof down, "%s.W_down", name);
    snprintf(up, sizeof up, "%s.W_up", name);
    const Component gate = {.kind = COMPONENT_NORM_GATE,
        .norm_gate = {.down = load_linear(ld, down, rank, s->d.hidden, false),
            .up = load_linear(ld, up, s->d.hidden, rank, false)}};
    family_add(spec, layer, &gate)->input_norm = load_rms(ld, norm, s->d.hidden, s->d.eps);
}

/* A.X K2: DeepSeek-V3.2 with gated norms; queries, and gates of the attention, are projected from low-rank queries with
 * their norm and without. Reference: transformers/models/axk2. */
static void load_axk2(Loader *ld, Spec *spec) {
    MlaFamily s = mla_load_fields(ld, spec, 64);
    const int rank = load_int_or(ld, "gated_norm_rank", 16), q = s.sizes.nope_dim + s.rope_dim,
              each = q + s.sizes.width;
    const int64_t all = (int64_t)s.sizes.heads * each;
    if (!load_has_field(ld, "first_k_dense_replace") && !load_has_field(ld, "mlp_layer_types")) s.dense = 1;
    s.joined = true;
    s.moe.names = moe_deepseek;
    family_moe_sigmoid(ld, &s.moe);
    s.moe.moe.norm_topk_prob = load_bool_or(ld, "norm_topk_prob", true); /* even where one expert is chosen */
    s.moe.moe.scale = load_positive_or(ld, "routed_scaling_factor", 2.5);
    load_expect_text(ld, "scoring_func", "sigmoid");
    mla_expect_indexed(ld, spec);
    mla_load_index(ld, spec, &s, 16, load_bool_or(ld, "indexer_rope_interleave", false));
    for (int i = 0; i < spec->layer_count; i++) {
        const bool experts = s.mixed && i >= s.dense && i % s.every == 0;
        Layer *layer = family_layer(ld, spec, i);
        add_gated_norm(ld, spec, layer, &s, "input_layernorm", rank);
        const Component attention = mla_load_indexed(ld, spec, layer, &s, i);
        Component *own = family_add(spec, layer, &attention);
        own->mla.q = load_row_blocks(ld, "self_attn.q_b_proj", all, 2 * (int64_t)s.q_rank, false,
            (RowBlocks){.size = q, .stride = each, .count = s.sizes.heads});
        own->mla.gate = load_row_blocks(ld, "self_attn.q_b_proj", all, 2 * (int64_t)s.q_rank, false,
            (RowBlocks){.first = q, .size = s.sizes.width, .stride = each, .count = s.sizes.heads});
        for (Component *c = own; c > layer->components; c--) c->parallel = true;
        if (experts) {
            add_gated_norm(ld, spec, layer, &s, "post_attention_layernorm", rank);
            const Component moe = {.kind = COMPONENT_MOE, .moe = family_moe(ld, &s.moe)};
            family_add(spec, layer, &moe)->parallel = true;
        } else {
            const Component glu = {.kind = COMPONENT_GLU,
                .glu = family_glu(ld, "mlp", s.d.hidden, s.d.intermediate_size, (Activation){.kind = ACT_SILU}, false)};
            family_add(spec, layer, &glu)->input_norm = load_rms(ld, "post_attention_layernorm", s.d.hidden, s.d.eps);
        }
    }
}

const Family axk2_family = {.load = load_axk2};
const Family axk1_family = {.load = load_axk1};
const Family minicpm3_family = {.load = load_minicpm3, .gguf = &minicpm3_gguf};
const Family glm4_moe_lite_family = {.load = load_glm4_moe_lite, .gguf = &glm4_moe_lite_gguf};
const Family youtu_llm_family = {.load = load_youtu_llm, .gguf = &youtu_llm_gguf};
const Family mistral4_family = {.load = mistral4_load, .gguf = &mistral4_gguf};
