/* Granite 3 MoE: embeddings, attention, residuals and logits each with a factor of the config; experts in every layer,
 * used with the softmax over the best. Reference: mlx_lm/models/granitemoe.py. */
#include "family/family.h"
#include "family/gguf/models.h"

static const MoeNames names = {"block_sparse_moe", "router.layer", "switch_mlp", "gate_proj", "up_proj", "down_proj",
    .fused = "input_linear", .fused_down = "output_linear"};

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-6});
    const bool bias = load_bool_or(ld, "attention_bias", false);
    const float scale = load_positive_or(ld, "attention_multiplier", 1),
                residual = load_positive_or(ld, "residual_multiplier", 1);
    Moe moe = family_moe_open(ld, &names, d.hidden, d.intermediate_size, load_int(ld, "num_local_experts"),
        load_int(ld, "num_experts_per_tok"));
    moe.moe.score = ROUTE_TOP_SOFTMAX;
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000});
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "output_router_logits", "router_aux_loss_coef", NULL);
    family_ends(ld, spec, &d);
    spec->embedding_scale = load_positive_or(ld, "embedding_multiplier", 1);
    spec->logit_scale = 1 / load_positive_or(ld, "logits_scaling", 1);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        Component attention = {
            .kind = COMPONENT_ATTENTION, .attention = family_attention(ld, &d, "o_proj", rope, bias, bias)};
        attention.attention.op.scale = scale;
        family_block(
            ld, spec, i, &(Block){.dims = &d, .attention = &attention, .moe = &moe, .residual_scale = residual});
    }
}

const Family granitemoe_family = {.load = load, .gguf = &granitemoe_gguf};
