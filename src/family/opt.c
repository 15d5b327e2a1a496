/* OPT: layer norms and biases everywhere, a network of ReLU without a gate, learned positions, the first of which is in
 * row 2 of their table. Reference: transformers/models/opt. OPT-350m, whose norms are behind both parts and whose
 * embeddings are projected, is refused. */
#include "family/family.h"

static void load(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"model.layers", "model.decoder.layers"},
        {"model.embed_tokens", "model.decoder.embed_tokens"}, {"model.norm", "model.decoder.final_layer_norm"}, {0}};
    static const LoadName fields[] = {{"intermediate_size", "ffn_dim"}, {0}};
    static const NormNames norms = {
        load_layer_norm, .attention_input = "self_attn_layer_norm", .ffn_input = "final_layer_norm"};
    enum { FIRST = 2 };
    load_field_names(ld, fields);
    const Dims d = family_sizes(ld, spec, &(Sizes){.positions = 2048, .eps = 1e-5, .eps_field = "layer_norm_eps"});
    const bool bias = load_bool_or(ld, "enable_bias", true);
    load_expect_text(ld, "activation_function", "relu");
    load_expect_bool(ld, "do_layer_norm_before", true);
    load_expect_bool(ld, "_remove_final_layer_norm", false);
    load_expect_bool(ld, "layer_norm_elementwise_affine", true);
    load_expect_int(ld, "word_embed_proj_dim", d.hidden);
    load_ignore(ld, "dropout", "activation_dropout", "layerdrop", "init_std", "prefix", NULL);
    load_module_names(ld, names);
    const bool tied = load_bool_or(ld, "tie_word_embeddings", true);
    family_ends_as(ld, spec, &d, "model.embed_tokens", "model.norm", load_layer_norm, tied);
    const Weight table =
        load_linear(ld, "model.decoder.embed_positions", (int64_t)spec->positions + FIRST, d.hidden, false);
    spec->position_embedding = load_part(&table, FIRST, spec->positions);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component attention = {
            .kind = COMPONENT_ATTENTION, .attention = family_attention(ld, &d, "out_proj", NULL, bias, bias)};
        const Component mlp =
            family_mlp(ld, "fc1", "fc2", d.hidden, d.intermediate_size, (Activation){.kind = ACT_RELU}, bias);
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &attention, .ffn = &mlp});
    }
}

const Family opt_family = {.load = load};
