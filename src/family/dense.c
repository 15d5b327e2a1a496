/* Loads what a Dense describes. */
#include "family/dense.h"

static bool choose(Loader *ld, const DenseChoice *choice) {
    return choice->field ? load_bool_or(ld, choice->field, choice->absent) : choice->absent;
}

static Dims load_dims(Loader *ld, Spec *spec, const Dense *dense) {
    const char *eps = dense->eps_field ? dense->eps_field : "rms_norm_eps";
    Dims d = {.hidden = load_int(ld, "hidden_size"),
        .heads = load_int(ld, "num_attention_heads"),
        .head_dim = load_int_or(ld, "head_dim", dense->head_dim),
        .eps = dense->eps > 0 ? load_positive_or(ld, eps, dense->eps) : load_positive(ld, eps)};
    d.kv_heads = load_int_or(ld, "num_key_value_heads", d.heads);
    d.intermediate_size = load_int(ld, "intermediate_size") / (dense->inner_divisor ? dense->inner_divisor : 1);
    spec->hidden = d.hidden;
    spec->layer_count = load_int(ld, "num_hidden_layers");
    spec->vocab = load_int(ld, "vocab_size");
    spec->positions = load_int_or(ld, "max_position_embeddings", 32768);
    family_check(ld, &d);
    return d;
}

static void load_ends(Loader *ld, Spec *spec, const Dense *dense, const Dims *d, const NormNames *norms) {
    load_scope(ld, "%s", "");
    spec->embedding = load_linear(ld, "model.embed_tokens", spec->vocab, d->hidden, false);
    spec->final_norm = norms->load(ld, "model.norm", d->hidden, d->eps);
    const bool absent = dense->tied || !load_has(ld, "lm_head.weight");
    family_head(ld, spec, d, load_bool_or(ld, "tie_word_embeddings", absent));
}

static Windows load_windows(Loader *ld, const Spec *spec, const Dense *dense) {
    Windows windows = {.types = load_list(ld, "layer_types", spec->layer_count), .full_every = dense->full_every};
    const bool used = windows.types || dense->window_everywhere || dense->full_every;
    if (dense->full_every) {
        windows.pattern = load_string(ld, "sliding_window_pattern");
        if (!windows.pattern.size) windows.full_every = load_int_or(ld, "sliding_window_pattern", dense->full_every);
    }
    if (used) windows.width = load_int_or(ld, "sliding_window", 0);
    return windows;
}

/* q, k and v in one matrix, and o. */
static Component load_fused(Loader *ld, const Block *b) {
    Component component = {.kind = COMPONENT_ATTENTION,
        .attention = family_fused_attention(ld, b->dims, "self_attn.qkv_proj", b->rope, b->bias)};
    component.attention.o =
        load_linear(ld, "self_attn.o_proj", b->dims->hidden, (int64_t)b->dims->heads * b->dims->head_dim, b->out_bias);
    component.attention.op.window = b->window;
    return component;
}

static Component load_ffn(Loader *ld, const Dense *dense, const Dims *d, bool bias) {
    const int inner = d->intermediate_size;
    if (dense->ffn == DENSE_MLP)
        return (Component){.kind = COMPONENT_MLP,
            .mlp = {.up = load_linear(ld, "mlp.up_proj", inner, d->hidden, bias),
                .down = load_linear(ld, "mlp.down_proj", d->hidden, inner, bias),
                .activation = dense->activation}};
    if (dense->ffn == DENSE_GLU)
        return (Component){
            .kind = COMPONENT_GLU, .glu = family_glu(ld, "mlp", d->hidden, inner, dense->activation, bias)};
    const Weight both = load_linear(ld, "mlp.gate_up_proj", 2 * (int64_t)inner, d->hidden, bias);
    return (Component){.kind = COMPONENT_GLU,
        .glu = {.gate = load_part(&both, 0, inner),
            .up = load_part(&both, inner, inner),
            .down = load_linear(ld, "mlp.down_proj", d->hidden, inner, bias),
            .activation = dense->activation}};
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
