/* DBRX: layer norms without biases, values of q, k and v kept within bounds, experts whose weights have the sum 1.
 * Publishers' files have all experts' matrices one below the other, down's transposed. References:
 * mlx_lm/models/dbrx.py; transformers/models/dbrx. */
#include "family/family.h"
#include "family/gguf/models.h"

typedef struct Dbrx {
    Dims d;
    const Rope *rope;
    float clip;
    Moe moe;
} Dbrx;

static void load_attention_config(Loader *ld, Dbrx *s) {
    const LoadPlace here = load_place(ld);
    load_enter(ld, "attn_config", "");
    s->d.kv_heads = load_int_or(ld, "kv_n_heads", 1);
    s->clip = load_positive_or(ld, "clip_qkv", 0);
    const double theta = load_positive_or(ld, "rope_theta", 10000);
    load_ignore(ld, "attn_pdrop", "model_type", NULL);
    load_return(ld, &here);
    family_check(ld, &s->d);
    s->rope = load_rope(ld, &(RopeOptions){.head_dim = s->d.head_dim, .theta = theta});
}

static void load_ffn_config(Loader *ld, Dbrx *s) {
    static const MoeNames names = {"ffn", "router.layer", "switch_mlp", "w1", "v1", "w2", NULL, .bias = NULL};
    const LoadPlace here = load_place(ld);
    load_enter(ld, "ffn_config", "");
    s->moe = family_moe_open(ld, &names, s->d.hidden, load_int(ld, "ffn_hidden_size"),
        load_int_or(ld, "moe_num_experts", 4), load_int_or(ld, "moe_top_k", 1));
    s->moe.moe.norm_topk_prob = !load_null(ld, "moe_normalize_expert_weights");
    s->moe.moe.epsilon = 1e-20f;
    load_require(
        ld, load_number_or(ld, "moe_normalize_expert_weights", 1) == 1, "moe_normalize_expert_weights must be 1");
    load_ignore(
        ld, "moe_jitter_eps", "moe_loss_weight", "uniform_expert_assignment", "hidden_size", "model_type", NULL);
    if (load_has_field(ld, "ffn_act_fn")) {
        load_enter(ld, "ffn_act_fn", "");
        load_expect_text(ld, "name", "silu");
    }
    load_return(ld, &here);
}

/* As published. */
static MoeComponent load_flat(Loader *ld, const Dbrx *s) {
    MoeComponent moe = s->moe.moe;
    const int inner = s->moe.intermediate_size, hidden = s->d.hidden;
    moe.router = load_linear(ld, "ffn.router.layer", moe.experts, hidden, false);
    const Weight gates = load_linear(ld, "ffn.experts.mlp.w1", (int64_t)moe.experts * inner, hidden, false);
    const Weight ups = load_linear(ld, "ffn.experts.mlp.v1", (int64_t)moe.experts * inner, hidden, false);
    moe.gate = load_split(ld, &gates, moe.experts);
    moe.up = load_split(ld, &ups, moe.experts);
    moe.down = load_experts_transposed(ld, "ffn.experts.mlp.w2", true, moe.experts, 0, hidden, inner);
    return moe;
}

static void load_layer(Loader *ld, Spec *spec, const Dbrx *s, int i) {
    static const NormNames norms = {
        load_layer_norm, .attention_input = "norm_attn_norm.norm_1", .ffn_input = "norm_attn_norm.norm_2"};
    family_layer(ld, spec, i);
    Component attention = {.kind = COMPONENT_ATTENTION,
        .attention = family_fused_attention(
            ld, &s->d, "norm_attn_norm.attn.Wqkv", "norm_attn_norm.attn.out_proj", s->rope, false, false)};
    attention.attention.clip = s->clip;
    const Component ffn = {
        .kind = COMPONENT_MOE, .moe = load_has(ld, "ffn.experts.mlp.w1") ? load_flat(ld, s) : family_moe(ld, &s->moe)};
    family_block(ld, spec, i, &(Block){.dims = &s->d, .norms = &norms, .attention = &attention, .ffn = &ffn});
}

static void load(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"model.layers", "transformer.blocks"}, {0}};
    Dbrx s = {.d = {.hidden = load_int(ld, "d_model"), .heads = load_int(ld, "n_heads"), .eps = 1e-5f}};
    spec->hidden = s.d.hidden;
    spec->layer_count = load_int(ld, "n_layers");
    spec->vocab = load_int(ld, "vocab_size");
    spec->positions = load_int_or(ld, "max_seq_len", 2048);
    s.d.kv_heads = 1;
    family_check(ld, &s.d);
    load_attention_config(ld, &s);
    load_ffn_config(ld, &s);
    load_expect_bool(ld, "tie_word_embeddings", false);
    load_ignore(ld, "emb_pdrop", "resid_pdrop", "output_router_logits", NULL);
    load_module_names(ld, names);
    family_ends_as(ld, spec, &s.d, "transformer.wte", "transformer.norm_f", load_layer_norm, false);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) load_layer(ld, spec, &s, i);
}

const Family dbrx_family = {.load = load, .gguf = &dbrx_gguf};
