/* EXAONE MoE (K-EXAONE): norms on q and k, windows; only layers with a window rotate, unless there is none.
 * References: mlx_lm/models/exaone_moe.py; fields that a config lacks: transformers/models/exaone_moe. */
#include "family/family.h"
#include "family/gguf/models.h"

/* Which layers have experts: the first list that is there says so, else all but the first ones do. */
typedef struct Sparse {
    const Json *kinds, *flags; /* mlp_layer_types, is_moe_layer; or NULL */
    int dense;                 /* first_k_dense_replace */
} Sparse;

static bool has_experts(Loader *ld, const Sparse *sparse, int i) {
    if (sparse->kinds) return family_kind(ld, "mlp_layer_types", sparse->kinds, i, "sparse", "dense");
    if (!sparse->flags) return i >= sparse->dense;
    const Json *item = family_item(sparse->flags, i);
    load_require(ld, item->type == JSON_BOOL, "is_moe_layer[%d] must be true or false", i);
    return item->type == JSON_BOOL && item->boolean;
}

static void load(Loader *ld, Spec *spec) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5});
    Moe moe = family_moe_fields(ld, &moe_deepseek, d.hidden, "num_experts");
    family_moe_sigmoid(ld, &moe);
    moe.shared = family_moe_shared(ld, moe.intermediate_size, load_count_or(ld, "num_shared_experts", 0));
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000});
    const Windows windows = {
        .types = load_list(ld, "layer_types", spec->layer_count), .width = load_int_or(ld, "sliding_window", 0)};
    const Sparse sparse = {.kinds = load_list(ld, "mlp_layer_types", spec->layer_count),
        .flags = load_list(ld, "is_moe_layer", spec->layer_count),
        .dense = load_count_or(ld, "first_k_dense_replace", 1)};
    bool slides = false;
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_text(ld, "scoring_func", "sigmoid");
    load_ignore(ld, "num_nextn_predict_layers", "first_last_k_dense_replace", "sliding_window_pattern",
        "output_router_logits", "router_aux_loss_coef", NULL);
    load_require(ld, windows.types, "layer_types is missing");
    load_skip(ld, "mtp.");
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; windows.types && i < spec->layer_count; i++) slides = family_window(ld, &windows, i) > 0 || slides;
    for (int i = 0; windows.types && i < spec->layer_count; i++) {
        const int window = family_window(ld, &windows, i);
        family_layer(ld, spec, i);
        if (load_has(ld, "mlp.e_score_correction_bias")) moe.names.bias = "e_score_correction_bias"; /* before MLX */
        family_block(ld, spec, i,
            &(Block){.dims = &d,
                .rope = window || !slides ? rope : NULL,
                .window = window,
                .q_norm = "q_norm",
                .k_norm = "k_norm",
                .moe = has_experts(ld, &sparse, i) ? &moe : NULL});
    }
}

const Family exaone_moe_family = {.load = load, .gguf = &exaone_moe_gguf};
