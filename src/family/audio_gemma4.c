/* The audio part of Gemma 4. References: transformers, models/gemma4/modeling_gemma4.py, models/gemma4_unified. */
#include "family/audio_conformer.h"

#include <math.h>

static const float ln2 = 0.693147181F;

static const ConformerNames names = {.layer = "layers.%d.",
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
    audio->mel = audio_load_mel(ld, mel_gemma4);
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
    audio_load_conformer(ld, audio, &names, "subsampling_conv_channels", "layer%d", eps);
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
