/* What encoders share: BERT and its kin, Nomic-BERT. */
#pragma once
#include "family/family.h"

/* A layer norm that replaces the residual by its result. */
void encoder_add_norm(Loader *ld, Spec *spec, Layer *layer, const char *name, float eps);
/* An encoder has no output matrix of its own: the embedding, which is loaded, stands for it. Allocates the layers. */
void encoder_finish(Loader *ld, Spec *spec);
