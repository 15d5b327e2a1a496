/* Mixtral: a Mistral whose feed-forward parts are MoE blocks; weights are the softmax over the best logits.
 * Reference: mlx_lm/models/mixtral.py. */
#include "family/family.h"
#include "family/gguf/models.h"

static const MoeNames names = {"block_sparse_moe", "gate", "switch_mlp", "w1", "w3", "w2", .shared = NULL};

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5});
    Moe moe = family_moe_open(ld, &names, d.hidden, d.intermediate_size, load_int(ld, "num_local_experts"),
        load_int(ld, "num_experts_per_tok"));
    moe.moe.score = ROUTE_TOP_SOFTMAX;
    const Rope *rope = load_rope(ld,
        &(RopeOptions){
            .head_dim = d.head_dim, .theta = 1000000, .interleaved = load_bool_or(ld, "rope_traditional", false)});
    const int window = load_count_or(ld, "sliding_window", 0);
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", NULL);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++)
        family_block(ld, spec, i, &(Block){.dims = &d, .rope = rope, .window = window, .moe = &moe});
}

const Family mixtral_family = {.load = load, .gguf = &mixtral_gguf};
