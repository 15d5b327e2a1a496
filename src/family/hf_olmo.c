/* OLMo under the names of its publisher's own code (config.json with d_model): one matrix for q, k and v, one for up
 * and gate, layer norms without weights. References: mlx_lm/models/olmo.py; olmo/model.py and olmo/config.py of
 * allenai/OLMo; renamed, transformers/models/olmo (tools/oracle). */
#include "family/family.h"

static const Norm *load_plain(Loader *ld, const char *name, int64_t width, float eps) {
    return load_layer_norm(ld, NULL, width, eps);
}

static Dims load_dims(Loader *ld, Spec *spec) {
    Dims d = {.hidden = load_int(ld, "d_model"), .heads = load_int(ld, "n_heads"), .eps = 1e-5f};
    const int kv_heads = load_bool_or(ld, "multi_query_attention", false) ? 1 : d.heads;
    const int ratio = load_int_or(ld, "mlp_ratio", 4);
    d.kv_heads = load_int_or(ld, "n_kv_heads", kv_heads);
    const int both = load_int_or(ld, "mlp_hidden_size", 0); /* up and gate together */
    load_require(ld, both || ratio <= MATRIX_COLS_MAX / d.hidden, "mlp_ratio is %d, too much for d_model", ratio);
    d.intermediate_size = (both || ratio > MATRIX_COLS_MAX / d.hidden ? both : ratio * d.hidden) / 2;
    load_require(ld, d.intermediate_size > 0, "mlp_hidden_size must be at least 2");
    spec->hidden = d.hidden;
    spec->layer_count = load_int(ld, "n_layers");
    spec->vocab = load_int_or(ld, "embedding_size", load_int(ld, "vocab_size"));
    spec->positions = load_int_or(ld, "max_sequence_length", 2048);
    family_check(ld, &d);
    return d;
}

static void check_fields(Loader *ld) {
    static const char *const absent[] = {"alibi", "attention_layer_norm", "include_bias", "bias_for_layer_norm",
        "layer_norm_with_affine", "scale_logits", "attention_layer_norm_with_affine"};
    for (size_t i = 0; i < COUNT_OF(absent); i++) load_expect_bool(ld, absent[i], false);
    load_expect_text(ld, "activation_type", "swiglu");
    load_expect_text(ld, "block_type", "sequential");
    load_expect_text(ld, "layer_norm_type", "default");
    load_expect_bool(ld, "rope", true);
    load_ignore(ld, "alibi_bias_max", "attention_dropout", "block_group_size", "embedding_dropout", "flash_attention",
        "residual_dropout", "rope_full_precision", "precision", "init_device", "init_fn", "init_std",
        "init_cutoff_factor", NULL);
}

static Component load_attention(Loader *ld, const Dims *d, const Rope *rope, float clip) {
    Component component = {.kind = COMPONENT_ATTENTION,
        .attention = family_fused_attention(ld, d, "att_proj", "attn_out", rope, false, false)};
    component.attention.clip = clip;
    return component;
}

static Component load_ffn(Loader *ld, const Dims *d) {
    const int inner = d->intermediate_size;
    const Weight both = load_linear(ld, "ff_proj", 2 * (int64_t)inner, d->hidden, false);
    return (Component){.kind = COMPONENT_GLU,
        .glu = {.gate = load_part(&both, inner, inner),
            .up = load_part(&both, 0, inner),
            .down = load_linear(ld, "ff_out", d->hidden, inner, false),
            .activation = {.kind = ACT_SILU}}};
}

void hf_olmo_load(Loader *ld, Spec *spec) {
    static const NormNames norms = {load_plain, .attention_input = "", .ffn_input = ""};
    const Dims d = load_dims(ld, spec);
    const float clip = load_positive_or(ld, "clip_qkv", 0);
    const bool interleaved = load_bool_or(ld, "rope_traditional", false);
    const Rope *rope =
        load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000, .interleaved = interleaved});
    check_fields(ld);
    load_scope(ld, "%s", "");
    spec->embedding = load_linear(ld, "model.transformer.wte", spec->vocab, d.hidden, false);
    spec->final_norm = load_plain(ld, "", d.hidden, d.eps);
    spec->tied = load_bool_or(ld, "weight_tying", false);
    spec->head =
        spec->tied ? spec->embedding : load_linear(ld, "model.transformer.ff_out", spec->vocab, d.hidden, false);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        load_scope(ld, "model.transformer.blocks.%d.", i);
        const Component attention = load_attention(ld, &d, rope, clip), ffn = load_ffn(ld, &d);
        family_block_here(
            ld, spec, &spec->layers[i], &(Block){.dims = &d, .norms = &norms, .attention = &attention, .ffn = &ffn});
    }
}

const Family hf_olmo_family = {.load = hf_olmo_load};
