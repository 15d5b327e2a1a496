/* InternLM 2: a llama with names of its own, whose q, k and v are one matrix: for each head of keys its queries, the
 * key and the value. Reference: mlx_lm/models/internlm2.py. */
#include "family/dense.h"

static Component load_attention(Loader *ld, const Dims *d, const Rope *rope, bool bias) {
    const int64_t head = d->head_dim, group = d->heads / d->kv_heads, each = (group + 2) * head;
    const int64_t rows = each * d->kv_heads;
    AttentionComponent attention = family_attention_op(d, rope);
    attention.q = load_row_blocks(ld, "attention.wqkv", rows, d->hidden, bias,
        (RowBlocks){.size = group * head, .stride = each, .count = d->kv_heads});
    attention.k = load_row_blocks(ld, "attention.wqkv", rows, d->hidden, bias,
        (RowBlocks){.first = group * head, .size = head, .stride = each, .count = d->kv_heads});
    attention.v = load_row_blocks(ld, "attention.wqkv", rows, d->hidden, bias,
        (RowBlocks){.first = (group + 1) * head, .size = head, .stride = each, .count = d->kv_heads});
    attention.o = load_linear(ld, "attention.wo", d->hidden, d->heads * head, bias);
    return (Component){.kind = COMPONENT_ATTENTION, .attention = attention};
}

static void load(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"model.embed_tokens", "model.tok_embeddings"}, {"lm_head", "output"},
        {"input_layernorm", "attention_norm"}, {"post_attention_layernorm", "ffn_norm"},
        {"mlp.gate_proj", "feed_forward.w1"}, {"mlp.up_proj", "feed_forward.w3"}, {"mlp.down_proj", "feed_forward.w2"},
        {0}};
    load_module_names(ld, names);
    const Dims d = family_dims(ld, spec);
    const bool bias = load_bool_or(ld, "bias", true);
    const Rope *rope = load_rope(ld,
        &(RopeOptions){
            .head_dim = d.head_dim, .theta = 10000, .interleaved = load_bool_or(ld, "rope_traditional", false)});
    load_expect_text(ld, "hidden_act", "silu");
    family_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component attention = load_attention(ld, &d, rope, bias);
        family_block(ld, spec, i, &(Block){.dims = &d, .attention = &attention});
    }
}

const Family internlm2_family = {.load = load};
