/* Nomic-BERT: an encoder with rotary embeddings and a gated network, under the names of the published files.
 * References: modeling_hf_nomic_bert.py of nomic-ai; transformers/models/nomic_bert, whose names differ. */
#include "family/encoder.h"
#include "family/gguf/models.h"

/* One row for all positions: the token type alone. */
static Weight repeated_type(Loader *ld, int positions, int types, int hidden) {
    const float *type = load_array(ld, "embeddings.token_type_embeddings.weight", types, hidden);
    float *rows = load_floats(ld, (int64_t)positions * hidden);
    for (int64_t i = 0; type && rows && i < (int64_t)positions * hidden; i++) rows[i] = type[i % hidden];
    return (Weight){.rows = positions, .cols = hidden, .dtype = DTYPE_F32, .data = rows};
}

static void load_nomic(Loader *ld, Spec *spec) {
    Dims d = {.hidden = load_int(ld, "n_embd"),
        .heads = load_int(ld, "n_head"),
        .eps = load_positive_or(ld, "layer_norm_epsilon", 1e-12)};
    d.intermediate_size = load_int_or(ld, "n_inner", 4 * d.hidden);
    d.kv_heads = d.heads;
    family_check(ld, &d);
    spec->hidden = d.hidden;
    spec->layer_count = load_int(ld, "n_layer");
    spec->vocab = load_int(ld, "vocab_size");
    spec->positions = load_int_or(ld, "n_positions", 2048);
    const float part = load_positive_or(ld, "rotary_emb_fraction", 1);
    const Rope *rope = load_rope(ld,
        &(RopeOptions){.head_dim = d.head_dim,
            .dims = (int)(part * (float)d.head_dim),
            .theta = load_positive_or(ld, "rotary_emb_base", 1e4),
            .interleaved = load_bool_or(ld, "rotary_emb_interleaved", false)});
    const int types = load_int_or(ld, "type_vocab_size", 2);
    const bool bias = load_bool_or(ld, "qkv_proj_bias", false);
    const bool up_bias = load_bool_or(ld, "mlp_fc1_bias", false), down_bias = load_bool_or(ld, "mlp_fc2_bias", false);
    load_expect_text(ld, "activation_function", "swiglu");
    load_expect_bool(ld, "prenorm", false);
    load_expect_bool(ld, "parallel_block", false);
    load_expect_bool(ld, "use_rms_norm", false);
    load_expect_bool(ld, "causal", false);
    load_require(ld, !load_has_field(ld, "rotary_scaling_factor"), "rotary_scaling_factor is not supported");
    load_require(ld, !load_has_field(ld, "rotary_emb_scale_base"), "rotary_emb_scale_base is not supported");
    load_ignore(ld, "attn_pdrop", "embd_pdrop", "resid_pdrop", "dense_seq_output", "fused_bias_fc",
        "fused_dropout_add_ln", "initializer_range", "last_layer_subset", "max_trained_positions",
        "pad_vocab_size_multiple", "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx", "scale_attn_weights",
        "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
        "use_flash_attn", "use_xentropy", NULL);
    load_scope(ld, "%s", "");
    spec->embedding = load_linear(ld, "embeddings.word_embeddings", spec->vocab, d.hidden, false);
    spec->position_embedding = repeated_type(ld, spec->positions, types, d.hidden);
    spec->token_types = 1;
    encoder_finish(ld, spec);
    for (int i = 0; i < spec->layer_count; i++) {
        Layer *layer = &spec->layers[i];
        load_scope(ld, "%s", "");
        if (i == 0) encoder_add_norm(ld, spec, layer, "emb_ln", d.eps);
        load_scope(ld, "encoder.layers.%d.", i);
        const AttentionComponent attention =
            family_fused_attention(ld, &d, "attn.Wqkv", "attn.out_proj", rope, bias, bias);
        const Component glu = {.kind = COMPONENT_GLU,
            .glu = {.gate = load_linear(ld, "mlp.fc12", d.intermediate_size, d.hidden, up_bias),
                .up = load_linear(ld, "mlp.fc11", d.intermediate_size, d.hidden, up_bias),
                .down = load_linear(ld, "mlp.fc2", d.hidden, d.intermediate_size, down_bias),
                .activation = {.kind = ACT_SILU}}};
        family_add(spec, layer, &(Component){.kind = COMPONENT_ATTENTION, .attention = attention});
        encoder_add_norm(ld, spec, layer, "norm1", d.eps);
        family_add(spec, layer, &glu);
        encoder_add_norm(ld, spec, layer, "norm2", d.eps);
    }
}

const Family nomic_bert_family = {.load = load_nomic, .gguf = &nomic_bert_gguf};
