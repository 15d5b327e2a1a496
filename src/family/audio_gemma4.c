/* The audio parts of Gemma 4. Reference: transformers, models/gemma4/modeling_gemma4.py and models/gemma4_unified. */
#include "family/audio.h"

#include <math.h>
#include <stdio.h>

static const float ln2 = 0.693147181F;

/* NAME.linear, with bounds where the file has them. */
static ClippedLinear load_clipped(Loader *ld, const char *name, int rows, int cols) {
    char full[96];
    snprintf(full, sizeof full, "%s.input_min", name);
    const bool clipped = load_has(ld, full);
    snprintf(full, sizeof full, "%s.linear", name);
    return (ClippedLinear){
        .weight = load_linear(ld, full, rows, cols, false), .clip = clipped ? load_clips(ld, &name, 1) : NULL};
}

static ConformerFfn load_ffn(Loader *ld, const char *home, int hidden, float eps) {
    char name[4][64];
    snprintf(name[0], sizeof name[0], "%s.pre_layer_norm", home);
    snprintf(name[1], sizeof name[1], "%s.post_layer_norm", home);
    snprintf(name[2], sizeof name[2], "%s.ffw_layer_1", home);
    snprintf(name[3], sizeof name[3], "%s.ffw_layer_2", home);
    return (ConformerFfn){.input_norm = load_rms(ld, name[0], hidden, eps),
        .output_norm = load_rms(ld, name[1], hidden, eps),
        .up = load_clipped(ld, name[2], 4 * hidden, hidden),
        .down = load_clipped(ld, name[3], hidden, 4 * hidden)};
}

/* head^−½ / ln 2 · softplus(per_dim_scale) */
static const float *load_q_scale(Loader *ld, int head) {
    const float *scale = load_vector(ld, "self_attn.per_dim_scale", head, 0);
    float *out = load_floats(ld, head);
    for (int i = 0; scale && out && i < head; i++)
        out[i] = 1 / (sqrtf((float)head) * ln2) * (scale[i] > 20 ? scale[i] : log1pf(expf(scale[i])));
    return out;
}

static void load_layer(Loader *ld, const AudioSpec *audio, int i, float eps) {
    ConformerLayer *layer = &audio->layers[i];
    const int hidden = audio->hidden;
    load_scope(ld, "layers.%d.", i);
    layer->ffn[0] = load_ffn(ld, "feed_forward1", hidden, 1e-6F); /* these norms have the default, whatever eps is */
    layer->ffn[1] = load_ffn(ld, "feed_forward2", hidden, 1e-6F);
    layer->attention_norm = load_rms(ld, "norm_pre_attn", hidden, 1e-6F);
    layer->attended_norm = load_rms(ld, "norm_post_attn", hidden, 1e-6F);
    layer->norm = load_rms(ld, "norm_out", hidden, 1e-6F);
    layer->q = load_clipped(ld, "self_attn.q_proj", hidden, hidden);
    layer->k = load_clipped(ld, "self_attn.k_proj", hidden, hidden);
    layer->v = load_clipped(ld, "self_attn.v_proj", hidden, hidden);
    layer->o = load_clipped(ld, "self_attn.post", hidden, hidden);
    layer->relative = load_linear(ld, "self_attn.relative_k_proj", hidden, hidden, false);
    layer->q_scale = load_q_scale(ld, hidden / audio->heads);
    layer->conv_input_norm = load_rms(ld, "lconv1d.pre_layer_norm", hidden, eps);
    layer->conv_norm = load_rms(ld, "lconv1d.conv_norm", hidden, eps);
    layer->conv_in = load_clipped(ld, "lconv1d.linear_start", 2 * hidden, hidden);
    layer->conv_out = load_clipped(ld, "lconv1d.linear_end", hidden, hidden);
    layer->taps = load_array(ld, "lconv1d.depthwise_conv1d.weight", hidden, audio->taps);
}

static void load_attention(Loader *ld, AudioSpec *audio) {
    const int left = load_int_or(ld, "attention_context_left", 13), chunk = load_int_or(ld, "attention_chunk_size", 12);
    audio->span = left - 1;
    audio->softcap = load_positive_or(ld, "attention_logit_cap", 50);
    audio->k_scale = logf(1 + expf(1)) / ln2;
    load_expect_int(ld, "attention_context_right", 0);
    load_ignore(ld, "attention_invalid_logits_value", "use_clipped_linears", NULL);
    /* The distances that the reference's table has. */
    load_require(ld, audio->span >= 1 && audio->span <= AUDIO_SPAN_MAX && (chunk + audio->span) / 2 == audio->span,
        "audio: attention_context_left %d with attention_chunk_size %d is not supported", left, chunk);
}

static void load_subsampling(Loader *ld, AudioSpec *audio) {
    int channels = 1, bins = audio->mel->bins;
    for (int i = 0; i < 2; i++) {
        const int out = load_int_at(ld, "subsampling_conv_channels", i, i ? 32 : 128);
        char name[64];
        load_require(ld, out <= AUDIO_HIDDEN_MAX, "audio: %d channels, at most %d are possible", out, AUDIO_HIDDEN_MAX);
        snprintf(name, sizeof name, "subsample_conv_projection.layer%d.conv", i);
        audio->conv[i].weight = load_convolution(ld, name, out, channels, 3, 1, false);
        snprintf(name, sizeof name, "subsample_conv_projection.layer%d.norm.weight", i);
        audio->conv[i].norm = load_vector(ld, name, out, 0);
        channels = out;
        bins /= 2;
    }
    audio->input =
        load_linear(ld, "subsample_conv_projection.input_proj_linear", audio->hidden, bins * channels, false);
}

/* Returns the width of the tower's rows. */
static int load_tower(Loader *ld, AudioSpec *audio, float eps) {
    audio->mel = &mel_gemma4;
    audio->hidden = load_int_or(ld, "hidden_size", 1024);
    audio->heads = load_int_or(ld, "num_attention_heads", 8);
    audio->taps = load_int_or(ld, "conv_kernel_size", 5);
    audio->layer_count = load_int_or(ld, "num_hidden_layers", 12);
    audio->ffn_scale = load_positive_or(ld, "residual_weight", 0.5);
    audio->clip = load_positive_or(ld, "gradient_clipping", 1e10);
    audio->conv_eps = eps;
    load_expect_text(ld, "hidden_act", "silu");
    load_require(ld,
        audio->hidden <= AUDIO_HIDDEN_MAX && audio->hidden % audio->heads == 0 &&
            audio->hidden / audio->heads <= AUDIO_HEAD_MAX && audio->taps <= AUDIO_TAPS_MAX,
        "audio: hidden_size %d, %d heads and conv_kernel_size %d are not supported", audio->hidden, audio->heads,
        audio->taps);
    load_attention(ld, audio);
    const int out = load_int_or(ld, "output_proj_dims", 1536);
    load_subsampling(ld, audio);
    load_conformer(ld, audio);
    for (int i = 0; i < audio->layer_count; i++) load_layer(ld, audio, i, eps);
    load_scope(ld, "%s", "");
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
