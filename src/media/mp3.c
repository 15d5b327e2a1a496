/* MP3 through libmpg123, which takes the padding of encoders away where a file tells it. */
#include <stdlib.h>

#include <mpg123.h>

#include "media/audio_internal.h"

typedef struct Mp3 {
    mpg123_handle *handle;
    int channels;
} Mp3;

static bool begin(Mp3 *mp3, Slice file, AudioHeader *header, Error *error) {
    int code = MPG123_OK, encoding = 0;
    long rate = 0;
    mp3->handle = mpg123_new(NULL, &code);
    if (!mp3->handle) return fail(error, ERROR_MEMORY, "no memory for a decoder: %s", mpg123_plain_strerror(code));
    if (mpg123_param(mp3->handle, MPG123_ADD_FLAGS, MPG123_QUIET | MPG123_FORCE_FLOAT, 0) != MPG123_OK ||
        mpg123_open_feed(mp3->handle) != MPG123_OK ||
        mpg123_feed(mp3->handle, (const uint8_t *)file.data, file.size) != MPG123_OK ||
        mpg123_getformat(mp3->handle, &rate, &mp3->channels, &encoding) != MPG123_OK)
        return fail(error, ERROR_FORMAT, "there is no audio in it");
    if (encoding != MPG123_ENC_FLOAT_32) return fail(error, ERROR_UNSUPPORTED, "this libmpg123 writes no floats");
    *header = (AudioHeader){.rate = rate, .channels = mp3->channels, .frames = -1};
    return true;
}

void *mp3_open(Slice file, AudioHeader *header, Error *error) {
    Mp3 *mp3 = calloc(1, sizeof *mp3);
    if (!mp3) {
        fail(error, ERROR_MEMORY, "no memory for a decoder");
        return NULL;
    }
    if (begin(mp3, file, header, error)) return mp3;
    mp3_close(mp3);
    return NULL;
}

int mp3_read(void *stream, float *frames, int count, Error *error) {
    const Mp3 *mp3 = stream;
    const size_t frame = (size_t)mp3->channels * sizeof *frames;
    size_t bytes = 0;
    const int code = mpg123_read(mp3->handle, (void *)frames, (size_t)count * frame, &bytes);
    if (code == MPG123_OK || code == MPG123_NEED_MORE || code == MPG123_DONE) return (int)(bytes / frame);
    fail(error, ERROR_FORMAT, "%s",
        code == MPG123_NEW_FORMAT ? "its format changes in the middle" : mpg123_strerror(mp3->handle));
    return -1;
}

void mp3_close(void *stream) {
    Mp3 *mp3 = stream;
    mpg123_delete(mp3->handle);
    free(mp3);
}
