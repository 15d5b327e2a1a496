/* Decoders of audio files, for audio.c. */
#pragma once
#include "media/audio.h"

/* What a header tells. */
typedef struct AudioHeader {
    int64_t rate, channels; /* unchecked */
    int64_t frames;         /* samples of a channel; −1: not told */
} AudioHeader;

typedef struct AudioDecoder {
    const char *name; /* "MP3" */
    bool (*is)(Slice file);
    /* A stream of a file, to be closed; NULL with the error. Entry NULL: this build has no such decoder. */
    void *(*open)(Slice file, AudioHeader *header, Error *error);
    /* The next frames, [count][channels]. Returns how many; fewer than count: the end; −1: the error. */
    int (*read)(void *stream, float *frames, int count, Error *error);
    void (*close)(void *stream);
} AudioDecoder;

void *wav_open(Slice file, AudioHeader *header, Error *error);
int wav_read(void *stream, float *frames, int count, Error *error);
void wav_close(void *stream);

void *mp3_open(Slice file, AudioHeader *header, Error *error);
int mp3_read(void *stream, float *frames, int count, Error *error);
void mp3_close(void *stream);

void *flac_open(Slice file, AudioHeader *header, Error *error);
int flac_read(void *stream, float *frames, int count, Error *error);
void flac_close(void *stream);

void *vorbis_open(Slice file, AudioHeader *header, Error *error);
int vorbis_read(void *stream, float *frames, int count, Error *error);
void vorbis_close(void *stream);

void *opus_open(Slice file, AudioHeader *header, Error *error);
int opus_read(void *stream, float *frames, int count, Error *error);
void opus_close(void *stream);

/* Samples of another rate at AUDIO_RATE; out->count is set, out->samples allocated. Through libsoxr. */
NODISCARD bool audio_convert_rate(const float *samples, int64_t count, int rate, Audio *out, Error *error);
