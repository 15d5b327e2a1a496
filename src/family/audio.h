/* Audio parts. Called behind the text part, with the fields of the config's root; a file without such a part takes no
 * audio. */
#pragma once
#include "family/family.h"
#include "model/audio.h"

/* The conformer of Gemma 4 E2B and E4B, or, in a file without a tower, the rows of samples of Gemma 4 12B. */
void audio_load_gemma4(Loader *ld, Spec *spec);
/* The conformer of Gemma 3n. */
void audio_load_gemma3n(Loader *ld, Spec *spec);
