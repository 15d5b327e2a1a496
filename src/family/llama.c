/* Llama 2 and 3, Mistral, Ministral 3: grouped-query attention and SwiGLU, pre-norm. Reference: mlx_lm/models/llama.py,
 * which knows a sliding window only together with layer_types. Llama has none otherwise; Mistral was trained with it in
 * every layer (transformers/models/mistral). */
#include "family/gguf_models.h"
#include "family/vision.h"

static void load(Loader *ld, Spec *spec, bool window_everywhere) {
    const Dims d = family_dims(ld, spec);
    const bool bias = load_bool_or(ld, "attention_bias", false), mlp_bias = load_bool_or(ld, "mlp_bias", false);
    const Json *types = load_list(ld, "layer_types", spec->layer_count);
    const bool window = types || window_everywhere;
    const Windows windows = {.types = types, .width = window ? load_int_or(ld, "sliding_window", 0) : 0};
    const Rope *rope = load_rope(ld,
        &(RopeOptions){
            .head_dim = d.head_dim, .theta = 10000, .interleaved = load_bool_or(ld, "rope_traditional", false)});
    load_expect_text(ld, "hidden_act", "silu");
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++)
        family_block(ld, spec, i,
            &(Block){.dims = &d,
                .rope = rope,
                .window = family_window(ld, &windows, i),
                .bias = bias,
                .out_bias = bias,
                .mlp_bias = mlp_bias});
}

void llama_load(Loader *ld, Spec *spec) { load(ld, spec, false); }

static void ministral3_load(Loader *ld, Spec *spec) {
    const QueryScaling scaling = load_query_scaling(ld);
    load(ld, spec, false);
    for (int i = 0; i < spec->layer_count; i++) spec->layers[i].components[0].attention.query_scaling = scaling;
}

static void mistral_load(Loader *ld, Spec *spec) { load(ld, spec, true); }

/* The text model of Mistral Small 3, Ministral 3, Devstral, Pixtral. */
static void load_mistral_text(Loader *ld, Spec *spec) {
    load_text_part(ld);
    if (load_text_is(ld, "model_type", "ministral3"))
        ministral3_load(ld, spec);
    else if (load_text_is(ld, "model_type", "mistral4"))
        mistral4_load(ld, spec);
    else
        mistral_load(ld, spec);
}

/* merge: 0, or the default of spatial_merge_size. */
static void load_with_images(Loader *ld, Spec *spec, int merge, bool bias) {
    const LoadPlace root = load_place(ld);
    if (merge) merge = load_int_or(ld, "spatial_merge_size", merge);
    bias = load_bool_or(ld, "multimodal_projector_bias", bias);
    load_expect_text(ld, "projector_hidden_act", "gelu");
    load_expect_int(ld, "vision_feature_layer", -1);
    load_ignore(ld, "vision_feature_select_strategy", "image_seq_length", NULL);
    load_mistral_text(ld, spec);
    load_return(ld, &root);
    vision_load_pixtral(ld, spec, merge, bias);
}

static void mistral3_load(Loader *ld, Spec *spec) { load_with_images(ld, spec, 2, false); }
static void pixtral_load(Loader *ld, Spec *spec) { load_with_images(ld, spec, 0, true); }

/* Idefics 3 and SmolVLM: a llama with images. */
static void idefics3_load(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    const int merge = load_int_or(ld, "scale_factor", 2);
    load_ignore(ld, "vocab_size", "pad_token_id", NULL);
    load_text_part(ld);
    llama_load(ld, spec);
    load_return(ld, &root);
    vision_load_idefics3(ld, spec, merge);
}

const Family idefics3_family = {.load = idefics3_load};
const Family ministral3_family = {.load = ministral3_load, .gguf = &ministral3_gguf};
const Family mistral3_family = {.load = mistral3_load};
const Family pixtral_family = {.load = pixtral_load};

const Family llama_family = {
    .load = llama_load,
    .gguf = &(const GgufModel){.architecture = "llama",
        .class_name = "LlamaForCausalLM",
        .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu},
        .fields = {gguf_sizes, gguf_rms, gguf_llama},
        .other = &internlm2_gguf},
};

/* In GGUF a llama too; only the window tells, and only Mistral's model applies it to every layer. */
static const GgufField window[] = {
    {"sliding_window", .key = ".attention.sliding_window"},
    {0},
};

const Family mistral_family = {
    .load = mistral_load,
    .gguf = &(const GgufModel){.architecture = "llama",
        .with_key = ".attention.sliding_window",
        .class_name = "MistralForCausalLM",
        .names = {gguf_ends, gguf_norms, gguf_qkv_paired, gguf_glu},
        .fields = {gguf_sizes, gguf_rms, gguf_llama, window}},
};
