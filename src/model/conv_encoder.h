/* Computes the rows of images with a tower of convolutions (ConvSpec). Matrix products and activations run on the
 * backend, convolutions of single channels and attention on the pool's threads. One image at a time, layer by layer, so
 * that a thread can do other work in between. Threads: opened and closed anywhere; used by one thread at a time. */
#pragma once
#include "model/model.h"
#include "model/vision.h"

typedef struct ConvEncoder ConvEncoder;

/* spec: with VisionSpec.conv, outlives the encoder. options: backend, threads and pool of the runner's. */
NODISCARD ConvEncoder *conv_encoder_open(const VisionSpec *spec, const BackendOptions *options, Error *error);
void conv_encoder_close(ConvEncoder *encoder); /* NULL is fine */
/* Memory of such an encoder. */
uint64_t conv_encoder_bytes(const VisionSpec *spec);

/* Begins an image of the rule's size, whatever was begun before. Borrowed for the call. */
void conv_encoder_begin(ConvEncoder *encoder, const Image *image);
/* Computes up to `layers` further layers; *done: the rows are complete. */
NODISCARD bool conv_encoder_continue(ConvEncoder *encoder, int layers, bool *done, Error *error);
/* [patches][hidden of the tower], row by row; valid until the next image is begun. */
const float *conv_encoder_rows(const ConvEncoder *encoder);
