/* Persimmon: layer norms and biases everywhere, layer norms of the heads of q and k, half of which rotates, and a
 * network without a gate; q, k and v are one matrix, head by head. Reference: transformers/models/persimmon. */
#include "family/family.h"

typedef struct Persimmon {
    Dims d;
    const Rope *rope;
    bool qk_norm;
} Persimmon;

static Component load_attention(Loader *ld, const Persimmon *p) {
    const Dims *d = &p->d;
    const int64_t head = d->head_dim, rows = 3 * head * d->heads;
    AttentionComponent attention = family_attention_op(d, p->rope);
    Weight *const parts[] = {&attention.q, &attention.k, &attention.v};
    for (int i = 0; i < 3; i++)
        *parts[i] = load_row_blocks(ld, "self_attn.query_key_value", rows, d->hidden, true,
            (RowBlocks){.first = i * head, .size = head, .stride = 3 * head, .count = d->heads});
    attention.o = load_linear(ld, "self_attn.dense", d->hidden, d->heads * head, true);
    if (p->qk_norm) {
        attention.op.q_norm = load_layer_norm(ld, "self_attn.q_layernorm", head, d->eps);
        attention.op.k_norm = load_layer_norm(ld, "self_attn.k_layernorm", head, d->eps);
    }
    return (Component){.kind = COMPONENT_ATTENTION, .attention = attention};
}

static void load(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"model.norm", "model.final_layernorm"}, {0}};
    static const NormNames norms = {
        load_layer_norm, .attention_input = "input_layernorm", .ffn_input = "post_attention_layernorm"};
    load_module_names(ld, names);
    Persimmon p = {.d = family_sizes(ld, spec, &(Sizes){.eps = 1e-5, .eps_field = "layer_norm_eps"}),
        .qk_norm = load_bool_or(ld, "qk_layernorm", true)};
    const Dims *d = &p.d;
    load_require(ld, d->kv_heads == d->heads, "num_key_value_heads must be num_attention_heads");
    p.rope = load_rope(
        ld, &(RopeOptions){.head_dim = d->head_dim, .dims = load_rotary_dims(ld, d->head_dim, 0.5), .theta = 10000});
    load_expect_text(ld, "hidden_act", "relu2");
    load_ignore(ld, "hidden_dropout", NULL);
    family_ends_as(ld, spec, d, "model.embed_tokens", "model.norm", load_layer_norm,
        load_bool_or(ld, "tie_word_embeddings", false));
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component attention = load_attention(ld, &p);
        const Component mlp = family_mlp(ld, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", d->hidden, d->intermediate_size,
            (Activation){.kind = ACT_RELU2}, true);
        family_block(ld, spec, i, &(Block){.dims = d, .norms = &norms, .attention = &attention, .ffn = &mlp});
    }
}

const Family persimmon_family = {.load = load};
