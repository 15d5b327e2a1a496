/* Computes the rows of images for a model's first layer. One image at a time, in slices, so that a thread can do other
 * work in between: on the CPU some rows of one operation (slice_walk.h), on a device whole layers. Slices do not change
 * a bit. Threads: opened and closed anywhere; used by one thread at a time. */
#pragma once
#include "model/model.h"
#include "model/vision.h"

typedef struct Encoder Encoder;

/* The model has a vision part (model_vision) and outlives the encoder. options: backend, threads and pool of the
 * runner's; an image may have at most tokens_max tokens. */
NODISCARD Encoder *encoder_open(const Model *model, const BackendOptions *options, int tokens_max, Error *error);
void encoder_close(Encoder *encoder); /* NULL is fine */
/* Tokens of the largest image that such an encoder takes, and the memory that it has taken after one. device: on a
 * GPU. */
int encoder_tokens_max(const VisionSpec *spec, int tokens_max);
NODISCARD bool encoder_bytes(const VisionSpec *spec, int tokens_max, bool device, uint64_t *bytes, Error *error);

/* Begins an image that has the size of its layout, whatever was begun before; with `second` two frames of a video that
 * become one set of rows (VisionSpec.pair). NULL: none. Both are borrowed until its rows are complete or another image
 * is begun. */
NODISCARD bool encoder_begin(
    Encoder *encoder, const Image *image, const Image *second, const ImageLayout *layout, Error *error);

/* What a slice computes. Rows of one kind take about the same time in an image. */
typedef enum EncoderWork {
    ENCODE_PATCHES,   /* embeds patches */
    ENCODE_KEYS,      /* keys and values of patches */
    ENCODE_WINDOWS,   /* attention of patches to those of their window */
    ENCODE_ATTENTION, /* attention of patches to all others */
    ENCODE_ROWS,      /* other components of layers */
    ENCODE_LAYERS,    /* whole layers: a slice of n · (patches of the image) rows is n of them */
    ENCODE_TOKENS,    /* merges patches; a row is one of the text model's */
    ENCODE_KINDS
} EncoderWork;
/* What the next slice of the image computes. */
EncoderWork encoder_next(const Encoder *encoder);
/* Computes a slice of at most *rows rows, but at least one or, of whole layers, one layer; *rows becomes their number.
 * *done: the image's rows are complete. */
NODISCARD bool encoder_continue(Encoder *encoder, int *rows, bool *done, Error *error);
/* Floats of the rows of an image: [1 + deepstack_count][tokens, hidden], the rows of the first layer, then those that
 * are added behind layers. */
int64_t encoder_row_floats(const VisionSpec *spec, const ImageLayout *layout);
/* Copies them to memory of backend `to`. A fault of a device surfaces in its next wait(). */
void encoder_take(Encoder *encoder, Backend *to, float *rows);
