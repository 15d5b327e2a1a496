/* Lille 130M: a llama with names of its own, whose norms belong to the parts of a layer and whose queries, keys and
 * values are one matrix. Reference: mlx_lm/models/lille-130m.py. */
#include "family/family.h"

static void load(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"hidden_size", "n_embd"}, {"num_hidden_layers", "n_layer"},
        {"num_attention_heads", "n_head"}, {"num_key_value_heads", "n_kv_heads"},
        {"max_position_embeddings", "block_size"}, {0}};
    static const LoadName names[] = {{"model.layers", "transformer.layers"}, {"mlp", "feed_forward"}, {0}};
    static const NormNames norms = {load_rms, .attention_input = "attention.norm", .ffn_input = "feed_forward.norm"};
    load_field_names(ld, fields);
    load_module_names(ld, names);
    Dims d = family_sizes(ld, spec, &(Sizes){.intermediate_size = SIZE_OWN, .eps_field = "layer_norm_eps"});
    d.intermediate_size = ((int)((int64_t)8 * d.hidden / 3) + 128) / 256 * 256; /* the nearest multiple */
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 0, .interleaved = true});
    load_expect_bool(ld, "tie_word_embeddings", true);
    family_ends_as(ld, spec, &d, "transformer.tok_embeddings", "transformer.norm", load_rms, true);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        const Component attention = {.kind = COMPONENT_ATTENTION,
            .attention =
                family_fused_attention(ld, &d, "attention.qkv_proj", "attention.out_proj", rope, false, false)};
        family_block(ld, spec, i, &(Block){.dims = &d, .norms = &norms, .attention = &attention});
    }
}

const Family lille_family = {.load = load};
