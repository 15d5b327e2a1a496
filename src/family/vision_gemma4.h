/* For the two files of Gemma 4's vision part: its rule and tower. */
#pragma once
#include "family/vision_parts.h"

enum { GEMMA4_TOKENS_LEAST = 70, GEMMA4_TOKENS_USUAL = 280, GEMMA4_TOKENS_MOST = 1120 };

/* How images become patches. places: learned positions of an axis. mean, std: of the values that the model reads,
 * whatever the processor says. */
ImageRule gemma4_rule(Loader *ld, int patch, int merge, int places, float mean, float std);
/* From patches to the averages of their groups. */
void gemma4_load_tower(Loader *ld, VisionSpec *vision);
