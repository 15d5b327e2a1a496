/* Computes the rows of audio for a model's first layer. Matrix products run on the backend, everything between them on
 * the calling thread. One clip at a time, in parts of layers, so that a thread can do other work in between. Threads:
 * opened and closed anywhere; used by one thread at a time. */
#pragma once
#include "model/audio.h"
#include "model/model.h"

typedef struct AudioEncoder AudioEncoder;

/* The model has an audio part and outlives the encoder. options: backend, threads and pool of the runner's. */
NODISCARD AudioEncoder *audio_encoder_open(const Model *model, const BackendOptions *options, Error *error);
void audio_encoder_close(AudioEncoder *encoder); /* NULL is fine */

/* Begins a clip of at most AudioSpec.seconds_max that has rows, whatever was begun before. audio: borrowed for the
 * call. */
NODISCARD bool audio_encoder_begin(AudioEncoder *encoder, const Audio *audio, Error *error);
/* Computes up to `parts` further parts of layers; *done: the clip's rows are complete. */
NODISCARD bool audio_encoder_continue(AudioEncoder *encoder, int parts, bool *done, Error *error);
/* Copies the clip's rows, [audio_rows()][hidden of the text model], to memory of backend `to`. */
void audio_encoder_take(AudioEncoder *encoder, Backend *to, float *rows);
