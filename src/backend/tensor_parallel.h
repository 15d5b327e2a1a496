/* Tensor parallelism: one backend over several of one kind, its ranks, which divide each layer (Megatron-LM, arXiv
 * 1909.08053).
 *
 * Matrices that read the residual are divided by rows (q, k, v, gate, up: a rank has some of the heads, some of the
 * inner columns), those that write it by columns (o, down). Activations between the two are private to a rank, and only
 * the products with the latter are summed over the ranks, twice a layer, in the order of the ranks: every rank then has
 * the same residual, bit for bit. Norms, routers, the embedding and the output matrix are on every rank: each samples
 * the next token itself. Pages hold a rank's heads; recurrences and short convolutions are divided by heads and
 * channels.
 *
 * It is a backend like any other: the decoder knows no ranks, and two CPU backends test on any machine the division
 * that two GPUs use. Addresses that it hands out are reserved ranges without memory; each rank has its own memory in
 * their place. Weight.split, set before bind(), says how a weight is divided. Ranks with all_reduce sum among
 * themselves; otherwise the host sums. */
#pragma once
#include "backend/backend.h"

/* Opens over open ranks, of which it takes ownership, also when it fails (NULL). scratch_bytes: that of their options.
 */
NODISCARD Backend *tensor_parallel_open(Backend *const *parts, int count, size_t scratch_bytes, Error *error);
