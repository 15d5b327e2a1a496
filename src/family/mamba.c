/* Mamba and Falcon-Mamba: Mamba-1 alone; Falcon's normalises time step, B and C. References: mlx_lm/models/mamba.py;
 * the epsilon of the norms, which is the config's: transformers/models/mamba, falcon_mamba. */
#include "family/gguf/models.h"
#include "family/recurrent.h"

static void load_normalised(Loader *ld, Spec *spec, bool normalised) {
    const Dims d = {.hidden = load_int(ld, "hidden_size"), .eps = load_positive_or(ld, "layer_norm_epsilon", 1e-5)};
    spec->hidden = d.hidden;
    spec->layer_count = load_int(ld, "num_hidden_layers");
    spec->vocab = load_int(ld, "vocab_size");
    spec->positions = load_int_or(ld, "max_position_embeddings", 1 << 20); /* it has none */
    const int expand = load_int_or(ld, "expand", 2);
    const bool wide = (int64_t)expand * d.hidden > MATRIX_COLS_MAX;
    load_require(ld, !wide, "expand is %d, at most %d channels can be", expand, MATRIX_COLS_MAX);
    const Mamba1 sizes = {.hidden = d.hidden,
        .inner = load_int_or(ld, "intermediate_size", wide ? d.hidden : expand * d.hidden),
        .state = load_int_or(ld, "state_size", 16),
        .rank = family_mamba_rank(ld, "time_step_rank", d.hidden),
        .taps = load_int_or(ld, "conv_kernel", 4),
        .bias = load_bool_or(ld, "use_bias", false),
        .conv_bias = load_bool_or(ld, "use_conv_bias", true),
        .norms = normalised || load_bool_or(ld, "use_bcdt_rms", false),
        .eps = load_positive_or(ld, "mixer_rms_eps", 1e-6)};
    load_expect_text(ld, "hidden_act", "silu");
    load_ignore(ld, "chunk_size", "d_inner", "d_model", "fused_add_norm", "n_layer", "pad_vocab_size_multiple",
        "rescale_prenorm_residual", "residual_in_fp32", "rms_norm", "ssm_cfg", "time_step_floor",
        "time_step_init_scheme", "time_step_max", "time_step_min", "time_step_scale", "use_associative_scan",
        "use_mambapy", "use_falcon_mambapy", NULL);
    load_body(ld, "backbone.");
    family_ends_named(ld, spec, &d, "model.embeddings", "model.norm_f");
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        Layer *layer = family_layer(ld, spec, i);
        const Component mixer = family_mamba1(ld, "mixer", &sizes);
        family_add(spec, layer, &mixer)->input_norm = load_rms(ld, "norm", d.hidden, d.eps);
    }
}

static void load(Loader *ld, Spec *spec) { load_normalised(ld, spec, false); }
static void load_falcon(Loader *ld, Spec *spec) { load_normalised(ld, spec, true); }

const Family mamba_family = {.load = load, .gguf = &mamba_gguf};
const Family falcon_mamba_family = {.load = load_falcon, .gguf = &falcon_mamba_gguf};
