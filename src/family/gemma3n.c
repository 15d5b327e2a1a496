/* Gemma 3n: several streams of the residual (AltUp), a learned low-rank residual beside attention (LAuReL), an
 * input of the token's own in every layer, sparse activations in the first layers; the last layers attend to keys and
 * values of earlier ones. References: transformers/models/gemma3n (what it was trained as), mlx_lm/models/gemma3n.py,
 * which clips coefficients that transformers clips in training only. */
#include "family/audio.h"
#include "family/gemma.h"
#include "family/gguf/models.h"

#include <math.h>

typedef struct Gemma3n {
    Dims d;
    int rank, input_width;
    bool correct_scale;
    Windows windows;
    const Rope *full_rope, *sliding_rope;
    const Json *sparsity; /* part of the gate's values that count as 0, for each layer */
    GemmaSharing sharing;
} Gemma3n;

static Gemma3n load_config(Loader *ld, Spec *spec) {
    static const Sizes absent = {.hidden = 2048,
        .heads = 8,
        .kv_heads = 2,
        .head_dim = 256,
        .intermediate_size = SIZE_OWN,
        .layers = 35,
        .vocab = 262400,
        .eps = 1e-6};
    Gemma3n s = {.d = family_sizes(ld, spec, &absent),
        .rank = load_int_or(ld, "laurel_rank", 64),
        .input_width = load_int_or(ld, "hidden_size_per_layer_input", 256),
        .correct_scale = load_bool_or(ld, "altup_correct_scale", true)};
    s.d.intermediate_size = load_int_at(ld, "intermediate_size", 0, 16384);
    spec->precise = true; /* as Gemma 3 */
    spec->logit_softcap = load_positive_or(ld, "final_logit_softcapping", 30);
    spec->altup.streams = load_int_or(ld, "altup_num_inputs", 4);
    spec->altup.active = load_count_or(ld, "altup_active_idx", 0);
    load_require(ld, spec->altup.streams <= STREAMS_MAX && spec->altup.active < spec->altup.streams,
        "altup_num_inputs is %d, at most %d can be, altup_active_idx is %d", spec->altup.streams, STREAMS_MAX,
        spec->altup.active);
    s.sharing = gemma_sharing(ld, spec, 15);
    s.sparsity = load_list(ld, "activation_sparsity_pattern", spec->layer_count);
    s.windows = (Windows){.types = load_list(ld, "layer_types", spec->layer_count),
        .width = load_int_or(ld, "sliding_window", 512),
        .full_every = 5};
    s.full_rope = load_rope(ld, &(RopeOptions){.head_dim = s.d.head_dim, .theta = 1e6, .layer_type = "full_attention"});
    s.sliding_rope = load_rope(ld,
        &(RopeOptions){.head_dim = s.d.head_dim,
            .theta_field = "rope_local_base_freq",
            .theta = 1e4,
            .unscaled = true,
            .layer_type = "sliding_attention"});
    load_expect_text(ld, "hidden_activation", "gelu_pytorch_tanh");
    load_expect_bool(ld, "attention_bias", false);
    load_ignore(ld, "altup_coef_clip", NULL);
    return s;
}

/* The standard normal distribution's quantile, by Newton's method from 0, which approaches it from one side. */
static double normal_quantile(double part) {
    double x = 0;
    for (int i = 0; i < 100; i++) x -= (0.5 * erfc(-x / sqrt(2)) - part) * sqrt(2 * acos(-1)) * exp(x * x / 2);
    return x;
}

static double sparsity_of(Loader *ld, const Spec *spec, const Gemma3n *s, int i) {
    enum { SPARSE_LAYERS = 10 };
    if (!s->sparsity) return i < SPARSE_LAYERS && spec->layer_count > SPARSE_LAYERS ? 0.95 : 0;
    const Json *item = family_item(s->sparsity, i);
    const double part = json_is_number(item) ? json_number(item) : -1;
    const bool good = part >= 0 && part <= 0.9999;
    load_require(ld, good, "activation_sparsity_pattern[%d] must be from 0 to 0.9999", i);
    return good ? part : 0;
}

/* What predicting and correcting have in common. */
static AltUpComponent load_altup(Loader *ld, const Spec *spec, const Gemma3n *s) {
    return (AltUpComponent){.router = load_linear(ld, "altup.modality_router", spec->altup.streams, s->d.hidden, false),
        .router_norm = load_rms_times(ld, "altup.router_norm.weight", s->d.hidden, s->d.eps, 1 / (float)s->d.hidden)};
}

static void load_layer(Loader *ld, Spec *spec, Gemma3n *s, int i) {
    const int n = spec->altup.streams, hidden = s->d.hidden, window = family_window(ld, &s->windows, i);
    const int inner = load_int_at(ld, "intermediate_size", i, s->d.intermediate_size);
    const double sparsity = sparsity_of(ld, spec, s, i);
    Layer *layer = family_layer(ld, spec, i);
    AltUpComponent altup = load_altup(ld, spec, s);
    altup.coefficients = load_linear(ld, "altup.prediction_coefs", n * n, n, false);
    layer_add(spec, layer, COMPONENT_ALTUP_PREDICT)->altup = altup;
    gemma_attention(ld, spec, layer, i, &s->d, window ? s->sliding_rope : s->full_rope, window, false, &s->sharing);
    Component *laurel = layer_add(spec, layer, COMPONENT_LAUREL);
    laurel->laurel = (LaurelComponent){.left = load_linear(ld, "laurel.linear_left", s->rank, hidden, false),
        .right = load_linear(ld, "laurel.linear_right", hidden, s->rank, false)};
    laurel->output_norm = load_rms(ld, "laurel.post_laurel_norm", hidden, s->d.eps);
    laurel->parallel = true;
    layer_add(spec, layer, COMPONENT_SCALE)->scale_factor = sqrtf(0.5f);
    Component *ffn = layer_add(spec, layer, COMPONENT_GLU);
    ffn->glu = family_glu(ld, "mlp", hidden, inner, (Activation){.kind = ACT_GELU_TANH}, false);
    ffn->glu.sparse = sparsity > 0;
    ffn->glu.cutoff = sparsity > 0 ? (float)normal_quantile(sparsity) : 0;
    ffn->input_norm = load_rms(ld, "pre_feedforward_layernorm", hidden, s->d.eps);
    ffn->output_norm = load_rms(ld, "post_feedforward_layernorm", hidden, s->d.eps);
    altup.coefficients = load_linear(ld, "altup.correction_coefs", n, n, false);
    const float *output_scale = load_vector(ld, "altup.correct_output_scale", hidden, 0);
    if (s->correct_scale) altup.output_scale = output_scale;
    layer_add(spec, layer, COMPONENT_ALTUP_CORRECT)->altup = altup;
    family_layer_input(ld, spec, layer, i, s->d.eps);
}

static void load(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    load_ignore(ld, "vision_soft_tokens_per_image", NULL);
    load_text_part(ld);
    Gemma3n s = load_config(ld, spec);
    const int rows = load_int_or(ld, "vocab_size_per_layer_input", 262144), others = spec->altup.streams - 1;
    const bool tied = load_bool_or(ld, "tie_word_embeddings", true);
    family_ends_as(ld, spec, &s.d, "model.embed_tokens", "model.norm", load_rms, tied);
    spec->embedding_scale = sqrtf((float)s.d.hidden);
    spec->altup.expand = load_numbered(ld, "model.altup_projections.%d", others, s.d.hidden, s.d.hidden);
    spec->altup.merge = load_numbered(ld, "model.altup_unembed_projections.%d", others, s.d.hidden, s.d.hidden);
    family_layer_inputs(ld, spec, s.input_width, rows, s.d.eps);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) load_layer(ld, spec, &s, i);
    load_return(ld, &root);
    audio_load_gemma3n(ld, spec);
}

const Family gemma3n_family = {.load = load, .gguf = &gemma3n_gguf};
