/* Mamba-2 alone (Codestral Mamba). Reference: transformers/models/mamba2, whose norm runs over the groups of the state
 * as in training; mlx_lm/models/mamba2.py has one over all, with an epsilon of its own before each layer. */
#include "family/gguf/models.h"
#include "family/recurrent.h"

static void load(Loader *ld, Spec *spec) {
    const Dims d = {.hidden = load_int(ld, "hidden_size"), .eps = load_positive_or(ld, "layer_norm_epsilon", 1e-5)};
    spec->hidden = d.hidden;
    spec->layer_count = load_int(ld, "num_hidden_layers");
    spec->vocab = load_int(ld, "vocab_size");
    spec->positions = load_int_or(ld, "max_position_embeddings", 1 << 20); /* it has none */
    Mamba2 m = {.hidden = d.hidden,
        .heads = load_int(ld, "num_heads"),
        .head_dim = load_int(ld, "head_dim"),
        .state = load_int_or(ld, "ssm_state_size", load_int_or(ld, "state_size", 128)),
        .groups = load_int_or(ld, "n_groups", 8),
        .taps = load_int_or(ld, "conv_kernel", 4),
        .bias = load_bool_or(ld, "use_bias", false),
        .conv_bias = load_bool_or(ld, "use_conv_bias", true),
        .eps = d.eps};
    m.out_bias = m.bias;
    family_mamba2_check(ld, &m);
    m.norm_group = (int64_t)m.heads * m.head_dim / m.groups;
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "rms_norm", true);
    load_ignore(ld, "chunk_size", "expand", "intermediate_size", "norm_before_gate", "rescale_prenorm_residual",
        "residual_in_fp32", "time_step_floor", "time_step_max", "time_step_min", "time_step_rank", NULL);
    load_body(ld, "backbone.");
    family_ends_named(ld, spec, &d, "model.embeddings", "model.norm_f");
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        Layer *layer = family_layer(ld, spec, i);
        const Component mixer = family_mamba2(ld, "mixer", &m);
        family_add(spec, layer, &mixer)->input_norm = load_rms(ld, "norm", d.hidden, d.eps);
    }
}

const Family mamba2_family = {.load = load, .gguf = &mamba2_gguf};
