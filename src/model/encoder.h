/* Computes the rows of images for a model's first layer. One image at a time, in slices of layers, so that a thread can
 * do other work in between. Threads: opened and closed anywhere; used by one thread at a time. */
#pragma once
#include "model/model.h"
#include "model/vision.h"

typedef struct Encoder Encoder;

/* The model has a vision part (model_vision) and outlives the encoder. options: backend, threads and pool of the
 * runner's; an image may have at most tokens_max tokens. */
NODISCARD Encoder *encoder_open(const Model *model, const BackendOptions *options, int tokens_max, Error *error);
void encoder_close(Encoder *encoder); /* NULL is fine */
/* Tokens of the largest image that such an encoder takes, and the memory that it has taken after one. */
int encoder_tokens_max(const VisionSpec *spec, int tokens_max);
NODISCARD bool encoder_bytes(const VisionSpec *spec, int tokens_max, uint64_t *bytes, Error *error);

/* Begins an image that has the size of its layout, whatever was begun before; with `second` two frames of a video that
 * become one set of rows (VisionSpec.pair). NULL: none. Both are borrowed for the call. */
NODISCARD bool encoder_begin(
    Encoder *encoder, const Image *image, const Image *second, const ImageLayout *layout, Error *error);
/* Computes up to `layers` further layers; *done: the image's rows are complete. */
NODISCARD bool encoder_continue(Encoder *encoder, int layers, bool *done, Error *error);
/* Floats of the rows of an image: [1 + deepstack_count][tokens, hidden], the rows of the first layer, then those that
 * are added behind layers. */
int64_t encoder_row_floats(const VisionSpec *spec, const ImageLayout *layout);
/* Copies them to memory of backend `to`. A fault of a device surfaces in its next wait(). */
void encoder_take(Encoder *encoder, Backend *to, float *rows);
