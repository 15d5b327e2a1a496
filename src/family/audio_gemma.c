/* The audio parts of Gemma 4 and Gemma 3n, conformers with different names. References: transformers,
 * models/gemma4/modeling_gemma4.py, models/gemma4_unified and models/gemma3n/modeling_gemma3n.py. */
#include "family/audio.h"

#include <math.h>
#include <stdio.h>

static const float ln2 = 0.693147181F;
static const float default_eps = 1e-6F; /* eps of most norms, whatever rms_norm_eps is */

/* Names of a layer's parts. */
typedef struct ConformerNames {
    const char *layer; /* format of the layer's number */
    const char *ffn[2];
    const char *attention_norm, *attended_norm, *norm;
    const char *q, *k, *v, *o, *relative, *q_scale;
} ConformerNames;

static const ConformerNames names_gemma4 = {.layer = "layers.%d.",
    .ffn = {"feed_forward1", "feed_forward2"},
    .attention_norm = "norm_pre_attn",
    .attended_norm = "norm_post_attn",
    .norm = "norm_out",
    .q = "self_attn.q_proj",
    .k = "self_attn.k_proj",
    .v = "self_attn.v_proj",
    .o = "self_attn.post",
    .relative = "self_attn.relative_k_proj",
    .q_scale = "self_attn.per_dim_scale"};

static const ConformerNames names_gemma3n = {.layer = "conformer.%d.",
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

/* ---- spectrograms ---- */

/* A number of the audio preprocessing's settings. */
static double setting(Loader *ld, const char *field, double absent, double least, double most) {
    const Json *value = json_get(load_extractor(ld), field);
    if (!value || value->type == JSON_NULL) return absent;
    const double number = json_is_number(value) ? json_number(value) : NAN;
    const bool ok = number >= least && number <= most;
    load_require(ld, ok, "audio preprocessing: %s must be %g to %g", field, least, most);
    return ok ? number : absent;
}

static bool switched(Loader *ld, const char *field, bool absent) {
    const Json *value = json_get(load_extractor(ld), field);
    return value && value->type == JSON_BOOL ? value->boolean : absent;
}

static void expect_null(Loader *ld, const char *field) {
    const Json *value = json_get(load_extractor(ld), field);
    load_require(ld, !value || value->type == JSON_NULL, "audio preprocessing: %s is not supported", field);
}

/* The family's rule with the settings of the file. */
static MelRule load_mel(Loader *ld, MelRule rule) {
    enum { FRAME_MAX = 4096, HOP_LEAST = 80, BINS_MAX = 512, PER_MS = AUDIO_RATE / 1000 };
    if (!load_extractor(ld)) return rule;
    int power = 1;
    while (power < rule.frame) power *= 2;
    const bool twice = switched(ld, "fft_overdrive", rule.fft > power);
    setting(ld, "sampling_rate", AUDIO_RATE, AUDIO_RATE, AUDIO_RATE);
    const double frame_ms = setting(ld, "frame_length_ms", (double)rule.frame / PER_MS, 1, FRAME_MAX / PER_MS),
                 hop_ms =
                     setting(ld, "hop_length_ms", (double)rule.hop / PER_MS, HOP_LEAST / PER_MS, FRAME_MAX / PER_MS);
    rule.frame = (int)setting(ld, "frame_length", rint(frame_ms * PER_MS), 2, FRAME_MAX);
    rule.hop = (int)setting(ld, "hop_length", rint(hop_ms * PER_MS), HOP_LEAST, FRAME_MAX);
    rule.left = rule.left ? rule.frame / 2 : 0;
    for (power = 1; power < rule.frame;) power *= 2;
    rule.fft = twice ? 2 * power : power;
    rule.bins = (int)setting(ld, "feature_size", rule.bins, 4, BINS_MAX);
    rule.low_hz = setting(ld, "min_frequency", rule.low_hz, 0, AUDIO_RATE / 2.0);
    rule.high_hz = setting(ld, "max_frequency", rule.high_hz, rule.low_hz + 1, AUDIO_RATE / 2.0);
    rule.preemphasis = (float)setting(ld, "preemphasis", rule.preemphasis, 0, 1);
    rule.floor = setting(ld, "mel_floor", rule.floor, 1e-12, 1);
    setting(ld, "dither", 0, 0, 0);
    setting(ld, "input_scale_factor", 1, 1, 1);
    load_require(ld, rule.preemphasis == 0 || switched(ld, "preemphasis_htk_flavor", true),
        "audio preprocessing: preemphasis_htk_flavor must be true");
    expect_null(ld, "per_bin_mean");
    expect_null(ld, "per_bin_stddev");
    return rule;
}

/* ---- a conformer ---- */

/* NAME.linear, with bounds where the file has them, or NAME itself. */
static ClippedLinear load_clipped(Loader *ld, const char *name, int rows, int cols) {
    char full[96];
    snprintf(full, sizeof full, "%s.input_min", name);
    const bool clipped = load_has(ld, full);
    snprintf(full, sizeof full, "%s.linear.weight", name);
    const bool inner = load_has(ld, full);
    snprintf(full, sizeof full, "%s%s", name, inner ? ".linear" : "");
    return (ClippedLinear){
        .weight = load_linear(ld, full, rows, cols, false), .clip = clipped ? load_clips(ld, &name, 1) : NULL};
}

static ConformerFfn load_ffn(Loader *ld, const char *home, int hidden) {
    char name[4][64];
    snprintf(name[0], sizeof name[0], "%s.pre_layer_norm", home);
    snprintf(name[1], sizeof name[1], "%s.post_layer_norm", home);
    snprintf(name[2], sizeof name[2], "%s.ffw_layer_1", home);
    snprintf(name[3], sizeof name[3], "%s.ffw_layer_2", home);
    return (ConformerFfn){.input_norm = load_rms(ld, name[0], hidden, default_eps),
        .output_norm = load_rms(ld, name[1], hidden, default_eps),
        .up = load_clipped(ld, name[2], 4 * hidden, hidden),
        .down = load_clipped(ld, name[3], hidden, 4 * hidden)};
}

/* head^−½ / ln 2 · softplus(per_dim_scale) */
static const float *load_q_scale(Loader *ld, const char *name, int head) {
    const float *scale = load_vector(ld, name, head, 0);
    float *out = load_floats(ld, head);
    for (int i = 0; scale && out && i < head; i++)
        out[i] = 1 / (sqrtf((float)head) * ln2) * (scale[i] > 20 ? scale[i] : log1pf(expf(scale[i])));
    return out;
}

static void load_layer(Loader *ld, const AudioSpec *audio, const ConformerNames *names, int i, float eps) {
    ConformerLayer *layer = &audio->layers[i];
    const int hidden = audio->hidden;
    char scope[32];
    snprintf(scope, sizeof scope, names->layer, i);
    load_scope(ld, "%s", scope);
    layer->ffn[0] = load_ffn(ld, names->ffn[0], hidden);
    layer->ffn[1] = load_ffn(ld, names->ffn[1], hidden);
    layer->attention_norm = load_rms(ld, names->attention_norm, hidden, default_eps);
    layer->attended_norm = load_rms(ld, names->attended_norm, hidden, default_eps);
    layer->norm = load_rms(ld, names->norm, hidden, default_eps);
    layer->q = load_clipped(ld, names->q, hidden, hidden);
    layer->k = load_clipped(ld, names->k, hidden, hidden);
    layer->v = load_clipped(ld, names->v, hidden, hidden);
    layer->o = load_clipped(ld, names->o, hidden, hidden);
    layer->relative = load_linear(ld, names->relative, hidden, hidden, false);
    layer->q_scale = load_q_scale(ld, names->q_scale, hidden / audio->heads);
    layer->conv_input_norm = load_rms(ld, "lconv1d.pre_layer_norm", hidden, eps);
    layer->conv_norm = load_rms(ld, "lconv1d.conv_norm", hidden, eps);
    layer->conv_in = load_clipped(ld, "lconv1d.linear_start", 2 * hidden, hidden);
    layer->conv_out = load_clipped(ld, "lconv1d.linear_end", hidden, hidden);
    layer->taps = load_array(ld, "lconv1d.depthwise_conv1d.weight", hidden, audio->taps);
}

/* The layers, and what comes before them. channels: field of the convolutions' channels; conv: format of their names.
 * audio has the sizes. */
static void load_conformer_part(Loader *ld, AudioSpec *audio, const ConformerNames *names, const char *channels_field,
    const char *conv, float eps) {
    int channels = 1, bins = audio->mel.bins;
    load_require(ld,
        audio->hidden <= AUDIO_HIDDEN_MAX && audio->hidden % audio->heads == 0 &&
            audio->hidden / audio->heads <= AUDIO_HEAD_MAX && audio->taps <= AUDIO_TAPS_MAX && audio->span >= 1 &&
            audio->span <= AUDIO_SPAN_MAX,
        "audio: %d elements, %d heads, %d taps and %d keys of a row are not supported", audio->hidden, audio->heads,
        audio->taps, audio->span);
    for (int i = 0; i < 2; i++) {
        const int out = load_int_at(ld, channels_field, i, i ? 32 : 128);
        char name[64], full[96];
        load_require(ld, out <= AUDIO_HIDDEN_MAX, "audio: %d channels, at most %d are possible", out, AUDIO_HIDDEN_MAX);
        snprintf(name, sizeof name, conv, i);
        snprintf(full, sizeof full, "subsample_conv_projection.%s.conv", name);
        audio->conv[i].weight = load_convolution(ld, full, out, channels, 3, 1, false);
        snprintf(full, sizeof full, "subsample_conv_projection.%s.norm.weight", name);
        audio->conv[i].norm = load_vector(ld, full, out, 0);
        channels = out;
        bins = (bins + 1) / 2;
    }
    audio->input =
        load_linear(ld, "subsample_conv_projection.input_proj_linear", audio->hidden, bins * channels, false);
    load_conformer(ld, audio);
    for (int i = 0; i < audio->layer_count; i++) load_layer(ld, audio, names, i, eps);
    load_scope(ld, "%s", "");
}

/* ---- Gemma 4 ---- */

static void load_span(Loader *ld, AudioSpec *audio) {
    const int left = load_int_or(ld, "attention_context_left", 13), chunk = load_int_or(ld, "attention_chunk_size", 12);
    audio->span = left - 1;
    load_expect_int(ld, "attention_context_right", 0);
    load_ignore(ld, "attention_invalid_logits_value", "use_clipped_linears", NULL);
    /* The distances that the reference's table has. */
    load_require(ld, (chunk + audio->span) / 2 == audio->span,
        "audio: attention_context_left %d with attention_chunk_size %d is not supported", left, chunk);
}

/* Returns the width of the tower's rows. */
static int load_tower(Loader *ld, AudioSpec *audio, float eps) {
    audio->mel = load_mel(ld, mel_gemma4);
    audio->hidden = load_int_or(ld, "hidden_size", 1024);
    audio->heads = load_int_or(ld, "num_attention_heads", 8);
    audio->taps = load_int_or(ld, "conv_kernel_size", 5);
    audio->layer_count = load_int_or(ld, "num_hidden_layers", 12);
    audio->ffn_scale = load_positive_or(ld, "residual_weight", 0.5);
    audio->clip = load_positive_or(ld, "gradient_clipping", 1e10);
    audio->softcap = load_positive_or(ld, "attention_logit_cap", 50);
    audio->k_scale = logf(1 + expf(1)) / ln2;
    audio->conv_eps = eps;
    load_expect_text(ld, "hidden_act", "silu");
    load_span(ld, audio);
    const int out = load_int_or(ld, "output_proj_dims", 1536);
    load_conformer_part(ld, audio, &names_gemma4, "subsampling_conv_channels", "layer%d", eps);
    audio->output = load_linear(ld, "output_proj", out, audio->hidden, true);
    return out;
}

void audio_load_gemma4(Loader *ld, Spec *spec) {
    const LoadPlace root = load_place(ld);
    AudioSpec *audio = load_audio_part(ld);
    if (!audio) return;
    const float eps = load_positive_or(ld, "rms_norm_eps", 1e-6);
    *audio = (AudioSpec){.seconds_max = 30,
        .reduction = 1,
        .placeholder = "<|audio|>",
        .before = "<|audio>",
        .token = "<|audio|>",
        .after = "<audio|>"};
    int width;
    if (load_has_field(ld, "audio_samples_per_token")) {
        width = audio->raw = load_int(ld, "audio_samples_per_token");
        load_expect_int(ld, "audio_embed_dim", width);
        load_ignore(ld, "hidden_size", "output_proj_dims", NULL);
    } else {
        width = load_tower(ld, audio, eps);
    }
    load_return(ld, &root);
    load_scope(ld, "%s", load_has(ld, "model.embed_audio.embedding_projection.weight") ? "model." : "");
    audio->embedding_norm = load_rms(ld, NULL, width, eps);
    audio->embedding = load_linear(ld, "embed_audio.embedding_projection", spec->hidden, width, false);
    load_return(ld, &root);
}

/* ---- Gemma 3n ---- */

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
    *audio = (AudioSpec){.mel = load_mel(ld, mel_gemma3n),
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
    load_conformer_part(ld, audio, &names_gemma3n, "sscp_conv_channel_size", "conv_%d", eps);
    load_return(ld, &root);
    load_scope(ld, "%s", load_has(ld, "model.embed_audio.embedding_projection.weight") ? "model." : "");
    load_fixed_rows(ld, audio, rows, end - offset, vocab, eps);
    audio->embedding_norm = load_rms(ld, "embed_audio.soft_embedding_norm", audio->hidden, eps);
    audio->embedding = load_linear(ld, "embed_audio.embedding_projection", spec->hidden, audio->hidden, false);
    audio->row_norm = load_rms(ld, NULL, spec->hidden, eps);
    load_return(ld, &root);
}
