/* The fields of Step 3.5: step3p5_fields.c. */
#pragma once
#include "family/family.h"

typedef struct Step3p5 {
    Dims d, sliding;                                               /* sliding: of layers with a window */
    const Json *types, *thetas, *factors, *limits, *shared_limits; /* for each layer; NULL: none */
    const Json *scaled; /* kinds of layers to which rope_scaling applies; NULL: all */
    const Json *list;   /* layers with experts, as a list, or as a text, or each layer's kind */
    Slice text;
    const Json *mlp_types;
    const Rope *full,
        *windowed; /* those of all layers of a kind, as transformers saves them; NULL: each layer has one */
    float scale;   /* factor of scores, as transformers saves it; 0: the usual one */
    double theta;
    int window, shared_size;
    bool gated, raw;
    Moe moe;
    LoadNorm *norm;
} Step3p5;

/* Fields as the publisher and MLX have them, or as transformers saves them (Step 3.7). */
Step3p5 step3p5_fields(Loader *ld, Spec *spec);
