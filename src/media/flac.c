/* FLAC through libsndfile, from memory. */
#include <stdlib.h>

#include <sndfile.h>

#include "media/audio_internal.h"

typedef struct SoundFile {
    SNDFILE *file;
    Slice bytes;
    sf_count_t at;
} SoundFile;

static sf_count_t length_of(void *user) { return (sf_count_t)((SoundFile *)user)->bytes.size; }

static sf_count_t seek_to(sf_count_t offset, int whence, void *user) {
    SoundFile *s = user;
    const sf_count_t size = (sf_count_t)s->bytes.size;
    const sf_count_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? s->at : size;
    if (offset < -from || offset > size - from) return -1;
    return s->at = from + offset;
}

static sf_count_t read_bytes(void *to, sf_count_t count, void *user) {
    SoundFile *s = user;
    const sf_count_t left = (sf_count_t)s->bytes.size - s->at, found = count < left ? count : left;
    if (found <= 0) return 0;
    memcpy(to, s->bytes.data + s->at, (size_t)found);
    s->at += found;
    return found;
}

static sf_count_t write_nothing(const void *from, sf_count_t count, void *user) { return 0; }

static sf_count_t tell(void *user) { return ((SoundFile *)user)->at; }

void *flac_open(Slice bytes, AudioHeader *header, Error *error) {
    static SF_VIRTUAL_IO io = {length_of, seek_to, read_bytes, write_nothing, tell};
    SF_INFO info = {0};
    SoundFile *s = calloc(1, sizeof *s);
    if (!s) {
        fail(error, ERROR_MEMORY, "no memory for a decoder");
        return NULL;
    }
    s->bytes = bytes;
    s->file = sf_open_virtual(&io, SFM_READ, &info, s);
    if (!s->file || (info.format & SF_FORMAT_TYPEMASK) != SF_FORMAT_FLAC) {
        fail(error, ERROR_FORMAT, "%s", s->file ? "another format within the file" : sf_strerror(NULL));
        flac_close(s);
        return NULL;
    }
    *header = (AudioHeader){
        .rate = info.samplerate, .channels = info.channels, .frames = info.frames < SF_COUNT_MAX ? info.frames : -1};
    return s;
}

int flac_read(void *stream, float *frames, int count, Error *error) {
    const SoundFile *s = stream;
    const sf_count_t found = sf_readf_float(s->file, frames, count);
    if (found == count || sf_error(s->file) == SF_ERR_NO_ERROR) return (int)found;
    fail(error, ERROR_FORMAT, "%s", sf_strerror(s->file));
    return -1;
}

void flac_close(void *stream) {
    SoundFile *s = stream;
    if (s->file) sf_close(s->file);
    free(s);
}
