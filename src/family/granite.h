/* What Granite's families with experts and with Mamba-2 share: granitemoe.c, granitemoehybrid.c. */
#pragma once
#include "family/recurrent.h"

/* The sizes of Granite 4's Mamba-2 layers: mamba_n_heads and the like. */
Mamba2 granite_mamba2(Loader *ld, const Dims *dims);
/* block_sparse_moe: router.layer and switch_mlp, or as transformers saves them. */
extern const MoeNames moe_granite;

/* shared_mlp: a network whose gate and up are one matrix, but not in files made from GGUF. */
GluComponent granite_shared(Loader *ld, int hidden, int width);
/* The experts of the layer in scope, and with them shared_mlp, which moe->shared is as wide as; 0: there is none. */
Component granite_mixture(Loader *ld, const Moe *moe);
