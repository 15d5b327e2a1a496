/* Flint: Qwen3-MoE with a sink for each head, windows in most layers, positions only in those, sigmoids without a bias
 * for the choice of experts, and a shared expert of full weight. Reference: transformers/models/flint. */
#include "family/family.h"

static Moe load_moe(Loader *ld, int hidden) {
    Moe moe = family_moe_fields(ld, &moe_usual, hidden, "num_experts");
    moe.moe.score = ROUTE_SIGMOID;
    moe.moe.norm_topk_prob = load_bool_or(ld, "norm_topk_prob", true);
    moe.names.shared = "shared_expert";
    moe.shared = load_int_or(ld, "shared_expert_intermediate_size", 1024);
    return moe;
}

/* The window of layer i; 0: it sees everything. */
static int window_of(Loader *ld, const Windows *windows, int i, int layers) {
    const bool full = i < 2 || i % 4 == 1 || i == layers - 1;
    return windows->types ? family_window(ld, windows, i) : full ? 0 : windows->width;
}

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.head_dim = 128, .eps = 1e-6});
    const bool bias = load_bool_or(ld, "attention_bias", false);
    const Moe moe = load_moe(ld, d.hidden);
    const Json *dense = load_list(ld, "mlp_only_layers", -1);
    const int every = load_int_or(ld, "decoder_sparse_step", 1);
    const Windows windows = {
        .types = load_list(ld, "layer_types", spec->layer_count), .width = load_int_or(ld, "sliding_window", 513)};
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000});
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "output_router_logits", "router_aux_loss_coef", NULL);
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const int window = window_of(ld, &windows, i, spec->layer_count);
        const bool plain = dense ? family_listed(dense, i) : i < 2;
        Layer *layer = family_block(ld, spec, i,
            &(Block){.dims = &d,
                .rope = window ? rope : NULL,
                .window = window,
                .bias = bias,
                .out_bias = bias,
                .q_norm = "q_norm",
                .k_norm = "k_norm",
                .moe = !plain && (i + 1) % every == 0 ? &moe : NULL});
        const bool published = load_has(ld, "self_attn.softmax_offset"); /* transformers renames it */
        layer->components[0].attention.op.sinks =
            load_vector(ld, published ? "self_attn.softmax_offset" : "self_attn.sinks", d.heads, 0);
    }
}

const Family flint_family = {.load = load};
