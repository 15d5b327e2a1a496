/* One backend over several alike, its parts: each layer is divided among them (Megatron-LM, arXiv 1909.08053).
 *
 * Matrices that read the residual are divided by rows (q, k, v, gate, up: a part has some of the heads, some of the
 * inner columns), those that write it by columns (o, down), so what lies between the two is a part's own and only the
 * products with the latter are summed over the parts, twice a layer, in the order of the parts: every part then has the
 * same residual, bit for bit. Norms, routers, the embedding and the output matrix are every part's: each draws the
 * next token itself. Pages hold a part's heads.
 *
 * It is a backend like any other, not a matter of the decoder, so that nobody else knows of parts, and so that two
 * processors' backends prove on any machine what two GPUs do. Addresses that it hands out are of no memory at all; each
 * part has its own in their place. Whoever binds says how a weight is divided (Weight.split). Parts that can sum among
 * themselves do (all_reduce); for others it is done on the host. */
#pragma once
#include "backend/backend.h"

/* Over open parts, which it takes over, also when it fails. scratch_bytes: as of their options. */
NODISCARD Backend *tensor_parallel_open(Backend *const *parts, int count, size_t scratch_bytes, Error *error);
