/* Baichuan and Baichuan 2: a llama whose q, k and v are one matrix. The 13B models have ALiBi in place of the rotary
 * embedding; their configs do not have max_position_embeddings. The rows of Baichuan 2's output matrix are normalised.
 * Reference: modeling_baichuan.py of baichuan-inc/Baichuan2-7B-Base and Baichuan2-13B-Base; vllm's baichuan.py tells
 * the models apart by the same sizes. */
#include "family/family.h"
#include "family/gguf/models.h"

enum { HIDDEN_13B = 5120, VOCAB_2 = 125696 };

static Dims load_sizes(Loader *ld, Spec *spec) {
    static const LoadName fields[] = {{"max_position_embeddings", "model_max_length"}, {0}};
    load_field_names(ld, fields);
    return family_sizes(ld, spec, &(Sizes){.positions = 4096, .eps = 1e-6});
}

static void load(Loader *ld, Spec *spec) {
    const bool rotates = load_has_field(ld, "max_position_embeddings");
    const Dims d = load_sizes(ld, spec);
    const bool alibi = !rotates || d.hidden == HIDDEN_13B;
    const bool second = load_has_field(ld, "z_loss_weight") || spec->vocab == VOCAB_2;
    const Rope *rope = alibi ? NULL : load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000});
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "tie_word_embeddings", false);
    load_ignore(ld, "z_loss_weight", "gradient_checkpointing", NULL);
    load_skip(ld, ".rotary_emb.inv_freq");
    load_scope(ld, "%s", "");
    spec->embedding = load_linear(ld, "model.embed_tokens", spec->vocab, d.hidden, false);
    spec->final_norm = load_rms(ld, "model.norm", d.hidden, d.eps);
    spec->head = second ? load_unit_rows(ld, "lm_head", spec->vocab, d.hidden, 1e-12f)
                        : load_linear(ld, "lm_head", spec->vocab, d.hidden, false);
    const bool fused = load_has(ld, "model.layers.0.self_attn.W_pack.weight"); /* not in files made from GGUF */
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        family_layer(ld, spec, i);
        Component attention = {.kind = COMPONENT_ATTENTION,
            .attention = fused
                ? family_fused_attention(ld, &d, "self_attn.W_pack", "self_attn.o_proj", rope, false, false)
                : family_attention(ld, &d, "o_proj", rope, false, false)};
        if (alibi) attention.attention.op.slopes = family_alibi(ld, d.heads);
        family_block(ld, spec, i, &(Block){.dims = &d, .attention = &attention});
    }
}

const Family baichuan_family = {.load = load, .gguf = &baichuan_gguf};
