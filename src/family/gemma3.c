/* Gemma 3, text: sandwich norms whose weights are stored minus one, RMS norms on q and k, five layers with a sliding
 * window and their own rotary base to one without. The multimodal files wrap it: text_config, language_model.
 * Reference: mlx_lm/models/gemma3_text.py, gemma3.py. */
#include "family/vision.h"

#include <math.h>

static const NormNames norms = {load_rms_plus_one, "input_layernorm", "post_attention_layernorm",
    "pre_feedforward_layernorm", "post_feedforward_layernorm"};

static void load_text(Loader *ld, Spec *spec, int heads, int kv_heads, int vocab) {
    const Dims d = family_dims_or(ld,
        &(Dims){.hidden = 1152,
            .heads = heads,
            .kv_heads = kv_heads,
            .head_dim = 256,
            .intermediate_size = 6912,
            .eps = 1e-6F});
    spec->precise = true; /* 8 bits flip 4 in 320 clear greedy choices of the 270M, by up to 0.83 in logit */
    spec->hidden = d.hidden;
    spec->layer_count = load_int_or(ld, "num_hidden_layers", 26);
    spec->vocab = vocab;
    spec->positions = load_int_or(ld, "max_position_embeddings", 32768);
    const float scale = 1 / sqrtf(load_positive_or(ld, "query_pre_attn_scalar", 256));
    const Windows windows = {.types = load_list(ld, "layer_types", spec->layer_count),
        .width = load_int_or(ld, "sliding_window", 512),
        .full_every = load_int_or(ld, "sliding_window_pattern", load_int_or(ld, "_sliding_window_pattern", 6))};
    const RopeOptions full = {.head_dim = d.head_dim, .theta = 1e6, .layer_type = "full_attention"};
    const RopeOptions sliding = {.head_dim = d.head_dim,
        .theta_field = "rope_local_base_freq",
        .theta = 1e4,
        .unscaled = true,
        .layer_type = "sliding_attention"};
    const Rope *full_rope = load_rope(ld, &full), *sliding_rope = load_rope(ld, &sliding);
    load_expect_text(ld, "hidden_activation", "gelu_pytorch_tanh");
    load_expect_bool(ld, "attention_bias", false);
    load_expect_bool(ld, "use_bidirectional_attention", false);
    load_ignore(ld, "hidden_act", "tie_word_embeddings", NULL);

    load_scope(ld, "%s", "");
    spec->embedding = load_linear(ld, "model.embed_tokens", spec->vocab, d.hidden, false);
    spec->embedding_scale = bf16_to_f32(f32_to_bf16(sqrtf((float)d.hidden))); /* as the model was trained */
    spec->final_norm = load_rms_plus_one(ld, "model.norm", d.hidden, d.eps);
    family_head(ld, spec, &d, !load_has(ld, "lm_head.weight"));
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const int window = family_window(ld, &windows, i);
        Layer *layer = family_block(ld, spec, i,
            &(Block){.dims = &d,
                .norms = &norms,
                .rope = window ? sliding_rope : full_rope,
                .window = window,
                .q_norm = "q_norm",
                .k_norm = "k_norm",
                .activation = {.kind = ACT_GELU_TANH}});
        layer->components[0].attention.op.scale = scale;
    }
}

static void load(Loader *ld, Spec *spec) { load_text(ld, spec, 4, 1, load_int_or(ld, "vocab_size", 262144)); }

static void load_wrapper(Loader *ld, Spec *spec) {
    const int outer = load_int_or(ld, "vocab_size", 0);
    const int tokens = load_int_or(ld, "mm_tokens_per_image", 256);
    load_ignore(ld, "hidden_size", NULL);
    const LoadPlace root = load_place(ld);
    load_text_part(ld);
    load_ignore(ld, "mm_tokens_per_image", NULL);
    const int vocab = load_int_or(ld, "vocab_size", 262208);
    load_text(ld, spec, 8, 4, outer ? outer : vocab);
    load_return(ld, &root);
    vision_load_gemma3(ld, spec, tokens);
}

static const GgufName names[] = {
    {"output_norm", "model.norm", GGUF_PLUS_ONE},
    {"blk.*.attn_norm", "model.layers.*.input_layernorm", GGUF_PLUS_ONE},
    {"blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm", GGUF_PLUS_ONE},
    {"blk.*.ffn_norm", "model.layers.*.pre_feedforward_layernorm", GGUF_PLUS_ONE},
    {"blk.*.post_ffw_norm", "model.layers.*.post_feedforward_layernorm", GGUF_PLUS_ONE},
    {"blk.*.attn_q_norm", "model.layers.*.self_attn.q_norm", GGUF_PLUS_ONE},
    {"blk.*.attn_k_norm", "model.layers.*.self_attn.k_norm", GGUF_PLUS_ONE},
    {0},
};

/* The metadata lacks the query scale: the head's size, but in the largest model, which goes by hidden size per head. */
static double query_scalar(const GgufSizes *sizes) {
    enum { LAYERS_OF_27B = 62 };
    return (double)(sizes->layers == LAYERS_OF_27B ? sizes->hidden / sizes->heads : sizes->head_dim);
}

static const GgufField fields[] = {
    {"hidden_activation", GGUF_FIELD_TEXT, .text = "gelu_pytorch_tanh"},
    {"head_dim", .key = ".attention.key_length", .compute = gguf_head_dim},
    {"query_pre_attn_scalar", .compute = query_scalar},
    {"rope_local_base_freq", GGUF_FIELD_NUMBER, .key = ".rope.freq_base_swa", .absent = 10000},
    {"sliding_window", .key = ".attention.sliding_window"},
    {"sliding_window_pattern", .key = ".attention.sliding_window_pattern", .absent = 6},
    {0},
};

const Family gemma3_family = {
    .load = load,
    .gguf = &(const GgufModel){.architecture = "gemma3",
        .class_name = "Gemma3ForCausalLM",
        .names = {gguf_ends, gguf_qkv, gguf_glu, names},
        .fields = {gguf_sizes, gguf_rms, fields},
        .tokenizer = {.late_export = true, .no_space_prefix = true}},
};

const Family gemma3_wrapper_family = {.load = load_wrapper};
