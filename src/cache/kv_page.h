/* Pages of a sequence in the canonical form that all backends share (BackendOps.page_read), one entry after another: a
 * page of KV_PAGE_TOKENS positions of every entry with keys and values, and, apart from it, the state of every
 * recurrent entry at a position: the anchor and the tail rows of the page that ends there. */
#pragma once
#include "cache/kv_cache.h"

size_t kv_page_bytes(const KvPlan *plan);
size_t kv_state_bytes(const KvPlan *plan); /* 0: the plan has no recurrent entries */

/* out: [kv_page_bytes]. The page is there in full precision in all groups, and is full when the reserved step is
 * written. False: a device has failed, or the page has numbers that are not finite; out is undefined. */
NODISCARD bool kv_page_read(const KvCache *cache, const KvSequence *sequence, int page, void *out);
/* out: [kv_state_bytes]: the state at the sequence's length, a positive multiple of KV_PAGE_TOKENS. Errors as above. */
NODISCARD bool kv_state_read(const KvCache *cache, const KvSequence *sequence, void *out);
/* Continues a sequence to the end of the page that its length lies in. from: [kv_page_bytes]. state: [kv_state_bytes]
 * at that end; NULL: the recurrent entries are undefined until a later call passes one. ERROR_LIMIT: the pool is full,
 * and nothing has changed; ERROR_DEVICE: a device has failed. */
NODISCARD bool kv_page_write(KvCache *cache, KvSequence *sequence, const void *from, const void *state, Error *error);
