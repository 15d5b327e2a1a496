/* What Ling and Ring with and without lightning attention share: bailing_moe.c. */
#pragma once
#include "family/family.h"

typedef struct Bailing {
    Moe moe;
    int dense; /* layers without experts come first */
    bool bias, qkv_bias, norms;
} Bailing;

Bailing bailing_open(Loader *ld, const Dims *dims);
/* Rotary embedding of a head of this size, whose rotated part partial_rotary_factor or rotary_dim give. */
const Rope *bailing_rope(Loader *ld, int head_dim);
void bailing_ends(Loader *ld, Spec *spec, const Dims *dims);
/* Lightning attention of the layer in scope with heads of this size, each of which decays by its slope times `factor`;
 * norm_groups: of the gated norm. */
Component bailing_lightning(
    Loader *ld, const Dims *dims, const Bailing *b, int size, const Rope *rope, int norm_groups, double factor);
Component bailing_attention(Loader *ld, const Dims *dims, const Bailing *b, const Rope *rope);
/* Layer i, whose names are in scope. */
void bailing_block(Loader *ld, Spec *spec, int i, const Dims *dims, Bailing *b, const Component *mixer);
