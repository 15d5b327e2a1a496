/* Families that differ from a llama in what a Dense says, and in nothing else. References: the files of mlx_lm/models
 * with their names. */
#include "family/dense.h"
#include "family/gguf/models.h"

/* Layer norms whose weights are stored minus one. */
static const Norm *load_layer_norm_plus_one(Loader *ld, const char *name, int64_t width, float eps) {
    return load_layer_norm_plus(ld, name, width, eps, 1);
}

static void load_seed_oss(Loader *ld, Spec *spec) {
    static const Dense row = {.head_dim = 128,
        .eps = 1e-6,
        .qkv_bias = {"attention_bias", true},
        .out_bias = {"attention_out_bias", false},
        .mlp_bias = {"mlp_bias", false},
        .ignored = {"residual_dropout"}};
    dense_load(ld, spec, &row);
}

static void load_helium(Loader *ld, Spec *spec) {
    static const Dense row = {.head_dim = 128,
        .eps = 1e-8,
        .theta = 100000,
        .interleaved = true,
        .qkv_bias = {"attention_bias", false},
        .mlp_bias = {"mlp_bias", false}};
    dense_load(ld, spec, &row);
}

/* The first of the layers that predict further tokens. Reference: vllm/model_executor/models/mimo_mtp.py, except that
 * the embedding of the second token is not zeroed. */
static void load_mimo_mtp(Loader *ld, Spec *spec, const Dims *d) {
    static const MtpNames names = {
        "input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm", .state_first = true};
    load_scope(ld, "model.mtp_layers.0.");
    Spec *mtp = family_mtp(ld, spec, &names, load_rms, d->eps);
    if (!mtp) return;
    const AttentionComponent *first = &spec->layers[0].components[0].attention;
    family_block_here(ld, mtp, mtp->layers, &(Block){.dims = d, .rope = first->op.rope, .bias = first->q.bias != NULL});
}

static void load_mimo(Loader *ld, Spec *spec) {
    static const Dense row = {.qkv_bias = {"attention_bias", true},
        .window_everywhere = false,
        .ignored = {"num_nextn_predict_layers", "use_sliding_window", "sliding_window", "max_window_layers"}};
    load_skip(ld, "model.mtp_layers.");
    const Dims d = dense_load(ld, spec, &row);
    load_mimo_mtp(ld, spec, &d);
}

static void load_internlm3(Loader *ld, Spec *spec) {
    static const Dense row = {
        .eps = 1e-5, .qkv_bias = {"qkv_bias", false}, .out_bias = {"qkv_bias", false}, .mlp_bias = {"bias", false}};
    static const LoadName names[] = {
        {"qkv_bias", "attention_bias"}, {"bias", "mlp_bias"}, {0}}; /* as transformers 5 calls them */
    if (load_has_field(ld, "attention_bias") || load_has_field(ld, "mlp_bias")) load_field_names(ld, names);
    dense_load(ld, spec, &row);
}

static void load_nemotron(Loader *ld, Spec *spec) {
    static const NormNames norms = {
        load_layer_norm_plus_one, .attention_input = "input_layernorm", .ffn_input = "post_attention_layernorm"};
    static const Dense row = {.eps_field = "norm_eps",
        .eps = 1e-5,
        .norms = &norms,
        .rotary_factor = 0.5,
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false},
        .mlp_bias = {"mlp_bias", false},
        .ffn = DENSE_MLP,
        .activation = {.kind = ACT_RELU2},
        .activation_text = "relu2"};
    dense_load(ld, spec, &row);
}

static void load_hunyuan_v1_dense(Loader *ld, Spec *spec) {
    static const Dense row = {.eps = 1e-5,
        .alpha = true,
        .q_norm = "query_layernorm",
        .k_norm = "key_layernorm",
        .qk_norm = {"use_qk_norm", true},
        .norm_last = true,
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false},
        .ignored = {"attention_head_dim", "norm_type", "eod_token_id", "sep_token_id", "use_cla", "cla_share_factor",
            "add_classification_head", "class_num", "dense_list", "enable_lm_head_fp32", "group_limited_greedy",
            "im_end_id", "im_newline_id", "im_start_id", "mask_init_id", "org_vocab_size", "pad_id", "pool_type",
            "text_end_id", "text_start_id", "use_rotary_pos_emb", "mlp_bias", "num_experts"}};
    load_expect_bool(ld, "use_cla", false);
    dense_load(ld, spec, &row);
}

static void load_arcee(Loader *ld, Spec *spec) {
    static const Dense row = {.eps = 1e-5,
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false},
        .mlp_bias = {"mlp_bias", false},
        .ffn = DENSE_MLP,
        .activation = {.kind = ACT_RELU2},
        .activation_text = "relu2"};
    dense_load(ld, spec, &row);
}

/* Jais 2. Reference: transformers/models/jais2. */
static void load_jais2(Loader *ld, Spec *spec) {
    static const NormNames norms = {
        load_layer_norm, .attention_input = "input_layernorm", .ffn_input = "post_attention_layernorm"};
    static const Dense row = {.eps_field = "layer_norm_eps",
        .eps = 1e-5,
        .norms = &norms,
        .qkv_bias = {"attention_bias", true},
        .out_bias = {"attention_bias", true},
        .mlp_bias = {"mlp_bias", true},
        .ffn = DENSE_MLP,
        .activation = {.kind = ACT_RELU2},
        .activation_text = "relu2"};
    dense_load(ld, spec, &row);
}

/* IQuest-Coder: a llama; options of the publisher's code that no model has are refused. Reference:
 * transformers/models/iquestcoder. */
static void load_iquestcoder(Loader *ld, Spec *spec) {
    static const Dense row = {.head_dim = 128,
        .eps = 1e-5,
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false},
        .mlp_bias = {"mlp_bias", false},
        .ignored = {"sliding_window", "max_window_layers"}};
    load_expect_bool(ld, "use_sliding_window", false);
    load_require(ld, !load_has_field(ld, "clip_qkv"), "clip_qkv is not supported");
    dense_load(ld, spec, &row);
}

static void load_telechat3(Loader *ld, Spec *spec) {
    static const Dense row = {
        .qkv_bias = {"attention_bias", false}, .out_bias = {"attention_bias", false}, .mlp_bias = {"mlp_bias", false}};
    dense_load(ld, spec, &row);
}

const Family seed_oss_family = {.load = load_seed_oss, .gguf = &seed_oss_gguf};
const Family nemotron_family = {.load = load_nemotron, .gguf = &nemotron_gguf};
const Family arcee_family = {.load = load_arcee, .gguf = &arcee_gguf};
const Family iquestcoder_family = {.load = load_iquestcoder};
const Family jais2_family = {.load = load_jais2, .gguf = &jais2_gguf};
const Family telechat3_family = {.load = load_telechat3};
const Family helium_family = {.load = load_helium};
const Family mimo_family = {.load = load_mimo};
const Family internlm3_family = {.load = load_internlm3};
const Family hunyuan_v1_dense_family = {.load = load_hunyuan_v1_dense, .gguf = &hunyuan_dense_gguf};
