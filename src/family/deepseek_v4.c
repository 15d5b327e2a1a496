/* DeepSeek-V4: the residual is several streams, which hyper-connections mix; attention to the latest keys and to
 * compressed ones, of which an indexer chooses in some layers; experts of the first layers are the token's own. Names
 * are the publisher's, also as transformers writes them again, or MLX's. References: transformers/models/deepseek_v4,
 * mlx_vlm/models/deepseek_v4. */
#include "family/deepseek_v4.h"
#include "family/gguf/models.h"

#include <math.h>

static const MoeNames published = {
    "ffn", "gate", "switch_mlp", "w1", "w3", "w2", "shared_experts", .bias = "gate.bias"};
static const MoeNames names_mlx = {"ffn", "gate", "switch_mlp", "gate_proj", "up_proj", "down_proj", "shared_experts",
    .bias = "gate.e_score_correction_bias"};

static Moe load_moe(Loader *ld, const DeepseekV4 *s) {
    Moe moe = family_moe_open(ld, s->mlx ? &names_mlx : &published, s->d.hidden, load_int(ld, "moe_intermediate_size"),
        load_int(ld, "n_routed_experts"), load_int(ld, "num_experts_per_tok"));
    moe.moe.score = ROUTE_SQRT_SOFTPLUS;
    moe.moe.norm_topk_prob = true;
    moe.moe.epsilon = 1e-20f;
    moe.moe.scale = load_positive_or(ld, "routed_scaling_factor", 1.5);
    const float limit = load_positive_or(ld, "swiglu_limit", 10);
    moe.moe.activation = (Activation){ACT_SILU_LIMITED, .a = limit, .b = limit};
    moe.shared = moe.intermediate_size;
    load_expect_int(ld, "n_shared_experts", 1);
    load_expect_text(ld, "scoring_func", "sqrtsoftplus");
    load_expect_bool(ld, "norm_topk_prob", true);
    load_expect_text(ld, "topk_method", "noaux_tc");
    return moe;
}

static DeepseekV4 load_fields(Loader *ld, Spec *spec) {
    DeepseekV4 s = {.d = family_sizes(ld, spec,
                        &(Sizes){.intermediate_size = SIZE_OWN, .head_dim = 512, .positions = 1 << 20, .eps = 1e-6}),
        .hash_layers = load_count_or(ld, "num_hash_layers", 3),
        .mlx = load_has_part(ld, "attn_hc.")};
    spec->hyper.streams = load_int_or(ld, "hc_mult", 4);
    spec->hyper.iterations = load_int_or(ld, "hc_sinkhorn_iters", 20);
    spec->hyper.eps = load_positive_or(ld, "hc_eps", 1e-6);
    s.mlp_types = load_list(ld, "mlp_layer_types", spec->layer_count);
    deepseek_v4_attention_fields(ld, spec, &s);
    s.moe = load_moe(ld, &s);
    load_require(
        ld, spec->hyper.streams <= STREAMS_MAX, "hc_mult is %d, at most %d can be", spec->hyper.streams, STREAMS_MAX);
    load_expect_int(ld, "num_key_value_heads", 1);
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "attention_bias", false);
    load_expect_bool(ld, "mlp_bias", false);
    load_expect_bool(ld, "tie_word_embeddings", false);
    load_ignore(ld, "num_nextn_predict_layers", "qk_rope_head_dim", "partial_rotary_factor", "n_group", "topk_group",
        "num_hash_layers", "intermediate_size", "router_aux_loss_coef", "output_router_logits", "router_jitter_noise",
        "expert_dtype", NULL);
    load_skip(ld, "mtp.");
    return s;
}

static void load_layer(Loader *ld, Spec *spec, DeepseekV4 *s, int i) {
    const Kind kind = deepseek_v4_kind(ld, s, i);
    const bool hash =
        s->mlp_types ? family_kind(ld, "mlp_layer_types", s->mlp_types, i, "hash_moe", "moe") : i < s->hash_layers;
    Layer *layer = family_layer(ld, spec, i);
    const HyperMix around = family_hyper(ld, spec, s->d.eps, s->mlx ? "attn_hc.%s" : "hc_attn_%s"),
                   behind = family_hyper(ld, spec, s->d.eps, s->mlx ? "ffn_hc.%s" : "hc_ffn_%s");
    const Component attention = {
        .kind = COMPONENT_COMPRESSED_ATTENTION, .compressed = deepseek_v4_attention(ld, s, kind)};
    layer_add(spec, layer, COMPONENT_HYPER_COLLAPSE)->hyper = around;
    const int keys = deepseek_v4_compressors(ld, spec, layer, s, &attention.compressed, kind);
    family_between(spec, layer, &around, &attention, load_rms(ld, "attn_norm", s->d.hidden, s->d.eps), NULL)
        ->state_entry = keys;

    Moe moe = s->moe;
    if (hash) moe.names.bias = NULL;
    if (hash) load_leave(ld, "ffn.gate"); /* published files have a bias there, too */
    Component experts = {.kind = COMPONENT_MOE, .moe = family_moe(ld, &moe)};
    if (hash) {
        experts.moe.table = load_numbers(ld, "ffn.gate.tid2eid", spec->vocab, moe.moe.top_k, moe.moe.experts);
        experts.moe.table_tokens = spec->vocab;
    }
    layer_add(spec, layer, COMPONENT_HYPER_COLLAPSE)->hyper = behind;
    family_between(spec, layer, &behind, &experts, load_rms(ld, "ffn_norm", s->d.hidden, s->d.eps), NULL);
}

static void load(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}, {0}};
    load_text_part(ld);
    DeepseekV4 s = load_fields(ld, spec);
    if (!s.mlx) load_module_names(ld, names);
    if (!load_has_part(ld, "model.layers.0.")) load_body(ld, "");
    load_scope(ld, "%s", "");
    const bool usual = load_has(ld, "model.embed_tokens.weight");
    spec->embedding = load_linear(ld, usual ? "model.embed_tokens" : "model.embed", spec->vocab, s.d.hidden, false);
    spec->final_norm = load_rms(ld, "model.norm", s.d.hidden, s.d.eps);
    spec->head = load_linear(ld, load_has(ld, "lm_head.weight") ? "lm_head" : "head", spec->vocab, s.d.hidden, false);
    load_scope(ld, "%s", "model.");
    spec->hyper.head = family_hyper_head(ld, spec, s.d.eps,
        s.mlx                               ? "hc_head.%s"
            : load_has(ld, "hc_head.hc_fn") ? "hc_head.hc_%s"
                                            : "hc_head_%s");
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) load_layer(ld, spec, &s, i);
}

const Family deepseek_v4_family = {.load = load, .gguf = &deepseek_v4_gguf};
