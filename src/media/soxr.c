/* Resampling through libsoxr: its preset HQ over the whole audio in one call, as librosa does it. */
#include <soxr.h>

#include "media/audio_internal.h"

bool audio_convert_rate(const float *samples, int64_t count, int rate, Audio *out, Error *error) {
    const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
    size_t made = 0;
    soxr_error_t failure = soxr_oneshot(rate, AUDIO_RATE, 1, samples, (size_t)count, NULL, out->samples,
        (size_t)out->count, &made, NULL, &quality, NULL);
    for (size_t i = made; i < (size_t)out->count; i++) out->samples[i] = 0;
    return !failure || fail(error, ERROR_MEMORY, "resampling: %s", failure);
}
