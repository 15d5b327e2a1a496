/* Llama 4's dense text models (MobileLLM): norms without weights on q and k, neighbours rotate in the layers that do.
 * Reference: mlx_lm/models/llama4_text.py. */
#include "family/family.h"

static void load_ends(Loader *ld, Spec *spec, const Dims *d) {
    spec->embedding = load_linear(ld, "model.embed_tokens", spec->vocab, d->hidden, false);
    spec->final_norm = load_rms(ld, "model.norm", d->hidden, d->eps);
    spec->tied = load_bool_or(ld, "tie_word_embeddings", true);
    const char *head = load_has(ld, "lm_head.weight") ? "lm_head" : "output"; /* before and after MLX */
    spec->head = spec->tied ? spec->embedding : load_linear(ld, head, spec->vocab, d->hidden, false);
}

static void load(Loader *ld, Spec *spec) {
    Dims d = family_dims(ld, spec);
    d.intermediate_size = load_int(ld, "intermediate_size_mlp");
    const bool norms = load_bool_or(ld, "use_qk_norm", false);
    const Json *rotate = load_list(ld, "no_rope_layers", spec->layer_count);
    const Rope *rope = load_rope(ld, &(RopeOptions){.head_dim = d.head_dim, .theta = 10000, .interleaved = true});
    load_expect_text(ld, "hidden_act", "silu");
    load_expect_bool(ld, "attention_bias", false);
    load_expect_bool(ld, "attn_temperature_tuning", false);
    load_ignore(ld, "router_aux_loss_coef", "router_jitter_noise", "output_router_logits", "for_llm_compressor", NULL);
    load_ends(ld, spec, &d);
    load_layers(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        const bool rotates = family_flag(ld, "no_rope_layers", rotate, i);
        family_layer(ld, spec, i);
        Component attention = {.kind = COMPONENT_ATTENTION,
            .attention = family_attention(ld, &d, "o_proj", rotates ? rope : NULL, false, false)};
        if (norms)
            attention.attention.op.q_norm = attention.attention.op.k_norm = load_rms(ld, NULL, d.head_dim, d.eps);
        const Component ffn = {.kind = COMPONENT_GLU,
            .glu =
                family_glu(ld, "feed_forward", d.hidden, d.intermediate_size, (Activation){.kind = ACT_SILU}, false)};
        family_block(ld, spec, i, &(Block){.dims = &d, .attention = &attention, .ffn = &ffn});
    }
}

const Family llama4_text_family = {.load = load};
