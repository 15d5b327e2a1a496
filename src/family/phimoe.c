/* Phi-3.5-MoE and Phi-mini-MoE: layer norms, biases, experts chosen one after the other by a sparse mixer.
 * Reference: mlx_lm/models/phimoe.py. */
#include "family/family.h"
#include "family/gguf/models.h"

static const MoeNames moe_names = {"block_sparse_moe", "gate", "switch_mlp", "w1", "w3", "w2", .shared = NULL};

static void load_ends(Loader *ld, Spec *spec, const Dims *d) {
    spec->embedding = load_linear(ld, "model.embed_tokens", spec->vocab, d->hidden, false);
    spec->final_norm = load_layer_norm(ld, "model.norm", d->hidden, d->eps);
    spec->head = load_linear(ld, "lm_head", spec->vocab, d->hidden, true);
}

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5});
    Moe moe = family_moe_open(ld, &moe_names, d.hidden, d.intermediate_size, load_int(ld, "num_local_experts"),
        load_int(ld, "num_experts_per_tok"));
    moe.moe.score = ROUTE_SPARSEMIXER;
    moe.moe.jitter_eps = 2 * load_positive_or(ld, "router_jitter_noise", 0.01);
    const Rope *rope =
        load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 1000000, .original_positions = 4096});
    const int window = load_int_or(ld, "sliding_window", 0);
    load_require(ld, window == 0 || window >= spec->positions, "sliding_window %d is below max_position_embeddings %d",
        window, spec->positions);
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "attention_bias", true);
    load_expect_bool(ld, "lm_head_bias", true);
    load_expect_bool(ld, "tie_word_embeddings", false);
    load_ignore(ld, "input_jitter_noise", "output_router_logits", "router_aux_loss_coef",
        "original_max_position_embeddings", NULL);
    load_ends(ld, spec, &d);
    load_layers(ld, spec);
    const NormNames norms = {
        load_layer_norm, .attention_input = "input_layernorm", .ffn_input = "post_attention_layernorm"};
    for (int i = 0; i < spec->layer_count; i++)
        family_block(ld, spec, i,
            &(Block){.dims = &d, .norms = &norms, .rope = rope, .bias = true, .out_bias = true, .moe = &moe});
}

const Family phimoe_family = {.load = load, .gguf = &phimoe_gguf};
