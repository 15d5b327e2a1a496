/* The tower of SigLIP and what its users share. */
#pragma once
#include "family/vision_parts.h"
#include "model/positions.h"

typedef struct Siglip {
    Dims d;
    int layers, patch, pixels; /* pixels: of an image's side; LFM2-VL: of the table of positions */
    float eps;
} Siglip;

/* Fields of vision_config; usual: their defaults. A tower of SigLIP 2 has places in a table instead of pixels. */
Siglip siglip_fields(Loader *ld, const Siglip *usual, bool places);
/* The layers, patches and positions. Tensor names may have "vision_model." in front. */
void siglip_tower(Loader *ld, VisionSpec *vision, const Siglip *siglip, PositionKind positions);
/* Images of the tower's size, whatever their shape. */
ImageRule siglip_fixed_rule(Loader *ld, const Siglip *siglip, int merge, ImageFilter filter);
/* From here on tensor names are those of MODULE, which has TENSOR. */
void siglip_enter_projector(Loader *ld, const char *module, const char *tensor);
