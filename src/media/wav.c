/* WAV: RIFF and RF64 with PCM of 8, 16, 24 and 32 bits, floats of 32 and 64 bits, A-law and µ-law. A size of the
 * samples that was never filled in (0, or one that no file of this size can have been meant to have) stands for the
 * rest of the file. */
#include <stdlib.h>

#include "media/audio_internal.h"

typedef enum WavFormat { WAV_PCM = 1, WAV_FLOAT = 3, WAV_A_LAW = 6, WAV_MU_LAW = 7, WAV_EXTENSIBLE = 0xFFFE } WavFormat;

enum {
    CHUNK_HEAD = 8, /* bytes of a chunk's name and size */
    RIFF_HEAD = 12,
    FORMAT_BYTES = 16,         /* size of the smallest format chunk */
    EXTENSIBLE_BYTES = 26,     /* up to the format that an extensible one names */
    UNKNOWN_SIZE = 0x7FFFFF00, /* sizes from here on were not filled in */
};

typedef struct Wav {
    int format, channels, bytes; /* bytes: of a sample */
    Slice left;                  /* samples that have not been read */
} Wav;

static uint32_t u16_at(const char *at) {
    const uint8_t *b = (const uint8_t *)at;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8;
}
static uint32_t u32_at(const char *at) { return u16_at(at) | u16_at(at + 2) << 16; }
static uint64_t u64_at(const char *at) { return u32_at(at) | (uint64_t)u32_at(at + 4) << 32; }

/* The chunk of this name; data NULL: there is none. truncated: its size exceeds the file. */
static Slice find_chunk(Slice file, const char *name, bool *truncated) {
    for (size_t at = RIFF_HEAD; at <= file.size && file.size - at >= CHUNK_HEAD;) {
        const char *chunk = file.data + at;
        const size_t size = u32_at(chunk + 4), left = file.size - at - CHUNK_HEAD;
        *truncated = size > left;
        if (!memcmp(chunk, name, 4)) return (Slice){chunk + CHUNK_HEAD, *truncated ? left : size};
        if (*truncated) break;
        at += CHUNK_HEAD + size + (size & 1);
    }
    return (Slice){0};
}

static bool read_format(Slice chunk, Wav *wav, AudioHeader *header, Error *error) {
    if (chunk.size < FORMAT_BYTES) return fail(error, ERROR_FORMAT, "no format of the samples");
    uint32_t format = u16_at(chunk.data);
    const uint32_t bits = u16_at(chunk.data + 14), block = u16_at(chunk.data + 12);
    if (format == WAV_EXTENSIBLE && chunk.size >= EXTENSIBLE_BYTES) format = u16_at(chunk.data + 24);
    header->channels = u16_at(chunk.data + 2);
    header->rate = u32_at(chunk.data + 4);
    const bool pcm = format == WAV_PCM && (bits == 8 || bits == 16 || bits == 24 || bits == 32);
    const bool real = format == WAV_FLOAT && (bits == 32 || bits == 64);
    const bool law = (format == WAV_A_LAW || format == WAV_MU_LAW) && bits == 8;
    if (!pcm && !real && !law)
        return fail(error, ERROR_UNSUPPORTED,
            "samples of format %u with %u bits are not supported; PCM, float, A-law and µ-law are", format, bits);
    wav->format = (int)format;
    wav->channels = (int)header->channels;
    wav->bytes = (int)bits / 8;
    return (header->channels > 0 && block == header->channels * bits / 8) ||
        fail(error, ERROR_FORMAT, "%lld channels of %u bits in blocks of %u bytes", (long long)header->channels, bits,
            block);
}

/* The samples. RF64 has their size in its first chunk. */
static bool find_samples(Slice file, Wav *wav, AudioHeader *header, Error *error) {
    bool truncated = false, ignored;
    wav->left = find_chunk(file, "data", &truncated);
    if (!wav->left.data) return fail(error, ERROR_FORMAT, "there are no samples");
    uint64_t size = u32_at(wav->left.data - 4);
    const size_t rest = (size_t)(file.data + file.size - wav->left.data);
    const Slice sizes = find_chunk(file, "ds64", &ignored);
    if (size == UINT32_MAX && sizes.size >= 16) size = u64_at(sizes.data + 8);
    if (size == 0 || (size >= UNKNOWN_SIZE && size > rest)) size = rest;
    if (size > rest)
        return fail(
            error, ERROR_FORMAT, "the file is truncated: %zu of %llu bytes of samples", rest, (unsigned long long)size);
    const size_t frame = (size_t)wav->bytes * (size_t)wav->channels;
    wav->left.size = (size_t)size - (size_t)size % frame;
    header->frames = (int64_t)(wav->left.size / frame);
    return true;
}

void *wav_open(Slice file, AudioHeader *header, Error *error) {
    bool truncated = false;
    Wav wav = {0};
    if (!read_format(find_chunk(file, "fmt ", &truncated), &wav, header, error) ||
        !find_samples(file, &wav, header, error))
        return NULL;
    Wav *stream = malloc(sizeof *stream);
    if (stream)
        *stream = wav;
    else
        fail(error, ERROR_MEMORY, "no memory for a decoder");
    return stream;
}

/* ITU-T G.711: eight segments of 16 steps. */
static float a_law(uint8_t code) {
    const int x = code ^ 0x55, segment = x >> 4 & 7, step = (x & 15) << 4;
    const int size = segment == 0 ? step + 8 : (step + 0x108) << (segment - 1);
    return (float)(x & 0x80 ? size : -size) / 32768;
}
static float mu_law(uint8_t code) {
    const int x = (uint8_t)~code, size = ((((x & 15) << 3) + 0x84) << (x >> 4 & 7)) - 0x84;
    return (float)(x & 0x80 ? -size : size) / 32768;
}

static float sample_at(const Wav *wav, const char *at) {
    float single;
    double real;
    switch (wav->format) {
    case WAV_A_LAW: return a_law((uint8_t)*at);
    case WAV_MU_LAW: return mu_law((uint8_t)*at);
    case WAV_FLOAT:
        memcpy(&single, at, sizeof single);
        if (wav->bytes == sizeof single) return single;
        memcpy(&real, at, sizeof real);
        return (float)real;
    default: break;
    }
    if (wav->bytes == 1) return (float)((uint8_t)*at - 128) / 128;
    if (wav->bytes == 2) return (float)(int16_t)u16_at(at) / 32768;
    if (wav->bytes == 3) return (float)(int32_t)((u16_at(at) | (uint32_t)(uint8_t)at[2] << 16) << 8) / 0x1p31F;
    return (float)(int32_t)u32_at(at) / 0x1p31F;
}

int wav_read(void *stream, float *frames, int count, Error *error) {
    (void)error;
    Wav *wav = stream;
    const size_t frame = (size_t)wav->bytes * (size_t)wav->channels, left = wav->left.size / frame;
    const int found = left < (size_t)count ? (int)left : count;
    for (int i = 0; i < found * wav->channels; i++)
        frames[i] = sample_at(wav, wav->left.data + (size_t)i * (size_t)wav->bytes);
    wav->left.data += (size_t)found * frame;
    wav->left.size -= (size_t)found * frame;
    return found;
}

void wav_close(void *stream) { free(stream); }
