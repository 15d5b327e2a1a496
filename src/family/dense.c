/* Loads what a Dense describes. */
#include "family/dense.h"

static bool choose(Loader *ld, const DenseChoice *choice) {
    return choice->field ? load_bool_or(ld, choice->field, choice->absent) : choice->absent;
}

static Dims load_dims(Loader *ld, Spec *spec, const Dense *dense) {
    const Sizes absent = {.head_dim = dense->head_dim, .eps = dense->eps, .eps_field = dense->eps_field};
    Dims d = family_sizes(ld, spec, &absent);
    d.intermediate_size /= dense->inner_divisor ? dense->inner_divisor : 1;
    return d;
}

static void load_ends(Loader *ld, Spec *spec, const Dense *dense, const Dims *d, const NormNames *norms) {
    load_scope(ld, "%s", "");
    const bool absent = dense->tied || !load_has(ld, "lm_head.weight");
    const bool tied = load_bool_or(ld, "tie_word_embeddings", absent);
    family_ends_as(ld, spec, d, "model.embed_tokens", "model.norm", norms->load, tied);
}

static Windows load_windows(Loader *ld, const Spec *spec, const Dense *dense) {
    Windows windows = {.types = load_list(ld, "layer_types", spec->layer_count), .full_every = dense->full_every};
    const bool used = windows.types || dense->window_everywhere || dense->full_every;
    if (dense->full_every) {
        windows.pattern = load_string(ld, "sliding_window_pattern");
        if (!windows.pattern.size) windows.full_every = load_int_or(ld, "sliding_window_pattern", dense->full_every);
    }
    if (used) windows.width = load_int_or(ld, "sliding_window", load_null(ld, "sliding_window") ? 0 : dense->window);
    return windows;
}

/* q, k and v in one matrix, and o. */
static Component load_fused(Loader *ld, const Block *b) {
    Component component = {.kind = COMPONENT_ATTENTION,
        .attention = family_fused_attention(
            ld, b->dims, "self_attn.qkv_proj", "self_attn.o_proj", b->rope, b->bias, b->out_bias)};
    component.attention.op.window = b->window;
    return component;
}

static Component load_ffn(Loader *ld, const Dense *dense, const Dims *d, bool bias) {
    const int hidden = d->hidden, inner = d->intermediate_size;
    const Activation activation = dense->activation;
    if (dense->ffn == DENSE_MLP) return family_mlp(ld, "mlp.up_proj", "mlp.down_proj", hidden, inner, activation, bias);
    return (Component){.kind = COMPONENT_GLU,
        .glu = dense->ffn == DENSE_GLU
            ? family_glu(ld, "mlp", hidden, inner, activation, bias)
            : family_fused_glu(ld, "mlp.gate_up_proj", "mlp.down_proj", hidden, inner, activation, bias)};
}

Dims dense_load(Loader *ld, Spec *spec, const Dense *dense) {
    if (dense->fields) load_field_names(ld, dense->fields);
    if (dense->names) load_module_names(ld, dense->names);
    const Dims d = load_dims(ld, spec, dense);
    const NormNames *norms = dense->norms ? dense->norms : &norms_usual;
    const bool bias = choose(ld, &dense->qkv_bias), out_bias = choose(ld, &dense->out_bias);
    const bool mlp_bias = choose(ld, &dense->mlp_bias), qk_norm = dense->q_norm && choose(ld, &dense->qk_norm);
    const Windows windows = load_windows(ld, spec, dense);
    RopeOptions options = {.head_dim = d.head_dim,
        .dims = dense->rotary_factor > 0 ? load_rotary_dims(ld, d.head_dim, dense->rotary_factor) : 0,
        .theta = dense->theta > 0 ? dense->theta : 10000,
        .interleaved = load_bool_or(ld, "rope_traditional", dense->interleaved),
        .alpha = dense->alpha,
        .mrope = dense->mrope,
        .layer_type = "full_attention"};
    const Rope *rope = load_rope(ld, &options), *plain = rope;
    options.unscaled = true;
    options.layer_type = "sliding_attention";
    if (dense->window_unscaled) plain = load_rope(ld, &options);
    load_expect_text(ld, dense->activation_field ? dense->activation_field : "hidden_act",
        dense->activation_text ? dense->activation_text : "silu");
    for (size_t i = 0; i < COUNT_OF(dense->ignored) && dense->ignored[i]; i++) load_ignore(ld, dense->ignored[i], NULL);
    load_ends(ld, spec, dense, &d, norms);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const int window = family_window(ld, &windows, i);
        Block block = {.dims = &d,
            .norms = norms,
            .rope = window                               ? plain
                : dense->full_unrotated && windows.width ? NULL
                                                         : rope,
            .window = window,
            .bias = bias,
            .out_bias = out_bias,
            .q_norm = qk_norm ? dense->q_norm : NULL,
            .k_norm = qk_norm ? dense->k_norm : NULL,
            .norm_full = dense->norm_full};
        Component attention, ffn = load_ffn(ld, dense, &d, mlp_bias);
        ffn.parallel = dense->parallel;
        block.ffn = &ffn;
        if (dense->fused_qkv) {
            attention = load_fused(ld, &block);
            block.attention = &attention;
        }
        Layer *layer = family_block(ld, spec, i, &block);
        layer->components[0].attention.op.norm_last = qk_norm && dense->norm_last;
    }
    return d;
}
