/* Operations of backend/compressed.h in plain C, for the reference and the vector backends: a row's result is the same
 * on both. The pool shares rows and heads. step: the rows of the operation. */
#pragma once
#include "backend/compressed.h"
#include "backend/cpu/pool.h"

void compressed_compress(Pool *pool, const Step *step, const Compression *op);
void compressed_select(Pool *pool, const Step *step, const CompressedSelect *op);
void compressed_attend(Pool *pool, const Step *step, const CompressedAttention *op);
void compressed_join(Pool *pool, const GroupJoin *op);
void compressed_hyper(Pool *pool, const HyperConnection *op);
