/* GPT-NeoX, Pythia: layer norms and biases everywhere, a feed-forward network without a gate, partly rotated heads;
 * both parts of a layer read the residual at once, each through its own norm. q, k and v are one matrix, head by head.
 * References: mlx_lm/models/gpt_neox.py, whose GELU is always the tanh form; hidden_act: transformers/models/gpt_neox.
 */
#include "family/family.h"
#include "family/gguf/models.h"

static Activation load_activation(Loader *ld) {
    const bool erf = load_text_is(ld, "hidden_act", "gelu");
    load_require(ld,
        erf || load_text_is(ld, "hidden_act", "gelu_fast") || load_text_is(ld, "hidden_act", "gelu_new") ||
            load_text_is(ld, "hidden_act", "gelu_pytorch_tanh") || !load_has_field(ld, "hidden_act"),
        "hidden_act must be gelu, gelu_fast, gelu_new or gelu_pytorch_tanh");
    return (Activation){.kind = erf ? ACT_GELU : ACT_GELU_TANH};
}

static Component load_attention(Loader *ld, const Dims *d, const Rope *rope, bool bias) {
    const int64_t head = d->head_dim, rows = 3 * head * d->heads;
    const char *name = "attention.query_key_value";
    AttentionComponent attention = family_attention_op(d, rope);
    Weight *const parts[] = {&attention.q, &attention.k, &attention.v};
    for (int i = 0; i < 3; i++)
        *parts[i] = load_row_blocks(ld, name, rows, d->hidden, bias,
            (RowBlocks){.first = i * head, .size = head, .stride = 3 * head, .count = d->heads});
    attention.o = load_linear(ld, "attention.dense", d->hidden, d->hidden, bias);
    return (Component){.kind = COMPONENT_ATTENTION, .attention = attention};
}

static void load(Loader *ld, Spec *spec) {
    static const LoadName here[] = {{"model.layers", "model.h"}, {"model.embed_tokens", "model.embed_in"},
        {"model.norm", "model.final_layer_norm"}, {"lm_head", "model.embed_out"}, {0}};
    static const LoadName published[] = {{"model.embed_tokens", "gpt_neox.embed_in"},
        {"model.norm", "gpt_neox.final_layer_norm"}, {"lm_head", "embed_out"}, {"model.layers", "gpt_neox.layers"},
        {0}};
    static const NormNames norms = {
        load_layer_norm, .attention_input = "input_layernorm", .ffn_input = "post_attention_layernorm"};
    load_module_names(ld, load_has(ld, "gpt_neox.embed_in.weight") ? published : here);
    Dims d = family_sizes(ld, spec,
        &(Sizes){.intermediate_size = SIZE_OWN, .positions = 2048, .eps = 1e-5, .eps_field = "layer_norm_eps"});
    d.intermediate_size = load_int_or(ld, "intermediate_size", 4 * d.hidden);
    load_require(ld, d.kv_heads == d.heads, "num_key_value_heads must be num_attention_heads");
    const bool bias = load_bool_or(ld, "attention_bias", true),
               parallel = load_bool_or(ld, "use_parallel_residual", true);
    const float part = load_positive_or(ld, "rotary_pct", 0.25);
    const int dims = load_rotary_dims(ld, d.head_dim, (double)part);
    const Rope *rope = load_rope(ld,
        &(RopeOptions){.head_dim = d.head_dim, .dims = dims, .theta = load_positive_or(ld, "rotary_emb_base", 1e4)});
    const Activation activation = load_activation(ld);
    load_expect_bool(ld, "tie_word_embeddings", false);
    load_ignore(ld, "hidden_dropout", "classifier_dropout", NULL);
    load_skip(ld, ".attention.bias");
    load_skip(ld, ".attention.masked_bias");
    family_ends_as(ld, spec, &d, "model.embed_tokens", "model.norm", load_layer_norm, false);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component attention = load_attention(ld, &d, rope, bias);
        Component mlp =
            family_mlp(ld, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", d.hidden, d.intermediate_size, activation, true);
        mlp.parallel = parallel;
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &attention, .ffn = &mlp});
    }
}

const Family gpt_neox_family = {.load = load, .gguf = &gpt_neox_gguf};
