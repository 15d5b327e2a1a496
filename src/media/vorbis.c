/* Ogg Vorbis through libvorbisfile. */
#include <stdlib.h>

#include <vorbis/vorbisfile.h>

#include "media/audio_internal.h"

typedef struct Vorbis {
    OggVorbis_File file;
    Slice bytes;
    size_t at;
    long rate;
    int channels;
} Vorbis;

static size_t read_bytes(void *to, size_t size, size_t count, void *user) {
    Vorbis *v = user;
    const size_t left = v->bytes.size - v->at, wanted = size * count, found = wanted < left ? wanted : left;
    memcpy(to, v->bytes.data + v->at, found);
    v->at += found;
    return size ? found / size : 0;
}

static int seek_to(void *user, ogg_int64_t offset, int whence) {
    Vorbis *v = user;
    const ogg_int64_t size = (ogg_int64_t)v->bytes.size;
    const ogg_int64_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? (ogg_int64_t)v->at : size;
    if (offset < -from || offset > size - from) return -1;
    v->at = (size_t)(from + offset);
    return 0;
}

static long tell(void *user) { return (long)((Vorbis *)user)->at; }

void *vorbis_open(Slice bytes, AudioHeader *header, Error *error) {
    static const ov_callbacks callbacks = {read_bytes, seek_to, NULL, tell};
    Vorbis *v = calloc(1, sizeof *v);
    if (!v) {
        fail(error, ERROR_MEMORY, "no memory for a decoder");
        return NULL;
    }
    v->bytes = bytes;
    const int code = ov_open_callbacks(v, &v->file, NULL, 0, callbacks);
    const vorbis_info *info = code ? NULL : ov_info(&v->file, -1);
    if (!info) {
        fail(error, ERROR_FORMAT, "it cannot be opened (%d)", code);
        vorbis_close(v);
        return NULL;
    }
    v->rate = info->rate;
    v->channels = info->channels;
    const ogg_int64_t frames = ov_pcm_total(&v->file, -1);
    *header = (AudioHeader){.rate = v->rate, .channels = v->channels, .frames = frames < 0 ? -1 : frames};
    return v;
}

int vorbis_read(void *stream, float *frames, int count, Error *error) {
    Vorbis *v = stream;
    int done = 0, section = 0;
    while (done < count) { /* a block at a time */
        float **planes = NULL;
        const long found = ov_read_float(&v->file, &planes, count - done, &section);
        const vorbis_info *info = found > 0 ? ov_info(&v->file, -1) : NULL;
        if (found < 0 || (info && (info->rate != v->rate || info->channels != v->channels))) {
            fail(error, ERROR_FORMAT, found < 0 ? "a part is damaged or missing" : "its format changes in the middle");
            return -1;
        }
        if (found == 0) break;
        for (int i = 0; i < (int)found; i++)
            for (int c = 0; c < v->channels; c++) frames[(done + i) * v->channels + c] = planes[c][i];
        done += (int)found;
    }
    return done;
}

void vorbis_close(void *stream) {
    Vorbis *v = stream;
    ov_clear(&v->file);
    free(v);
}
