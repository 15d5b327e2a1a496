/* Ogg Opus through libopusfile, at its 48 kHz. */
#include <stdlib.h>

#include <opusfile.h>

#include "media/audio_internal.h"

typedef struct Opus {
    OggOpusFile *file;
    int channels;
} Opus;

void *opus_open(Slice bytes, AudioHeader *header, Error *error) {
    int code = 0;
    Opus *opus = calloc(1, sizeof *opus);
    if (opus) opus->file = op_open_memory((const uint8_t *)bytes.data, bytes.size, &code);
    if (!opus || !opus->file) {
        fail(error, opus && code != OP_EFAULT ? ERROR_FORMAT : ERROR_MEMORY, "it cannot be opened (%d)", code);
        free(opus);
        return NULL;
    }
    opus->channels = op_channel_count(opus->file, -1);
    const ogg_int64_t frames = op_pcm_total(opus->file, -1);
    *header = (AudioHeader){.rate = 48000, .channels = opus->channels, .frames = frames < 0 ? -1 : frames};
    return opus;
}

int opus_read(void *stream, float *frames, int count, Error *error) {
    const Opus *opus = stream;
    int done = 0, link = 0;
    while (done < count) { /* a packet at a time */
        float *to = frames + done * opus->channels;
        const int found = op_read_float(opus->file, to, (count - done) * opus->channels, &link);
        if (found < 0 || op_channel_count(opus->file, link) != opus->channels) {
            fail(error, ERROR_FORMAT, found < 0 ? "a part is damaged or missing" : "its channels change in the middle");
            return -1;
        }
        if (found == 0) break;
        done += found;
    }
    return done;
}

void opus_close(void *stream) {
    Opus *opus = stream;
    op_free(opus->file);
    free(opus);
}
