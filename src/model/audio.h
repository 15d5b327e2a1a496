/* The audio part of a model as plain data: how samples become rows, the conformer that computes with them, and the
 * projection to rows of the text model's first layer. Filled by a family file, constant afterwards; computed by
 * audio_encoder.h. Norms, scales and taps are host memory. Source: Universal Speech Model (arXiv 2303.01037). */
#pragma once
#include "media/audio.h"
#include "media/mel.h"
#include "model/spec.h"

enum {
    AUDIO_SPAN_MAX = 64, /* keys that a row sees */
    AUDIO_HIDDEN_MAX = 8192,
    AUDIO_HEAD_MAX = 512, /* elements of a head */
    AUDIO_TAPS_MAX = 32,  /* taps of a convolution over time */
};

/* A product with bounds. */
typedef struct ClippedLinear {
    Weight weight;
    const Clip *clip; /* NULL: none */
} ClippedLinear;

/* x += scale · output_norm(down · silu(up · input_norm(x))) */
typedef struct ConformerFfn {
    const Norm *input_norm, *output_norm;
    ClippedLinear up, down;
} ConformerFfn;

/* Half a feed-forward network, attention, a convolution over time, the other half, a norm. */
typedef struct ConformerLayer {
    ConformerFfn ffn[2];
    /* Row i sees rows i − span < j ≤ i. score = q·k_j + q·r_{i−j}, r_d = relative · (sines and cosines of d). */
    const Norm *attention_norm, *attended_norm;
    ClippedLinear q, k, v, o;
    Weight relative;      /* [hidden, hidden] */
    const float *q_scale; /* [head] multiplies the queries of each head */
    /* x += conv_out · silu(conv_norm(taps over time of a ∘ σ(b))), (a, b) = conv_in · conv_input_norm(x) */
    const Norm *conv_input_norm, *conv_norm;
    ClippedLinear conv_in, conv_out;
    const float *taps; /* [hidden, taps], the last one for the row itself */
    const Norm *norm;
} ConformerLayer;

/* A convolution of 3 × 3 in steps of 2 over time and mel bins, a norm, ReLU. */
typedef struct AudioConv {
    Weight weight;     /* [channels, 3 · 3 · channels before] */
    const float *norm; /* [channels] weights of the norm */
} AudioConv;

typedef struct AudioSpec {
    MelRule mel; /* bins 0: rows are `raw` samples each */
    int raw;
    double seconds_max; /* longer audio is refused */
    AudioConv conv[2];
    bool causal_conv; /* convolutions have no padding in front of the time; the norm is over all channels, bins and
                         rows so far; otherwise over the channels alone */
    float conv_eps;
    Weight input; /* [hidden, bins/4 · channels] */
    int hidden, heads, span, taps, layer_count;
    ConformerLayer *layers; /* [layer_count] */
    float softcap;          /* bound of scores: s = cap·tanh(s/cap) */
    float k_scale;          /* multiplies the keys */
    float ffn_scale;
    float clip;    /* residuals are kept within ±clip before norms */
    int reduction; /* one row of so many is kept */
    /* Not 0: each clip has so many rows, and one more behind them; padding: inputs of the embedding that complete its
     * own rows; end: those of the last one. Both [hidden], normed. */
    int fixed_rows;
    const float *padding, *end;
    Weight output; /* with a bias; rows 0: none */
    const Norm *embedding_norm;
    Weight embedding;                   /* [hidden of the text model, …] */
    const Norm *row_norm;               /* norm of its results; NULL: none */
    const char *placeholder;            /* what a chat template writes for a clip */
    const char *before, *token, *after; /* what replaces that in the prompt: token once for each row */
    const char *last_token;             /* what stands for the last row instead; NULL: token */
} AudioSpec;

/* Rows of so many samples; 0: too few. */
int audio_rows(const AudioSpec *spec, int samples);
