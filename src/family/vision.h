/* Vision parts, each of several families. Called behind the text part, with the fields of the config's root; a file
 * without such a part stays a text model. */
#pragma once
#include "family/family.h"
#include "model/vision.h"

/* Qwen3-VL and Qwen3.5: pre-norm layers without windows, DeepStack. */
void vision_load_qwen3(Loader *ld, Spec *spec);
/* Qwen2-VL: layers without windows, an MLP without a gate. */
void vision_load_qwen2(Loader *ld, Spec *spec);
/* Qwen2.5-VL: most layers attend within windows, a gated feed-forward network. */
void vision_load_qwen2_5(Loader *ld, Spec *spec);
/* The tower of Pixtral. merge: patches of the side of a group that becomes one row, merged as in Mistral 3; 0: every
 * patch becomes a row (Pixtral). bias: the projector's matrices have one. */
void vision_load_pixtral(Loader *ld, Spec *spec, int merge, bool bias);
/* SigLIP with the connector of Idefics 3, whose images are divided into tiles. merge: of a group's side. */
void vision_load_idefics3(Loader *ld, Spec *spec, int merge);
/* GLM-OCR and GLM-4V: groups of patches are merged by a convolution, then by a gated network. */
void vision_load_glm(Loader *ld, Spec *spec);
/* Gemma 4: a tower whose patches are averaged, or none. bidirectional: tokens of an image see each other. */
void vision_load_gemma4(Loader *ld, Spec *spec, bool bidirectional);
/* SigLIP with PaliGemma's projector: a prompt with images is read as one span. */
void vision_load_paligemma(Loader *ld, Spec *spec);
/* SigLIP 2 with LFM2-VL's projector; large images are divided into tiles. */
typedef struct Lfm2Projector {
    int merge, inner; /* patches of a group's side; elements between its two matrices */
    bool norm, bias;
} Lfm2Projector;
void vision_load_lfm2(Loader *ld, Spec *spec, const Lfm2Projector *projector);
/* FastViTHD, a tower of convolutions, with FastVLM's projector. */
void vision_load_fastvit(Loader *ld, Spec *spec);
/* SigLIP with Gemma 3's projector: groups of patches are averaged. tokens: rows of an image. */
void vision_load_gemma3(Loader *ld, Spec *spec, int tokens);
