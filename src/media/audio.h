/* Audio files to samples: mono, 16 kHz, as speech models take them. Channels are averaged, then libsoxr resamples (its
 * preset HQ, as librosa and transformers). Sizes are checked from the header before anything is allocated, and again
 * while a file is decoded. A damaged file is an error where its format tells that something is missing. Threads: any.
 */
#pragma once
#include <stdint.h>

#include "base/error.h"
#include "base/slice.h"

enum {
    AUDIO_RATE = 16000,          /* samples per second after decoding */
    AUDIO_BYTES_MAX = 25 << 20,  /* bytes of a file */
    AUDIO_SECONDS_MAX = 600,     /* seconds of a file */
    AUDIO_FRAMES_MAX = 28800000, /* samples of a channel as stored: AUDIO_SECONDS_MAX at 48 kHz */
    AUDIO_CHANNELS_MAX = 8,
    AUDIO_FILE_RATE_MIN = 1000, /* samples per second as stored */
    AUDIO_FILE_RATE_MAX = 192000,
};

typedef struct Audio {
    int count;
    float *samples; /* [count] finite, usually within ±1; owned */
} Audio;

/* WAV (PCM of 8 to 32 bits, float, A-law, µ-law), MP3, FLAC, Ogg Vorbis and Ogg Opus, as the first bytes tell.
 * seconds_max: more are ERROR_LIMIT; at most AUDIO_SECONDS_MAX. Errors: ERROR_UNSUPPORTED for other formats and for
 * what this build has no library for, ERROR_FORMAT for damaged files and for files without samples, ERROR_LIMIT,
 * ERROR_MEMORY. */
NODISCARD bool audio_decode(Slice file, double seconds_max, Audio *audio, Error *error);
void audio_free(Audio *audio); /* safe on a zeroed one */
