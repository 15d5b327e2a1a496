/* LFM2: gated short convolutions, and attention in some layers; dense or, as LFM2-MoE, with experts behind the first
 * layers. The output matrix is the embedding, unless the config says otherwise and the file has one. References:
 * mlx_lm/models/lfm2.py, lfm2_moe.py; a matrix of its own: transformers/models/lfm2. */
#include "family/gguf/models.h"
#include "family/recurrent.h"
#include "family/vision.h"

static const NormNames norms = {.load = load_rms, .attention_input = "operator_norm", .ffn_input = "ffn_norm"};
static const MoeNames moe_names = {
    "feed_forward", "gate", "switch_mlp", "w1", "w3", "w2", .shared = NULL, .bias = "expert_bias"};

typedef struct Lfm2 {
    Dims d;
    const Rope *rope;
    const Json *types, *attention; /* layer_types, or the numbers of layers with attention */
    int taps;
    bool conv_bias;
} Lfm2;

static Lfm2 load_fields(Loader *ld, Spec *spec) {
    static const Sizes absent = {
        .intermediate_size = SIZE_OWN, .positions = 128000, .eps = 1e-5, .eps_field = "norm_eps"};
    Lfm2 m = {.d = family_sizes(ld, spec, &absent),
        .taps = load_int_or(ld, "conv_L_cache", 3),
        .conv_bias = load_bool_or(ld, "conv_bias", false)};
    family_check_taps(ld, m.taps);
    m.types = load_list(ld, "layer_types", spec->layer_count);
    m.attention = load_list(ld, "full_attn_idxs", -1);
    load_require(ld, m.types || m.attention, "layer_types is missing, and full_attn_idxs too");
    m.rope = load_rope(ld, &(RopeOptions){.head_dim = m.d.head_dim, .theta = 1000000});
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu",
        "block_use_xavier_init", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "eos_token_id", "use_pos_enc",
        "theta", "num_heads", "output_router_logits", "router_aux_loss_coef", NULL);
    load_scope(ld, "%s", "");
    const bool tied = load_bool_or(ld, "tie_embedding", load_bool_or(ld, "tie_word_embeddings", true));
    family_ends_as(ld, spec, &m.d, "model.embed_tokens", "model.embedding_norm", load_rms,
        tied || !load_has(ld, "lm_head.weight"));
    load_layers(ld, spec);
    return m;
}

static Component load_attention(Loader *ld, const Lfm2 *m) {
    Component c = {
        .kind = COMPONENT_ATTENTION, .attention = family_attention(ld, &m->d, "out_proj", m->rope, false, false)};
    c.attention.op.q_norm = load_rms(ld, "self_attn.q_layernorm", m->d.head_dim, m->d.eps);
    c.attention.op.k_norm = load_rms(ld, "self_attn.k_layernorm", m->d.head_dim, m->d.eps);
    return c;
}

/* w1, w3 and w2; MLX's LFM2-MoE calls them gate_proj, up_proj and down_proj. */
static Component load_ffn(Loader *ld, const Lfm2 *m, int width) {
    const Activation silu = {.kind = ACT_SILU};
    GluComponent glu = {.activation = silu};
    if (load_has(ld, "feed_forward.gate_proj.weight")) {
        glu = family_glu(ld, "feed_forward", m->d.hidden, width, silu, false);
    } else {
        glu.gate = load_linear(ld, "feed_forward.w1", width, m->d.hidden, false);
        glu.up = load_linear(ld, "feed_forward.w3", width, m->d.hidden, false);
        glu.down = load_linear(ld, "feed_forward.w2", m->d.hidden, width, false);
    }
    return (Component){.kind = COMPONENT_GLU, .glu = glu};
}

static void load_block(Loader *ld, Spec *spec, const Lfm2 *m, int i, int width, const Moe *moe) {
    family_layer(ld, spec, i);
    const bool conv = m->attention ? !family_listed(m->attention, i)
                                   : family_is_recurrent(ld, "layer_types", m->types, i, "conv", "full_attention");
    const Component mixer = conv ? family_short_conv(ld, m->d.hidden, m->taps, m->conv_bias) : load_attention(ld, m);
    const Component ffn = moe ? (Component){.kind = COMPONENT_MOE, .moe = family_moe(ld, moe)} : load_ffn(ld, m, width);
    family_block(ld, spec, i, &(Block){.dims = &m->d, .norms = &norms, .attention = &mixer, .ffn = &ffn});
}

/* The config has the width before or after its adjustment to 2/3. */
static int dense_width(Loader *ld) {
    const int width = load_int_or(ld, "block_ff_dim", load_int_or(ld, "intermediate_size", 0));
    const int unit = load_int_or(ld, "block_multiple_of", 256);
    const double factor = (double)load_positive_or(ld, "block_ffn_dim_multiplier", 1);
    load_require(ld, width > 0, "block_ff_dim is missing, and intermediate_size too");
    if (!load_bool_or(ld, "block_auto_adjust_ff_dim", true)) return width;
    const double adjusted = factor * (int)(2.0 * width / 3);
    load_require(ld, adjusted < MATRIX_COLS_MAX, "block_ff_dim is %d, which is too much", width);
    return adjusted < MATRIX_COLS_MAX ? ((int)adjusted + unit - 1) / unit * unit : unit;
}

static void load_dense(Loader *ld, Spec *spec) {
    const Lfm2 m = load_fields(ld, spec);
    const int width = dense_width(ld);
    for (int i = 0; i < spec->layer_count; i++) load_block(ld, spec, &m, i, width, NULL);
}

static void load_mixture(Loader *ld, Spec *spec) {
    const Lfm2 m = load_fields(ld, spec);
    const int width = load_int(ld, "intermediate_size"), dense = load_count_or(ld, "num_dense_layers", 0);
    Moe moe = family_moe_fields(ld, &moe_names, m.d.hidden, "num_experts");
    moe.moe.score = ROUTE_SIGMOID;
    moe.moe.norm_topk_prob = load_bool_or(ld, "norm_topk_prob", true);
    moe.moe.epsilon = 1e-6f;
    moe.moe.scale = load_positive_or(ld, "routed_scaling_factor", 1);
    load_expect_text(ld, "scoring_func", "sigmoid"); /* which files made from GGUF say */
    if (!load_bool_or(ld, "use_expert_bias", true)) moe.names.bias = NULL;
    for (int i = 0; i < spec->layer_count; i++) load_block(ld, spec, &m, i, width, i < dense ? NULL : &moe);
}

/* Fields beside the two parts: of the projector, and of image preprocessing, which its own file has. */
static void load_images(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    const Lfm2Projector projector = {.merge = load_int_or(ld, "downsample_factor", 2),
        .inner = load_int_or(ld, "projector_hidden_size", 2560),
        .norm = load_bool_or(ld, "projector_use_layernorm", true),
        .bias = load_bool_or(ld, "projector_bias", true)};
    load_expect_text(ld, "projector_hidden_act", "gelu");
    load_expect_int(ld, "vision_feature_layer", -1);
    load_ignore(ld, "do_image_splitting", "encoder_patch_size", "max_image_tokens", "max_num_patches",
        "max_pixels_tolerance", "max_tiles", "min_image_tokens", "min_tiles", "tile_size", "use_image_special_tokens",
        "use_thumbnail", NULL);
    load_text_part(ld);
    if (load_text_is(ld, "model_type", "lfm2_moe"))
        load_mixture(ld, spec);
    else
        load_dense(ld, spec);
    load_return(ld, &root);
    vision_load_lfm2(ld, spec, &projector);
}

const Family lfm2_vl_family = {.load = load_images};
const Family lfm2_family = {.load = load_dense, .gguf = &lfm2_gguf};
const Family lfm2_moe_family = {.load = load_mixture, .gguf = &lfm2_moe_gguf};
