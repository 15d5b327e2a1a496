/* OLMo: layer norms without weights, values of q, k and v clipped in some. OLMo 2: norms behind both parts of a layer
 * and over all heads of q and k. OLMo 3: the same with windows, where the scaled rotary embedding is that of full
 * layers. References: transformers/models/olmo, mlx_lm/models/olmo2.py, olmo3.py. */
#include "family/dense.h"

/* Without weights. */
static const Norm *load_plain(Loader *ld, const char *name, int64_t width, float eps) {
    return load_layer_norm(ld, NULL, width, eps);
}

static void load_olmo(Loader *ld, Spec *spec) {
    static const NormNames norms = {load_plain, .attention_input = "", .ffn_input = ""};
    static const Dense row = {.eps_field = "layer_norm_eps",
        .eps = 1e-5,
        .norms = &norms,
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false}};
    if (load_has_field(ld, "d_model")) { /* as MLX converts the publisher's own files */
        hf_olmo_load(ld, spec);
        return;
    }
    const float clip = load_positive_or(ld, "clip_qkv", 0);
    dense_load(ld, spec, &row);
    for (int i = 0; i < spec->layer_count; i++) spec->layers[i].components[0].attention.clip = clip;
}

static const NormNames norms = {
    load_rms, .attention_output = "post_attention_layernorm", .ffn_output = "post_feedforward_layernorm"};

static void load_olmo2(Loader *ld, Spec *spec) {
    static const Dense row = {.norms = &norms,
        .q_norm = "q_norm",
        .k_norm = "k_norm",
        .qk_norm = {NULL, true},
        .norm_full = true,
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false},
        .mlp_bias = {"mlp_bias", false},
        .tied = true};
    dense_load(ld, spec, &row);
}

static void load_olmo3(Loader *ld, Spec *spec) {
    static const Dense row = {.norms = &norms,
        .q_norm = "q_norm",
        .k_norm = "k_norm",
        .qk_norm = {NULL, true},
        .norm_full = true,
        .qkv_bias = {"attention_bias", false},
        .out_bias = {"attention_bias", false},
        .full_every = 4,
        .window_unscaled = true};
    dense_load(ld, spec, &row);
}

static const GgufName names[] = {
    {"output_norm", "model.norm", 0},
    {"blk.*.attn_q_norm", "model.layers.*.self_attn.q_norm", 0},
    {"blk.*.attn_k_norm", "model.layers.*.self_attn.k_norm", 0},
    {"blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm", 0},
    {"blk.*.post_ffw_norm", "model.layers.*.post_feedforward_layernorm", 0},
    {0},
};

static const GgufField fields_olmo[] = {
    {"layer_norm_eps", GGUF_FIELD_NUMBER, .key = ".attention.layer_norm_epsilon", .absent = 1e-5},
    {"clip_qkv", GGUF_FIELD_NUMBER, .key = ".attention.clamp_kqv", .optional = true},
    {0},
};

static const GgufField fields_windows[] = {
    {"sliding_window", .key = ".attention.sliding_window"},
    {"sliding_window_pattern", .absent = 4},
    {0},
};

const Family olmo_family = {
    .load = load_olmo,
    .gguf = &(const GgufModel){.architecture = "olmo",
        .class_name = "OlmoForCausalLM",
        .names = {gguf_ends, gguf_qkv_paired, gguf_glu},
        .fields = {gguf_sizes, gguf_silu, fields_olmo},
        .tokenizer = {.pre = "olmo"}},
};

const Family olmo2_family = {
    .load = load_olmo2,
    .gguf = &(const GgufModel){.architecture = "olmo2",
        .class_name = "Olmo2ForCausalLM",
        .names = {gguf_ends, gguf_qkv, gguf_glu, names},
        .fields = {gguf_sizes, gguf_rms, gguf_silu}},
};

/* An OLMo 2 with a window. */
const Family olmo3_family = {
    .load = load_olmo3,
    .gguf = &(const GgufModel){.architecture = "olmo2",
        .with_key = ".attention.sliding_window",
        .class_name = "Olmo3ForCausalLM",
        .names = {gguf_ends, gguf_qkv, gguf_glu, names},
        .fields = {gguf_sizes, gguf_rms, gguf_silu, fields_windows}},
};
