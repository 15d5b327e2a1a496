/* Falcon 7B, 40B, 180B and Falcon 2: layer norms, a network without a gate, parallel to attention behind the same norm
 * or (40B) behind its own; q, k and v are one matrix: for each head of keys its queries, the key and the value.
 * Falcon-RW has ALiBi, rounded to bf16, in place of the rotary embedding. Reference: transformers/models/falcon. */
#include "family/family.h"
#include "family/gguf/models.h"

typedef struct Falcon {
    Dims d;
    const Rope *rope;    /* NULL: ALiBi */
    const float *slopes; /* NULL: none */
    bool bias, parallel;
    NormNames norms;
} Falcon;

static const float *load_slopes(Loader *ld, int heads) {
    const float *exact = family_alibi(ld, heads);
    float *slopes = load_floats(ld, heads);
    for (int h = 0; exact && slopes && h < heads; h++) slopes[h] = bf16_round(exact[h]);
    return slopes;
}

static Falcon load_fields(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"intermediate_size", "ffn_hidden_size"}, {0}};
    load_field_names(ld, fields);
    Falcon f = {
        .d = family_sizes(ld, spec,
            &(Sizes){.intermediate_size = SIZE_OWN, .positions = 2048, .eps = 1e-5, .eps_field = "layer_norm_epsilon"}),
        .bias = load_bool_or(ld, "bias", false),
        .norms = {load_layer_norm, .attention_input = "input_layernorm"}};
    const bool newer = load_bool_or(ld, "new_decoder_architecture", false);
    const bool one = load_bool_or(ld, "multi_query", true);
    const bool two = newer && load_has(ld, "model.layers.0.ln_attn.weight");
    const int norms = load_int_or(ld, "num_ln_in_parallel_attn", two ? 2 : 1);
    f.parallel = load_bool_or(ld, "parallel_attn", true) || newer;
    const int heads = load_int_or(ld, "num_kv_heads", f.d.heads);
    f.d.kv_heads = newer ? heads : one ? 1 : f.d.heads;
    f.d.intermediate_size = load_int_or(ld, "intermediate_size", 4 * f.d.hidden);
    family_check(ld, &f.d);
    if (newer && norms == 2) {
        f.norms.attention_input = "ln_attn";
        f.norms.ffn_input = load_has(ld, "model.layers.0.ln_mlp.weight") ? "ln_mlp" : "input_layernorm"; /* from GGUF */
    } else if (!f.parallel) {
        f.norms.ffn_input = "post_attention_layernorm";
    }
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = f.d.head_dim, .theta = 10000});
    if (load_bool_or(ld, "alibi", false))
        f.slopes = load_slopes(ld, f.d.heads);
    else
        f.rope = rope;
    load_expect_text(ld, "activation", "gelu");
    load_ignore(ld, "hidden_dropout", "apply_residual_connection_post_layernorm", NULL);
    return f;
}

static Component load_attention(Loader *ld, const Falcon *f) {
    const Dims *d = &f->d;
    const int64_t head = d->head_dim, group = d->heads / d->kv_heads, each = (group + 2) * head;
    const char *name = "self_attention.query_key_value";
    AttentionComponent attention = family_attention_op(d, f->rope);
    attention.op.slopes = f->slopes;
    if (f->slopes) attention.op.slopes_bf16 = attention.op.scale; /* they are added before that */
    Weight *const parts[] = {&attention.q, &attention.k, &attention.v};
    const int64_t first[] = {0, group * head, (group + 1) * head}, size[] = {group * head, head, head};
    for (int i = 0; i < 3; i++)
        *parts[i] = load_row_blocks(ld, name, each * d->kv_heads, d->hidden, f->bias,
            (RowBlocks){.first = first[i], .size = size[i], .stride = each, .count = d->kv_heads});
    attention.o = load_linear(ld, "self_attention.dense", d->hidden, d->heads * head, f->bias);
    return (Component){.kind = COMPONENT_ATTENTION, .attention = attention};
}

static void load(Loader *ld, Spec *spec) {
    static const LoadName names[] = {{"model.embed_tokens", "transformer.word_embeddings"},
        {"model.norm", "transformer.ln_f"}, {"model.layers", "transformer.h"}, {0}};
    static const Activation gelu = {.kind = ACT_GELU};
    load_module_names(ld, names);
    const Falcon f = load_fields(ld, spec);
    const Dims *d = &f.d;
    const bool tied = load_bool_or(ld, "tie_word_embeddings", !load_has(ld, "lm_head.weight"));
    family_ends_as(ld, spec, d, "model.embed_tokens", "model.norm", load_layer_norm, tied);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component attention = load_attention(ld, &f);
        Component mlp =
            family_mlp(ld, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", d->hidden, d->intermediate_size, gelu, f.bias);
        mlp.parallel = f.parallel;
        family_block(ld, spec, i, &(Block){.dims = d, .norms = &f.norms, .attention = &attention, .ffn = &mlp});
    }
}

const Family falcon_family = {.load = load, .gguf = &falcon_gguf};
