/* MiniMax-M3, text: MiniMax-M2's experts with a shared one and clamped SwiGLU, norms of single heads, all norms stored
 * minus one. In most layers an indexer chooses blocks of keys, each of its heads for one kv head. References:
 * mlx_lm/models/minimax_m3_vl.py, transformers/models/minimax_m3_vl. */
#include "family/family.h"
#include "family/gguf/models.h"

static const MoeNames names = {
    "block_sparse_moe", "gate", "switch_mlp", "w1", "w3", "w2", "shared_experts", .bias = "e_score_correction_bias"};

/* The sparse indexer. */
typedef struct Indexer {
    IndexSelect op;     /* block 0: there is none */
    const Json *layers; /* sparse_attention_freq: 1 for layers with one; NULL: */
    const Json *types;  /* layer_types: "full_attention" for layers without one; NULL: all have one */
    LoadNorm *norm;
    int hidden;
    float eps;
} Indexer;

static bool has_indexer(Loader *ld, const Indexer *x, int i) {
    if (!x->op.block) return false;
    if (x->types) return family_kind(ld, "layer_types", x->types, i, "minimax_m3_sparse", "full_attention");
    return !x->layers || family_flag(ld, "sparse_attention_freq", x->layers, i);
}

/* The published config has an object for them. */
static Indexer load_indexer_fields(Loader *ld, const Spec *spec, const Dims *d) {
    const LoadPlace here = load_place(ld);
    Indexer x = {.types = load_list(ld, "layer_types", spec->layer_count), .hidden = d->hidden, .eps = d->eps};
    int width = load_int_or(ld, "index_head_dim", 128);
    x.layers = load_list(ld, "sparse_attention_freq", spec->layer_count);
    x.op.heads = load_int_or(ld, "index_n_heads", d->kv_heads);
    x.op.block = load_count_or(ld, "index_block_size", 0);
    x.op.top_k = load_int_or(ld, "index_topk_blocks", 16);
    x.op.local = load_count_or(ld, "index_local_blocks", 1);
    if (load_has_field(ld, "sparse_attention_config")) {
        load_enter(ld, "sparse_attention_config", "");
        width = load_int_or(ld, "sparse_index_dim", width);
        x.op.heads = load_int_or(ld, "sparse_num_index_heads", x.op.heads);
        x.op.block = load_count_or(ld, "sparse_block_size", x.op.block);
        x.op.top_k = load_int_or(ld, "sparse_topk_blocks", x.op.top_k);
        x.op.local = load_count_or(ld, "sparse_local_block", x.op.local);
        const Json *layers = load_list(ld, "sparse_attention_freq", spec->layer_count);
        if (layers) x.layers = layers;
        load_expect_int(ld, "sparse_init_block", 0);
        load_expect_text(ld, "sparse_score_type", "max");
        load_ignore(ld, "sparse_disable_index_value", "use_sparse_attention", NULL);
        load_return(ld, &here);
    }
    /* A context that fits the blocks reads all of them. */
    if (load_context(ld) > 0 && load_context(ld) <= (int64_t)x.op.block * x.op.top_k) {
        x.op.block = 0;
        load_skip(ld, ".self_attn.index_");
    }
    x.op.kv.layout = (KvLayout){.kv_heads = 1, .head_dim = width};
    load_require(ld, x.op.heads == d->kv_heads, "index_n_heads is %d, must be num_key_value_heads", x.op.heads);
    load_require(ld, x.op.local <= x.op.top_k, "index_local_blocks is %d, more than index_topk_blocks", x.op.local);
    return x;
}

/* Adds the indexer of the layer in scope. */
static void add_indexer(Loader *ld, Spec *spec, Layer *layer, const Indexer *x) {
    const int64_t width = x->op.kv.layout.head_dim;
    const Component indexer = {.kind = COMPONENT_INDEXER,
        .indexer = {.op = x->op,
            .q = load_linear(ld, "self_attn.index_q_proj", x->op.heads * width, x->hidden, false),
            .k = load_linear(ld, "self_attn.index_k_proj", width, x->hidden, false),
            .q_norm = x->norm(ld, "self_attn.index_q_norm", width, x->eps),
            .k_norm = x->norm(ld, "self_attn.index_k_norm", width, x->eps)}};
    family_add(spec, layer, &indexer)->input_norm = x->norm(ld, "input_layernorm", x->hidden, x->eps);
}

static Moe load_moe(Loader *ld, const Dims *d) {
    Moe moe = family_moe_open(ld, &names, d->hidden, d->intermediate_size, load_int_or(ld, "num_local_experts", 128),
        load_int_or(ld, "num_experts_per_tok", 4));
    const float alpha = load_positive_or(ld, "swiglu_alpha", 1.702), limit = load_positive_or(ld, "swiglu_limit", 7);
    load_require(ld, alpha == 1.702f && limit == 7, "swiglu_alpha must be 1.702, and swiglu_limit 7");
    moe.moe.activation = (Activation){ACT_SILU_CLAMPED, .a = alpha, .b = limit};
    moe.moe.score = ROUTE_SIGMOID;
    moe.moe.norm_topk_prob = true;
    moe.moe.epsilon = 1e-20f;
    moe.moe.scale = load_positive_or(ld, "routed_scaling_factor", 2);
    moe.shared = load_int_or(ld, "shared_intermediate_size", 3072);
    load_expect_text(ld, "scoring_func", "sigmoid");
    load_expect_bool(ld, "use_routing_bias", true);
    return moe;
}

/* mlp_layer_types or moe_layer_freq; neither: all layers have experts. */
static bool has_experts(Loader *ld, const Json *types, const Json *flags, int i) {
    if (types) return family_kind(ld, "mlp_layer_types", types, i, "sparse", "dense");
    return !flags || family_flag(ld, "moe_layer_freq", flags, i);
}

static void load(Loader *ld, Spec *spec) {
    load_text_part(ld);
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = 1e-6});
    const bool qk_norm = load_bool_or(ld, "use_qk_norm", true);
    const NormNames norms = {load_bool_or(ld, "use_gemma_norm", true) ? load_rms_plus_one : load_rms,
        .attention_input = "input_layernorm", .ffn_input = "post_attention_layernorm"};
    const Json *types = load_list(ld, "mlp_layer_types", spec->layer_count),
               *flags = load_list(ld, "moe_layer_freq", spec->layer_count);
    const int dense_size = load_int_or(ld, "dense_intermediate_size", 12288);
    Indexer indexer = load_indexer_fields(ld, spec, &d);
    indexer.norm = norms.load;
    const int rotary = load_int_or(ld, "rotary_dim", load_rotary_dims(ld, d.head_dim, 0.5));
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .dims = rotary, .theta = 5e6});
    const int index_rotary = rotary < indexer.op.kv.layout.head_dim ? rotary : indexer.op.kv.layout.head_dim;
    indexer.op.rope =
        load_rope(ld, &(RopeOptions){.head_dim = indexer.op.kv.layout.head_dim, .dims = index_rotary, .theta = 5e6});
    const KeySelection selection = {.block = indexer.op.block, .groups = indexer.op.heads, .top_k = indexer.op.top_k};
    const Moe moe = load_moe(ld, &d);
    load_require(ld, spec->positions <= INDEX_SCORES_MAX / indexer.op.heads,
        "max_position_embeddings is %d, too much for %d heads of an indexer", spec->positions, indexer.op.heads);
    load_ignore(ld, "hidden_act", "qk_norm_type", "attention_output_gate", "num_mtp_modules", "use_mtp",
        "mtp_transformer_layers", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", NULL);
    const bool tied = load_bool_or(ld, "tie_word_embeddings", false);
    family_ends_as(ld, spec, &d, "model.embed_tokens", "model.norm", norms.load, tied);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const bool experts = has_experts(ld, types, flags, i), indexed = has_indexer(ld, &indexer, i);
        Layer *layer = family_layer(ld, spec, i);
        if (indexed) add_indexer(ld, spec, layer, &indexer);
        Component glu = {.kind = COMPONENT_GLU};
        if (!experts) glu.glu = family_glu(ld, "mlp", d.hidden, dense_size, moe.moe.activation, false);
        family_block(ld, spec, i,
            &(Block){.dims = &d,
                .norms = &norms,
                .rope = rope,
                .q_norm = qk_norm ? "q_norm" : NULL,
                .k_norm = qk_norm ? "k_norm" : NULL,
                .ffn = experts ? NULL : &glu,
                .moe = experts ? &moe : NULL});
        if (indexed) layer->components[1].attention.op.selection = selection;
    }
}

const Family minimax_m3_family = {.load = load, .gguf = &minimax_m3_gguf};
