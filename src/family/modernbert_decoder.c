/* Decoders of ModernBERT's architecture (Ettin): layer norms, also of the embeddings, windows, GeGLU; behind the last
 * norm a matrix and GELU, then one more norm and an output matrix with a bias. Reference:
 * transformers/models/modernbert_decoder. */
#include "family/family.h"

/* h = gelu(dense · final_norm(h)) behind the last layer. */
static void add_head(Loader *ld, Spec *spec, const Dims *d, bool bias) {
    static const Activation gelu = {.kind = ACT_GELU};
    const int64_t hidden = d->hidden;
    if (!spec->layer_count) return;
    Layer *layer = &spec->layers[spec->layer_count - 1];
    float *one = load_floats(ld, hidden * hidden);
    for (int64_t i = 0; one && i < hidden; i++) one[i * hidden + i] = 1;
    load_scope(ld, "%s", "");
    Component *norm = layer_add(spec, layer, COMPONENT_SCALE);
    norm->input_norm = load_layer_norm(ld, "model.final_norm", hidden, d->eps);
    norm->scale_factor = 1;
    const int at = layer->component_count;
    layer_add(spec, layer, COMPONENT_SCALE)->scale_factor = 0;
    Component *dense = layer_add(spec, layer, COMPONENT_MLP);
    dense->reads = at;
    dense->mlp = (MlpComponent){.up = load_linear(ld, "lm_head.dense", hidden, hidden, bias),
        .down = {.rows = hidden, .cols = hidden, .dtype = DTYPE_F32, .data = one},
        .activation = gelu};
}

static void load(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"self_attn", "attn"}, {0}};
    static const Activation gelu = {.kind = ACT_GELU};
    load_module_names(ld, names);
    const Dims d = family_sizes(ld, spec, &(Sizes){.positions = 8192, .eps = 1e-5, .eps_field = "norm_eps"});
    const Json *types = load_list(ld, "layer_types", spec->layer_count);
    const int every = load_int_or(ld, "global_attn_every_n_layers", 3);
    const Windows windows = {.types = types, .width = load_int_or(ld, "local_attention", 128) / 2};
    const bool bias = load_bool_or(ld, "attention_bias", false), mlp_bias = load_bool_or(ld, "mlp_bias", false);
    RopeOptions options = {
        .head_dim = d.head_dim, .theta_field = "global_rope_theta", .theta = 160000, .layer_type = "full_attention"};
    const Rope *rope = load_rope(ld, &options);
    options.theta_field = "local_rope_theta";
    options.theta = 10000;
    options.layer_type = "sliding_attention";
    const Rope *local = load_rope(ld, &options);
    load_expect_text(ld, "hidden_activation", "gelu");
    load_expect_text(ld, "classifier_activation", "gelu");
    load_ignore(ld, "norm_bias", "initializer_cutoff_factor", "cls_token_id", "sep_token_id", "embedding_dropout",
        "mlp_dropout", "classifier_dropout", "position_embedding_type", "deterministic_flash_attn", "sparse_prediction",
        "sparse_pred_ignore_index", "repad_logits_with_grad", "reference_compile", "classifier_pooling", NULL);
    load_scope(ld, "%s", "");
    spec->embedding = load_linear(ld, "model.embeddings.tok_embeddings", spec->vocab, d.hidden, false);
    spec->embedding_norm = load_layer_norm(ld, "model.embeddings.norm", d.hidden, d.eps);
    spec->final_norm = load_layer_norm(ld, "lm_head.norm", d.hidden, d.eps);
    const bool tied = load_bool_or(ld, "tie_word_embeddings", true);
    spec->head = tied ? spec->embedding : load_linear(ld, "decoder", spec->vocab, d.hidden, false);
    if (load_bool_or(ld, "decoder_bias", true)) spec->head.bias = load_vector(ld, "decoder.bias", spec->vocab, 0);
    load_skip(ld, "decoder.weight");
    const bool dense_bias = load_bool_or(ld, "classifier_bias", false);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const NormNames norms = {load_layer_norm, .attention_input = i ? "attn_norm" : NULL, .ffn_input = "mlp_norm"};
        const int window = types ? family_window(ld, &windows, i) : i % every ? windows.width : 0;
        family_layer(ld, spec, i);
        Component attention = {.kind = COMPONENT_ATTENTION,
            .attention = family_attention(ld, &d, "Wo", window ? local : rope, bias, bias)};
        attention.attention.op.window = window;
        const Component ffn = {.kind = COMPONENT_GLU,
            .glu = family_fused_glu(ld, "mlp.Wi", "mlp.Wo", d.hidden, d.intermediate_size, gelu, mlp_bias)};
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &attention, .ffn = &ffn});
    }
    add_head(ld, spec, &d, dense_bias);
}

const Family modernbert_decoder_family = {.load = load};
