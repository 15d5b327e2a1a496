/* References: transformers, models/gemma4/modeling_gemma4.py, models/gemma3n/modeling_gemma3n.py. */
#include "family/audio_conformer.h"

#include <math.h>
#include <stdio.h>

static const float ln2 = 0.693147181F;
static const float default_eps = 1e-6F; /* eps of most norms, whatever rms_norm_eps is */

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

MelRule audio_load_mel(Loader *ld, MelRule rule) {
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

void audio_load_conformer(Loader *ld, AudioSpec *audio, const ConformerNames *names, const char *channels_field,
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
