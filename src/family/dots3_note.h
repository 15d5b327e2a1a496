/* The fields of dots3 note: dots3_note_fields.c. */
#pragma once
#include "family/mla.h"

typedef struct Dots3 {
    MlaFamily full, sliding;
    const Json *types, *experts; /* for each layer; NULL: the usual ones */
    bool windows;                /* without types, there are layers with a window */
    bool saved;                  /* by transformers, with the sizes of each layer */
    bool indexed, literal;       /* literal: layer_types tells layers with an indexer from others */
    int window;
} Dots3;

/* Fields as the publisher has them, or as transformers saves them. */
Dots3 dots3_note_fields(Loader *ld, Spec *spec);
bool dots3_note_sliding(Loader *ld, const Dots3 *s, int i);
/* The attention of layer i: its sizes, its rotary embedding, and its indexer if it has one. */
MlaFamily dots3_note_layer(Loader *ld, const Dots3 *s, int i);
