/* Llama 2 and 3, Mistral, Ministral 3, Code World Model: grouped-query attention and SwiGLU, pre-norm. Reference:
 * mlx_lm/models/llama.py, which knows a sliding window only together with layer_types. Llama has none otherwise;
 * Mistral was trained with it in every layer (transformers/models/mistral). */
#include "family/family.h"
#include "family/gguf/models.h"

/* eps, theta: of a config that says none. */
static void load(Loader *ld, Spec *spec, bool window_everywhere, double eps, double theta) {
    const Dims d = family_sizes(ld, spec, &(Sizes){.eps = eps});
    const bool bias = load_bool_or(ld, "attention_bias", false), mlp_bias = load_bool_or(ld, "mlp_bias", false);
    const Json *types = load_list(ld, "layer_types", spec->layer_count);
    const bool window = types || window_everywhere;
    const Windows windows = {.types = types, .width = window ? load_int_or(ld, "sliding_window", 0) : 0};
    const Rope *rope = load_rope(ld,
        &(RopeOptions){
            .head_dim = d.head_dim, .theta = theta, .interleaved = load_bool_or(ld, "rope_traditional", false)});
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

void llama_load(Loader *ld, Spec *spec) { load(ld, spec, false, 1e-6, 10000); }

void ministral3_load(Loader *ld, Spec *spec) {
    const QueryScaling scaling = load_query_scaling(ld);
    load(ld, spec, false, 1e-5, 1e6);
    for (int i = 0; i < spec->layer_count; i++) spec->layers[i].components[0].attention.query_scaling = scaling;
}

void mistral_load(Loader *ld, Spec *spec) { load(ld, spec, true, 1e-6, 10000); }

/* As Mistral, but for its defaults; and each layer's kind must be said. */
static void load_cwm(Loader *ld, Spec *spec) {
    load_require(ld, load_has_field(ld, "layer_types"), "layer_types is missing");
    load(ld, spec, true, 1e-5, 1e6);
}

const Family llama_family = {.load = llama_load, .gguf = &llama_gguf};
const Family ministral3_family = {.load = ministral3_load, .gguf = &ministral3_gguf};
const Family mistral_family = {.load = mistral_load, .gguf = &mistral_gguf};
const Family ministral_family = {.load = mistral_load};
const Family cwm_family = {.load = load_cwm};
