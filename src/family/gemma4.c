/* Gemma 4: sandwich norms, layers with a window and without, each kind with its own heads and rotary embedding;
 * values are normalised, and in full layers of the large models they are the keys as projected. The last layers of the
 * small models attend to keys and values of earlier ones, and every layer adds an input of the token's own; 26B-A4B has
 * experts beside a feed-forward network. References: mlx_lm/models/gemma4_text.py, gemma4.py;
 * transformers/models/gemma4.
 */
#include "family/audio.h"
#include "family/gemma.h"
#include "family/gguf/models.h"
#include "family/vision.h"

#include <math.h>
#include <stdio.h>

/* What full layers have of their own, by the layers' numbers, as transformers saves it since its version 5. */
static void load_layer_config(Loader *ld, const Spec *spec, Gemma4 *s) {
    const LoadPlace root = load_place(ld);
    if (!load_has_field(ld, "per_layer_config")) return;
    load_enter(ld, "per_layer_config", "");
    const LoadPlace all = load_place(ld);
    for (int i = 0, found = 0; i < spec->layer_count; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        if (!load_has_field(ld, number)) continue;
        load_enter(ld, number, "");
        const int size = load_int_or(ld, "head_dim", s->d.head_dim);
        const int heads = load_int_or(ld, "num_key_value_heads", s->d.kv_heads);
        const bool same = found == 0 || (size == s->full_head_dim && heads == s->full_kv_heads);
        load_require(ld, same && !family_window(ld, &s->windows, i), "layer %d differs from others of its kind", i);
        s->full_head_dim = size;
        s->full_kv_heads = heads;
        found++;
        load_return(ld, &all);
    }
    load_return(ld, &root);
}

Gemma4 gemma4_config(Loader *ld, Spec *spec) {
    static const Sizes absent = {.hidden = 1536,
        .heads = 8,
        .kv_heads = 1,
        .head_dim = 256,
        .intermediate_size = 6144,
        .layers = 35,
        .vocab = 262144,
        .positions = 131072,
        .eps = 1e-6};
    Gemma4 s = {.d = family_sizes(ld, spec, &absent)};
    s.full_head_dim = load_int_or(ld, "global_head_dim", s.d.head_dim);
    s.k_is_v = load_bool_or(ld, "attention_k_eq_v", false);
    s.full_kv_heads = load_int_or(ld, "num_global_key_value_heads", s.d.kv_heads);
    s.full_kv_heads = s.k_is_v ? s.full_kv_heads : s.d.kv_heads;
    s.double_wide = load_bool_or(ld, "use_double_wide_mlp", true);
    s.input_width = load_count_or(ld, "hidden_size_per_layer_input", 256);
    s.windows = (Windows){.types = load_list(ld, "layer_types", spec->layer_count),
        .width = load_int_or(ld, "sliding_window", 512),
        .full_every = load_int_or(ld, "sliding_window_pattern", 5)};
    load_layer_config(ld, spec, &s);
    s.experts = gemma_experts(ld);
    load_require(ld, s.d.heads % s.full_kv_heads == 0 && s.full_head_dim <= ATTENTION_HEAD_MAX,
        "heads of full layers do not fit: num_global_key_value_heads %d, global_head_dim %d", s.full_kv_heads,
        s.full_head_dim);
    s.full_rope = load_rope(ld,
        &(RopeOptions){
            .head_dim = s.full_head_dim, .theta = 1e6, .layer_type = "full_attention", .proportional = 0.25});
    s.sliding_rope =
        load_rope(ld, &(RopeOptions){.head_dim = s.d.head_dim, .theta = 1e4, .layer_type = "sliding_attention"});
    load_expect_text(ld, "hidden_activation", "gelu_pytorch_tanh");
    load_expect_bool(ld, "attention_bias", false);
    s.spans = load_text_is(ld, "use_bidirectional_attention", "vision");
    load_require(ld, !load_text_is(ld, "use_bidirectional_attention", "all"),
        "use_bidirectional_attention \"all\" is not supported");
    load_ignore(ld, "use_bidirectional_attention", "global_partial_rotary_factor", "partial_rotary_factor", NULL);
    return s;
}

static void load_attention(Loader *ld, Spec *spec, Layer *layer, Gemma4 *s, int i) {
    const int window = family_window(ld, &s->windows, i);
    Dims d = s->d;
    d.head_dim = window ? d.head_dim : s->full_head_dim;
    d.kv_heads = window ? d.kv_heads : s->full_kv_heads;
    Component *component = gemma_attention(
        ld, spec, layer, i, &d, window ? s->sliding_rope : s->full_rope, window, !window && s->k_is_v, &s->sharing);
    if (s->spans && !window) component->attention.op.span_rule = SPANS_IGNORED;
}

static void load_ffn(Loader *ld, Spec *spec, Layer *layer, const Gemma4 *s, int i) {
    const int wide = s->double_wide && i >= s->sharing.from ? 2 : 1;
    const GluComponent glu =
        family_glu(ld, "mlp", s->d.hidden, wide * s->d.intermediate_size, (Activation){.kind = ACT_GELU_TANH}, false);
    Component *component = layer_add(spec, layer, s->experts.count ? COMPONENT_MOE : COMPONENT_GLU);
    if (s->experts.count)
        component->moe = gemma_moe(ld, &s->d, &s->experts, glu);
    else
        component->glu = glu;
    component->input_norm = load_rms(
        ld, s->experts.count ? "pre_feedforward_layernorm_2" : "pre_feedforward_layernorm", s->d.hidden, s->d.eps);
    component->output_norm = load_rms(ld, "post_feedforward_layernorm", s->d.hidden, s->d.eps);
}

void gemma4_layer(Loader *ld, Spec *spec, Gemma4 *s, int i) {
    Layer *layer = family_layer(ld, spec, i);
    load_attention(ld, spec, layer, s, i);
    load_ffn(ld, spec, layer, s, i);
    if (s->input_width) family_layer_input(ld, spec, layer, i, s->d.eps);
    const float *scalar = load_vector(ld, "layer_scalar", 1, 0);
    if (scalar) layer_add(spec, layer, COMPONENT_SCALE)->scale_factor = *scalar;
}

/* Returns whether tokens of an image see each other. */
static bool load_model(Loader *ld, Spec *spec, int outer_vocab) {
    Gemma4 s = gemma4_config(ld, spec);
    s.sharing = gemma_sharing(ld, spec, 20);
    if (outer_vocab) spec->vocab = outer_vocab;
    spec->precise = true; /* as Gemma 3 */
    spec->logit_softcap =
        load_null(ld, "final_logit_softcapping") ? 0 : load_positive_or(ld, "final_logit_softcapping", 30);
    const bool tied = load_bool_or(ld, "tie_word_embeddings", true);
    family_ends_as(ld, spec, &s.d, "model.embed_tokens", "model.norm", load_rms, tied);
    spec->embedding_scale = sqrtf((float)s.d.hidden);
    const int rows = load_int_or(ld, "vocab_size_per_layer_input", 262144);
    if (s.input_width) family_layer_inputs(ld, spec, s.input_width, rows, s.d.eps);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) gemma4_layer(ld, spec, &s, i);
    return s.spans;
}

static void load(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    const int outer = load_int_or(ld, "vocab_size", 0);
    load_ignore(ld, "pad_token_id", NULL);
    load_text_part(ld);
    const bool spans = load_model(ld, spec, outer);
    load_return(ld, &root);
    vision_load_gemma4(ld, spec, spans);
    audio_load_gemma4(ld, spec);
}

const Family gemma4_family = {.load = load, .gguf = &gemma4_gguf};
