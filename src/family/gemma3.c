/* Gemma 3, text: sandwich norms whose weights are stored minus one, RMS norms on q and k, five layers with a sliding
 * window and their own rotary base to one without. The multimodal files wrap it: text_config, language_model.
 * Reference: mlx_lm/models/gemma3_text.py, gemma3.py. */
#include "family/gguf/models.h"
#include "family/vision.h"

#include <math.h>

static const NormNames norms = {load_rms_plus_one, "input_layernorm", "post_attention_layernorm",
    "pre_feedforward_layernorm", "post_feedforward_layernorm"};

static void load_text(Loader *ld, Spec *spec, int heads, int kv_heads, int vocab, int outer_vocab) {
    const Sizes absent = {.hidden = 1152,
        .heads = heads,
        .kv_heads = kv_heads,
        .head_dim = 256,
        .intermediate_size = 6912,
        .layers = 26,
        .vocab = vocab,
        .eps = 1e-6};
    const Dims d = family_sizes(ld, spec, &absent);
    if (outer_vocab) spec->vocab = outer_vocab;
    spec->precise = true; /* 8 bits flip 4 in 320 clear greedy choices of the 270M, by up to 0.83 in logit */
    const float scale = 1 / sqrtf(load_positive_or(ld, "query_pre_attn_scalar", 256));
    spec->logit_softcap = load_number_or(ld, "final_logit_softcapping", 0);
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
    load_ignore(ld, "attn_logit_softcapping", "hidden_act", "tie_word_embeddings", NULL);
    load_scope(ld, "%s", "");
    const bool tied = !load_has(ld, "lm_head.weight");
    family_ends_as(ld, spec, &d, "model.embed_tokens", "model.norm", load_rms_plus_one, tied);
    spec->embedding_scale = bf16_to_f32(f32_to_bf16(sqrtf((float)d.hidden))); /* as the model was trained */
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

static void load(Loader *ld, Spec *spec) { load_text(ld, spec, 4, 1, 262144, 0); }

static void load_wrapper(Loader *ld, Spec *spec) {
    const int outer = load_int_or(ld, "vocab_size", 0);
    const int tokens = load_int_or(ld, "mm_tokens_per_image", 256);
    load_ignore(ld, "hidden_size", NULL);
    const LoadPlace root = load_place(ld);
    load_text_part(ld);
    load_ignore(ld, "mm_tokens_per_image", NULL);
    load_require(ld, load_number_or(ld, "final_logit_softcapping", 0) == 0,
        "final_logit_softcapping must be null: models with images do not compute it");
    load_text(ld, spec, 8, 4, 262208, outer);
    load_return(ld, &root);
    vision_load_gemma3(ld, spec, tokens);
}

const Family gemma3_family = {.load = load, .gguf = &gemma3_gguf};
const Family gemma3_wrapper_family = {.load = load_wrapper};
