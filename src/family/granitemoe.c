/* Granite 3 MoE: embeddings, attention, residuals and logits each with a factor of the config; experts in every layer,
 * used with the softmax over the best. Reference: mlx_lm/models/granitemoe.py. */
#include "family/family.h"

static const MoeNames names = {
    "block_sparse_moe", "router.layer", "switch_mlp", "gate_proj", "up_proj", "down_proj", .shared = NULL};

/* As transformers saves them, gate and up of each expert one below the other. */
static void load_fused(Loader *ld, const Moe *moe, Layer *layer) {
    const int experts = moe->ffn.experts;
    MoeFfn *ffn = &layer->moe;
    layer->ffn = FFN_MOE;
    *ffn = moe->ffn;
    ffn->router = load_linear(ld, "block_sparse_moe.router.layer", experts, moe->hidden, false);
    ffn->gate = load_experts(
        ld, "block_sparse_moe.input_linear", NULL, experts, 0, 2 * (int64_t)moe->intermediate_size, moe->hidden, false);
    ffn->up = load_halves(ld, ffn->gate, experts);
    ffn->down = load_experts(
        ld, "block_sparse_moe.output_linear", NULL, experts, 0, moe->hidden, moe->intermediate_size, false);
}

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_dims(ld, spec);
    const bool bias = load_bool_or(ld, "attention_bias", false);
    const float scale = load_positive(ld, "attention_multiplier"), residual = load_positive(ld, "residual_multiplier");
    Moe moe = family_moe_open(ld, &names, d.hidden, d.intermediate_size, load_int(ld, "num_local_experts"),
        load_int(ld, "num_experts_per_tok"));
    moe.ffn.score = ROUTE_TOP_SOFTMAX;
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000});
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "output_router_logits", "router_aux_loss_coef", NULL);
    family_ends(ld, spec, &d);
    spec->embedding_scale = load_positive(ld, "embedding_multiplier");
    spec->logit_scale = 1 / load_positive(ld, "logits_scaling");
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        Layer *layer = &spec->layers[i];
        load_scope(ld, "model.layers.%d.", i);
        layer->residual_scale = residual;
        layer->mixer_in = load_rms(ld, "input_layernorm", d.hidden, d.eps);
        layer->attention = family_attention(ld, &d, "o_proj", rope, bias, bias);
        layer->attention.op.scale = scale;
        layer->ffn_in = load_rms(ld, "post_attention_layernorm", d.hidden, d.eps);
        if (load_has(ld, "block_sparse_moe.input_linear.weight"))
            load_fused(ld, &moe, layer);
        else
            family_moe_layer(ld, layer, &moe, &d, false);
    }
}

const Family granitemoe_family = {.load = load};
