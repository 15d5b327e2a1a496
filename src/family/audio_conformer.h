/* The conformer of Gemma 4 and Gemma 3n, under the names of either. */
#pragma once
#include "family/audio.h"

/* Names of a layer's parts. */
typedef struct ConformerNames {
    const char *layer; /* format of the layer's number */
    const char *ffn[2];
    const char *attention_norm, *attended_norm, *norm;
    const char *q, *k, *v, *o, *relative, *q_scale;
} ConformerNames;

/* The family's rule with the settings of the file. */
MelRule audio_load_mel(Loader *ld, MelRule rule);
/* The layers, and what comes before them. channels_field: field of the convolutions' channels; conv: format of their
 * names. audio has the sizes. */
void audio_load_conformer(
    Loader *ld, AudioSpec *audio, const ConformerNames *names, const char *channels_field, const char *conv, float eps);
