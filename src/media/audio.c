#include "media/audio_internal.h"

#include <math.h>
#include <stdlib.h>

#ifdef APUS_MPG123
#define MP3_FUNCTIONS .open = mp3_open, .read = mp3_read, .close = mp3_close
#else
#define MP3_FUNCTIONS .open = NULL
#endif
#ifdef APUS_SNDFILE
#define FLAC_FUNCTIONS .open = flac_open, .read = flac_read, .close = flac_close
#else
#define FLAC_FUNCTIONS .open = NULL
#endif
#ifdef APUS_VORBIS
#define VORBIS_FUNCTIONS .open = vorbis_open, .read = vorbis_read, .close = vorbis_close
#else
#define VORBIS_FUNCTIONS .open = NULL
#endif
#ifdef APUS_OPUS
#define OPUS_FUNCTIONS .open = opus_open, .read = opus_read, .close = opus_close
#else
#define OPUS_FUNCTIONS .open = NULL
#endif

enum { BLOCK = 4096 /* frames that are decoded at once */ };

static bool wav_is(Slice file) {
    return file.size >= 12 && (slice_starts(file, SLICE("RIFF")) || slice_starts(file, SLICE("RF64"))) &&
        !memcmp(file.data + 8, "WAVE", 4);
}
static bool sync_is(Slice file) { /* the first bits of frames of MPEG audio */
    return file.size >= 2 && (uint8_t)file.data[0] == 0xFF && ((uint8_t)file.data[1] & 0xE0) == 0xE0;
}
static bool aac_is(Slice file) { return sync_is(file) && !((uint8_t)file.data[1] & 0x06); }
/* Bytes of an ID3v2 tag in front; 0: there is none. */
static size_t id3_bytes(Slice file) {
    enum { HEAD = 10 };
    size_t size = 0;
    if (file.size < HEAD || !slice_starts(file, SLICE("ID3"))) return 0;
    for (int i = 6; i < HEAD; i++) size = size << 7 | ((uint8_t)file.data[i] & 0x7F);
    return HEAD + size < file.size ? HEAD + size : 0;
}
static bool flac_is(Slice file) {
    const size_t tag = id3_bytes(file);
    return slice_starts((Slice){file.data + tag, file.size - tag}, SLICE("fLaC"));
}
static bool mp3_is(Slice file) {
    return (slice_starts(file, SLICE("ID3")) && !flac_is(file)) || (sync_is(file) && !aac_is(file));
}
static bool ogg_is(Slice file) { return slice_starts(file, SLICE("OggS")); }
/* The packet of the first page begins with this. */
static bool ogg_holds(Slice file, const char *what) {
    enum { PAGE_HEAD = 28 }; /* bytes before the packet, in a page with one segment */
    return ogg_is(file) && file.size > PAGE_HEAD &&
        slice_starts((Slice){file.data + PAGE_HEAD, file.size - PAGE_HEAD}, slice_of(what));
}
static bool opus_is(Slice file) { return ogg_holds(file, "OpusHead"); }
static bool vorbis_is(Slice file) { return ogg_holds(file, "\x01vorbis"); }
static bool mp4_is(Slice file) { return file.size >= 12 && !memcmp(file.data + 4, "ftyp", 4); }
static bool webm_is(Slice file) { return slice_starts(file, SLICE("\x1A\x45\xDF\xA3")); }
static bool aiff_is(Slice file) {
    return file.size >= 12 && slice_starts(file, SLICE("FORM")) && !memcmp(file.data + 8, "AIF", 3);
}

/* The first that knows the file's beginning. Those without functions are refused by name. */
static const AudioDecoder decoders[] = {
    {.name = "WAV", .is = wav_is, .open = wav_open, .read = wav_read, .close = wav_close},
    {.name = "MP3", .is = mp3_is, MP3_FUNCTIONS},
    {.name = "FLAC", .is = flac_is, FLAC_FUNCTIONS},
    {.name = "Ogg Vorbis", .is = vorbis_is, VORBIS_FUNCTIONS},
    {.name = "Ogg Opus", .is = opus_is, OPUS_FUNCTIONS},
    {.name = "this kind of Ogg", .is = ogg_is},
    {.name = "AAC", .is = aac_is},
    {.name = "MP4 (M4A)", .is = mp4_is},
    {.name = "WebM", .is = webm_is},
    {.name = "AIFF", .is = aiff_is},
};

static const AudioDecoder *find_decoder(Slice file, Error *error) {
    if (file.size > AUDIO_BYTES_MAX) {
        fail(error, ERROR_LIMIT, "audio of %zu bytes, at most %d are possible", file.size, AUDIO_BYTES_MAX);
        return NULL;
    }
    for (size_t i = 0; i < COUNT_OF(decoders); i++) {
        if (!decoders[i].is(file)) continue;
        if (decoders[i].open) return &decoders[i];
        const bool known = decoders[i].is == mp3_is || decoders[i].is == flac_is || decoders[i].is == vorbis_is ||
            decoders[i].is == opus_is;
        fail(error, ERROR_UNSUPPORTED, "%s audio is not supported%s; WAV, MP3, FLAC, Ogg Vorbis and Opus are",
            decoders[i].name, known ? " by this build" : "");
        return NULL;
    }
    fail(error, ERROR_UNSUPPORTED, "these bytes are no WAV, MP3, FLAC or Ogg audio");
    return NULL;
}

static bool check_header(const AudioHeader *header, double seconds_max, Error *error) {
    if (header->rate < AUDIO_FILE_RATE_MIN || header->rate > AUDIO_FILE_RATE_MAX)
        return fail(error, ERROR_LIMIT, "%lld samples per second, %d to %d are possible", (long long)header->rate,
            AUDIO_FILE_RATE_MIN, AUDIO_FILE_RATE_MAX);
    if (header->channels < 1 || header->channels > AUDIO_CHANNELS_MAX)
        return fail(
            error, ERROR_LIMIT, "%lld channels, 1 to %d are possible", (long long)header->channels, AUDIO_CHANNELS_MAX);
    const double seconds = (double)header->frames / (double)header->rate;
    return seconds <= seconds_max ||
        fail(error, ERROR_LIMIT, "the audio is %.2f s long, at most %g s are possible", seconds, seconds_max);
}

/* Samples of a growing array. */
typedef struct Samples {
    float *at;
    int64_t count, capacity;
} Samples;

static bool make_room(Samples *s, int64_t more, Error *error) {
    if (s->count + more <= s->capacity) return true;
    const int64_t least = s->count + more, capacity = 2 * s->capacity > least ? 2 * s->capacity : least;
    float *grown = realloc(s->at, (size_t)capacity * sizeof *grown);
    if (!grown) return fail(error, ERROR_MEMORY, "no memory for %lld samples", (long long)capacity);
    s->at = grown;
    s->capacity = capacity;
    return true;
}

/* The mean of the channels of each frame. */
static bool add_frames(Samples *s, const float *frames, int count, int channels, Error *error) {
    for (int i = 0; i < count; i++) {
        float sum = 0;
        for (int c = 0; c < channels; c++) sum += frames[i * channels + c];
        if (!isfinite(sum)) return fail(error, ERROR_FORMAT, "sample %lld is not a number", (long long)s->count);
        s->at[s->count++] = sum / (float)channels;
    }
    return true;
}

static bool read_all(const AudioDecoder *decoder, void *stream, const AudioHeader *header, double seconds_max,
    Samples *samples, Error *error) {
    float frames[BLOCK * AUDIO_CHANNELS_MAX];
    const double most = fmin(seconds_max * (double)header->rate, AUDIO_FRAMES_MAX);
    if (header->frames > 0 && header->frames <= AUDIO_FRAMES_MAX && !make_room(samples, header->frames, error))
        return false;
    for (int count = BLOCK; count == BLOCK;) {
        count = decoder->read(stream, frames, BLOCK, error);
        if (count < 0) return false;
        if ((double)(samples->count + count) > most)
            return fail(error, ERROR_LIMIT, "the audio is longer than %g s (%lld samples at %lld Hz)",
                most / (double)header->rate, (long long)samples->count + count, (long long)header->rate);
        if (!make_room(samples, count, error) || !add_frames(samples, frames, count, (int)header->channels, error))
            return false;
    }
    return samples->count > 0 || fail(error, ERROR_FORMAT, "there are no samples");
}

static bool resample(const float *samples, int64_t count, int rate, Audio *out, Error *error) {
#ifdef APUS_SOXR
    *out = (Audio){.count = (int)llround((double)count * AUDIO_RATE / rate)};
    if (out->count == 0) return fail(error, ERROR_FORMAT, "there are no samples");
    out->samples = malloc((size_t)out->count * sizeof *out->samples);
    if (!out->samples) return fail(error, ERROR_MEMORY, "no memory for %d samples", out->count);
    if (audio_convert_rate(samples, count, rate, out, error)) return true;
    audio_free(out);
    return false;
#else
    return fail(
        error, ERROR_UNSUPPORTED, "%d samples per second are not supported by this build, %d are", rate, AUDIO_RATE);
#endif
}

bool audio_decode(Slice file, double seconds_max, Audio *audio, Error *error) {
    *audio = (Audio){0};
    const AudioDecoder *decoder = find_decoder(file, error);
    if (!decoder) return false;
    AudioHeader header = {.frames = -1};
    Samples samples = {0};
    void *stream = decoder->open(file, &header, error);
    bool ok = stream && check_header(&header, seconds_max, error) &&
        read_all(decoder, stream, &header, seconds_max, &samples, error);
    if (stream) decoder->close(stream);
    if (ok && header.rate == AUDIO_RATE) {
        *audio = (Audio){(int)samples.count, samples.at};
        return true;
    }
    ok = ok && resample(samples.at, samples.count, (int)header.rate, audio, error);
    free(samples.at);
    return ok || fail_while(error, "%s", decoder->name);
}

void audio_free(Audio *audio) {
    free(audio->samples);
    *audio = (Audio){0};
}
