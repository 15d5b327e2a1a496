/* Logarithmic mel spectrograms, as the feature extractors of speech models compute them. Threads: any. */
#pragma once
#include <stdint.h>

#include "base/error.h"

/* Frames of `frame` samples, each `hop` behind the one before, times a periodic Hann window; the magnitudes of their
 * spectrum through triangular filters, equally wide on HTK's mel scale; ln(x + floor) or ln(max(x, floor)). */
typedef struct MelRule {
    int frame, hop; /* samples; frame ≤ fft */
    int fft;        /* a power of two */
    int bins;       /* filters */
    int left;       /* zeros in front of the samples */
    double low_hz, high_hz;
    double preemphasis; /* x[i] − preemphasis · x[i − 1] within a frame, its first sample times 1 − preemphasis; 0: none
                         */
    double floor;
    bool floor_added; /* ln(x + floor) */
    bool real_only;   /* no frame reaches beyond the samples; otherwise zeros complete these to a multiple of 128 */
} MelRule;

/* Gemma 4 and Gemma 3n. References: transformers, models/gemma4/feature_extraction_gemma4.py and
 * models/gemma3n/feature_extraction_gemma3n.py. */
extern const MelRule mel_gemma4, mel_gemma3n;

/* Frames of so many samples; 0: too few. */
int mel_frames(const MelRule *rule, int samples);
/* out: [mel_frames()][bins]. ERROR_MEMORY. */
NODISCARD bool mel_compute(const MelRule *rule, const float *samples, int count, float *out, Error *error);
