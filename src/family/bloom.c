/* BLOOM: ALiBi, a norm of the embeddings, layer norms and biases everywhere, and a network without a gate; q, k and v
 * are one matrix, head by head. Published files have no prefix. Reference: transformers/models/bloom. */
#include "family/family.h"
#include "family/gguf/models.h"

static Component load_attention(Loader *ld, const Dims *d) {
    const int64_t head = d->head_dim, rows = 3 * head * d->heads;
    AttentionComponent attention = family_attention_op(d, NULL);
    Weight *const parts[] = {&attention.q, &attention.k, &attention.v};
    for (int i = 0; i < 3; i++)
        *parts[i] = load_row_blocks(ld, "self_attention.query_key_value", rows, d->hidden, true,
            (RowBlocks){.first = i * head, .size = head, .stride = 3 * head, .count = d->heads});
    attention.o = load_linear(ld, "self_attention.dense", d->hidden, d->hidden, true);
    attention.op.slopes = family_alibi(ld, d->heads);
    return (Component){.kind = COMPONENT_ATTENTION, .attention = attention};
}

static void load(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"num_hidden_layers", "n_layer"}, {"num_attention_heads", "n_head"},
        {"hidden_size", "n_embed"}, {"max_position_embeddings", "seq_length"}, {0}};
    static const LoadName prefixed[] = {{"model.embed_tokens", "transformer.word_embeddings"},
        {"model.embedding_norm", "transformer.word_embeddings_layernorm"}, {"model.norm", "transformer.ln_f"},
        {"model.layers", "transformer.h"}, {0}};
    static const LoadName bare[] = {{"model.embed_tokens", "word_embeddings"},
        {"model.embedding_norm", "word_embeddings_layernorm"}, {"model.norm", "ln_f"}, {"model.layers", "h"}, {0}};
    static const NormNames norms = {
        load_layer_norm, .attention_input = "input_layernorm", .ffn_input = "post_attention_layernorm"};
    load_module_names(ld, load_has(ld, "word_embeddings.weight") ? bare : prefixed);
    load_field_names(ld, fields);
    Dims d = family_sizes(ld, spec,
        &(Sizes){.intermediate_size = SIZE_OWN, .positions = 2048, .eps = 1e-5, .eps_field = "layer_norm_epsilon"});
    d.intermediate_size = 4 * d.hidden;
    load_expect_bool(ld, "apply_residual_connection_post_layernorm", false);
    load_ignore(ld, "hidden_dropout", "pretraining_tp", "slow_but_exact", "masked_softmax_fusion",
        "attention_softmax_in_fp32", "bias_dropout_fusion", "offset_alibi", "unk_token_id", "skip_bias_add",
        "skip_bias_add_qkv", "n_inner", NULL);
    family_ends_as(ld, spec, &d, "model.embed_tokens", "model.norm", load_layer_norm,
        load_bool_or(ld, "tie_word_embeddings", true));
    spec->embedding_norm = load_layer_norm(ld, "model.embedding_norm", d.hidden, d.eps);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component attention = load_attention(ld, &d);
        const Component mlp = family_mlp(ld, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", d.hidden, d.intermediate_size,
            (Activation){.kind = ACT_GELU_TANH}, true);
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &attention, .ffn = &mlp});
    }
}

const Family bloom_family = {.load = load, .gguf = &bloom_gguf};
