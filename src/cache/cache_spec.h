/* One entry of a model's cache: what one component keeps of every sequence. The model describes entries
 * (model/component.h) and numbers them from 0; the cache stores them. Components that share an entry name the same
 * number.
 *
 * An entry keeps keys and values (kv_heads > 0), plain rows (row_bytes > 0 and no page_tokens) or a recurrent state
 * (page_tokens > 0); all are pages. Plain rows are f32 numbers of each position (backend/compressed.h), with pages and
 * windows like those of keys and values; they are never quantised.
 *
 * Recurrent state. A page of page_tokens positions holds an anchor, which is the state before its first position, and
 * a tail, which is one row for each of its positions: the inputs that the state has taken since the anchor. The state
 * behind position p is a function of the anchor and the rows up to p, computed in one order wherever a step begins or
 * ends. The operation that appends row p
 *  - reads the page of position p − 1 (none for p = 0, where the state is zero),
 *  - writes row p into the page of p, and, where p is the first position of a page, that page's anchor: a pure function
 *    of the page before. An anchor is made again whenever its first row is written again, so rows that are not accepted
 *    leave no trace,
 *  - stores nothing for pages whose table entry is −1: pages that lie wholly inside a step, which no later row reads.
 * Dropping tail rows takes positions back; a full page, or any beginning of it, is a snapshot. */
#pragma once
#include <stddef.h>

#include "backend/backend.h"

typedef struct CacheSpec {
    int layer; /* first layer of the model that uses the entry: for options and messages */

    /* Keys and values, in pages of KV_PAGE_TOKENS. */
    int kv_heads, head_dim, value_dim;
    bool latent;         /* as in KvLayout */
    int window;          /* a row at position p reads positions > p − window; 0: all up to p. Also of plain rows */
    const float *k_bias; /* as in KvLayer, bound; NULL: none */
    const Rope *rope;    /* bound; NULL: none */
    bool exact;          /* its pages are never quantised */

    size_t row_bytes; /* bytes of a plain row, or of a row of a recurrent state's tail */

    /* Recurrent state, in f32. */
    int page_tokens;     /* a divisor of KV_PAGE_TOKENS, at least KV_PAGE_TOKENS / KV_GROUP_PAGES_MAX */
    size_t anchor_bytes; /* may include the last inputs before the page, for convolutions */
    int rewind; /* positions that kv_truncate() can always take back, also across an anchor, at the price of keeping the
                   pages before; 0: those of a step until kv_advance() accepts them, and later those within a page */
} CacheSpec;
