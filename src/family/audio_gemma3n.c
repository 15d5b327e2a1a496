/* The audio part of Gemma 3n. Reference: transformers, models/gemma3n/modeling_gemma3n.py. */
#include "family/audio_conformer.h"

#include <math.h>

static const ConformerNames names = {.layer = "conformer.%d.",
    .ffn = {"ffw_layer_start", "ffw_layer_end"},
    .attention_norm = "attention.pre_attn_norm",
    .attended_norm = "attention.post_norm",
    .norm = "norm",
    .q = "attention.attn.q_proj",
    .k = "attention.attn.k_proj",
    .v = "attention.attn.v_proj",
    .o = "attention.post",
    .relative = "attention.attn.relative_position_embedding.pos_proj",
    .q_scale = "attention.attn.per_dim_scale"};

/* The row of a token of the audio vocabulary as the projection reads it: its embedding behind a norm. */
static const float *load_hard_row(Loader *ld, const Weight *table, const Norm *norm, int token) {
    const int width = (int)table->cols;
    float *row = load_floats(ld, width);
    double sum = 0;
    if (!row || !table->data || !norm || !norm->weight) return NULL;
    weight_dequantize_row(table, token, 0, width, row);
    for (int i = 0; i < width; i++) sum += (double)row[i] * row[i];
    const float factor = (float)(1 / sqrt(sum / width + norm->eps));
    for (int i = 0; i < width; i++) row[i] *= factor * norm->weight[i];
    return row;
}

/* A clip always takes the same number of rows: behind its own stands the last token of the audio vocabulary, and behind
 * them the token that ends the clip, which is of that vocabulary too. */
static void load_fixed_rows(Loader *ld, AudioSpec *audio, int rows, int end, int vocab, float eps) {
    const Weight table = load_linear(ld, "embed_audio.embedding", vocab, audio->hidden, false);
    const Norm *norm = load_rms(ld, "embed_audio.hard_embedding_norm", audio->hidden, eps);
    load_require(ld, end >= 0 && end < vocab, "eoa_token_id is not in the audio vocabulary");
    audio->fixed_rows = rows;
    audio->padding = load_hard_row(ld, &table, norm, vocab - 1);
    audio->end = load_hard_row(ld, &table, norm, end >= 0 && end < vocab ? end : 0);
}

void audio_load_gemma3n(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    const int rows = load_int_or(ld, "audio_soft_tokens_per_image", 188), end = load_int_or(ld, "eoa_token_id", 262272);
    AudioSpec *audio = load_audio_part(ld);
    if (!audio) return;
    const float eps = load_positive_or(ld, "rms_norm_eps", 1e-6);
    const int vocab = load_int_or(ld, "vocab_size", 128), offset = load_int_or(ld, "vocab_offset", 262272);
    *audio = (AudioSpec){.mel = audio_load_mel(ld, mel_gemma3n),
        .seconds_max = 30,
        .causal_conv = true,
        .hidden = load_int_or(ld, "hidden_size", 1536),
        .heads = load_int_or(ld, "conf_num_attention_heads", 8),
        .span = load_int_or(ld, "conf_attention_context_left", 13),
        .taps = load_int_or(ld, "conf_conv_kernel_size", 5),
        .layer_count = load_int_or(ld, "conf_num_hidden_layers", 12),
        .reduction = load_int_or(ld, "conf_reduction_factor", 4),
        .softcap = load_positive_or(ld, "conf_attention_logit_cap", 50),
        .k_scale = 1,
        .ffn_scale = load_positive_or(ld, "conf_residual_weight", 0.5),
        .clip = load_positive_or(ld, "gradient_clipping", 1e10),
        .conv_eps = load_positive_or(ld, "sscp_conv_group_norm_eps", 1e-3),
        .placeholder = "<audio_soft_token>",
        .before = "\n\n<start_of_audio>",
        .token = "<audio_soft_token>",
        .last_token = "<end_of_audio>",
        .after = "\n\n"};
    load_expect_int(ld, "input_feat_size", audio->mel.bins);
    load_expect_int(ld, "conf_attention_context_right", 0);
    load_ignore(ld, "conf_attention_chunk_size", "sscp_conv_kernel_size", "sscp_conv_stride_size", NULL);
    audio_load_conformer(ld, audio, &names, "sscp_conv_channel_size", "conv_%d", eps);
    load_return(ld, &root);
    load_scope(ld, "%s", load_has(ld, "model.embed_audio.embedding_projection.weight") ? "model." : "");
    load_fixed_rows(ld, audio, rows, end - offset, vocab, eps);
    audio->embedding_norm = load_rms(ld, "embed_audio.soft_embedding_norm", audio->hidden, eps);
    audio->embedding = load_linear(ld, "embed_audio.embedding_projection", spec->hidden, audio->hidden, false);
    audio->row_norm = load_rms(ld, NULL, spec->hidden, eps);
    load_return(ld, &root);
}
