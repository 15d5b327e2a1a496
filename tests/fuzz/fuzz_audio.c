/* Audio: an input is one file. What is accepted has samples that are numbers, within the limits. */
#include <math.h>

#include "media/audio.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { SECONDS_MAX = 10 }; /* longer ones take seconds under a fuzzer */
    Audio audio;
    Error error = {0};
    if (!audio_decode((Slice){(const char *)data, size}, SECONDS_MAX, &audio, &error)) {
        CHECK(error.code != ERROR_NONE && !audio.samples);
        return 0;
    }
    CHECK(audio.count > 0 && audio.count <= SECONDS_MAX * AUDIO_RATE);
    for (int i = 0; i < audio.count; i++) CHECK(isfinite(audio.samples[i]));
    audio_free(&audio);
    return 0;
}
