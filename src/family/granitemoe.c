/* Granite 3 MoE: embeddings, attention, residuals and logits each with a factor of the config; experts in every layer,
 * used with the softmax over the best. Reference: mlx_lm/models/granitemoe.py. */
#include "family/family.h"

static const MoeNames names = {
    "block_sparse_moe", "router.layer", "switch_mlp", "gate_proj", "up_proj", "down_proj", .shared = NULL};

/* As transformers saves them, gate and up of each expert one below the other. */
static MoeComponent load_fused(Loader *ld, const Moe *family) {
    MoeComponent moe = family->moe;
    const int experts = moe.experts, inner = family->intermediate_size, hidden = family->hidden;
    moe.router = load_linear(ld, "block_sparse_moe.router.layer", experts, hidden, false);
    moe.gate = load_experts(ld, "block_sparse_moe.input_linear", NULL, experts, 0, 2 * (int64_t)inner, hidden, false);
    moe.up = load_halves(ld, moe.gate, experts, 0);
    moe.down = load_experts(ld, "block_sparse_moe.output_linear", NULL, experts, 0, hidden, inner, false);
    return moe;
}

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_dims(ld, spec);
    const bool bias = load_bool_or(ld, "attention_bias", false);
    const float scale = load_positive(ld, "attention_multiplier"), residual = load_positive(ld, "residual_multiplier");
    Moe moe = family_moe_open(ld, &names, d.hidden, d.intermediate_size, load_int(ld, "num_local_experts"),
        load_int(ld, "num_experts_per_tok"));
    moe.moe.score = ROUTE_TOP_SOFTMAX;
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000});
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "output_router_logits", "router_aux_loss_coef", NULL);
    family_ends(ld, spec, &d);
    spec->embedding_scale = load_positive(ld, "embedding_multiplier");
    spec->logit_scale = 1 / load_positive(ld, "logits_scaling");
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        Component attention = {
            .kind = COMPONENT_ATTENTION, .attention = family_attention(ld, &d, "o_proj", rope, bias, bias)};
        attention.attention.op.scale = scale;
        const bool fused = load_has(ld, "block_sparse_moe.input_linear.weight");
        const Component ffn = {.kind = COMPONENT_MOE, .moe = fused ? load_fused(ld, &moe) : family_moe(ld, &moe)};
        family_block(
            ld, spec, i, &(Block){.dims = &d, .attention = &attention, .ffn = &ffn, .residual_scale = residual});
    }
}

static const GgufName gguf_names[] = {
    {"blk.*.ffn_gate_inp", "model.layers.*.block_sparse_moe.router.layer", 0},
    {"blk.*.ffn_gate_exps", "model.layers.*.block_sparse_moe.switch_mlp.gate_proj", 0},
    {"blk.*.ffn_up_exps", "model.layers.*.block_sparse_moe.switch_mlp.up_proj", 0},
    {"blk.*.ffn_down_exps", "model.layers.*.block_sparse_moe.switch_mlp.down_proj", 0},
    {0},
};

static const GgufField fields[] = {
    {"attention_bias", GGUF_FIELD_HAS, .key = "blk.0.attn_q.bias"},
    {"attention_multiplier", GGUF_FIELD_NUMBER, .key = ".attention.scale"},
    {"embedding_multiplier", GGUF_FIELD_NUMBER, .key = ".embedding_scale"},
    {"residual_multiplier", GGUF_FIELD_NUMBER, .key = ".residual_scale"},
    {"logits_scaling", GGUF_FIELD_NUMBER, .key = ".logit_scale"},
    {"num_local_experts", .key = ".expert_count"},
    {"num_experts_per_tok", .key = ".expert_used_count"},
    {0},
};

const Family granitemoe_family = {
    .load = load,
    .gguf = &(const GgufModel){.architecture = "granitemoe",
        .class_name = "GraniteMoeForCausalLM",
        .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_names},
        .fields = {gguf_sizes, gguf_rms, gguf_silu, fields}},
};
