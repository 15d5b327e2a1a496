/* A tower of convolutions as plain data: layers on a square plane of channels, from pixels to the rows of patches.
 * Filled by a family file, constant afterwards; computed by conv_encoder.h. Everything but the weights is host memory.
 * Sources: FastViT (arXiv 2303.14189), FastVLM (arXiv 2412.13303). */
#pragma once
#include "backend/backend.h"

typedef enum ConvKind {
    CONV_DENSE,     /* each channel of the results reads all channels */
    CONV_DEPTHWISE, /* channel i of the results reads channel i · in / out; then factors of channels, if there are */
    CONV_FFN,       /* x += scale · second(gelu(first(depthwise convolution of x))) */
    CONV_ATTENTION, /* x += scale · second(attention of all pixels to all, with first(norm(x))) */
} ConvKind;

typedef struct ConvLayer {
    ConvKind kind;
    int in, out;              /* channels */
    int size, stride;         /* the kernel has size × size taps around a pixel; zeros are around the plane */
    bool gelu;                /* results go through it; CONV_DENSE, CONV_DEPTHWISE */
    const float *taps, *bias; /* [size²][out] and [out] of the depthwise convolution */
    /* CONV_DENSE: first [out, size² · in]. CONV_DEPTHWISE: σ(second(relu(first(mean of the plane)))) are the factors of
     * the channels; rows 0: none. CONV_ATTENTION: first has the rows of queries, keys and values. */
    Weight first, second;
    const float *scale;                   /* [out]; CONV_FFN, CONV_ATTENTION */
    const float *norm_weight, *norm_bias; /* [out] of a norm over channels; CONV_ATTENTION */
    float eps;
    int head; /* channels of a head */
} ConvLayer;

typedef struct ConvSpec {
    int layer_count;
    ConvLayer *layers; /* [layer_count] */
} ConvSpec;
