/* Pages of a sequence in the canonical form that all backends share (BackendOps.page_read), one entry after another: a
 * page of KV_PAGE_TOKENS positions of every entry with keys and values, or, for models with recurrent entries, a state:
 * what a sequence of that length needs beside its full pages. That is the begun page of every entry with keys and
 * values, up to the length, and of every recurrent entry the anchor and the tail rows up to the length. */
#pragma once
#include "cache/kv_cache.h"

size_t kv_page_bytes(const KvPlan *plan);
/* Bytes of the state at a positive length; 0: the plan has no recurrent entries. */
size_t kv_state_bytes(const KvPlan *plan, int length);
size_t kv_state_bytes_most(const KvPlan *plan); /* over all lengths */

/* out: [kv_page_bytes]. The page is there in full precision in all groups, and is full when the reserved step is
 * written. False: a device has failed, or the page has numbers that are not finite; out is undefined. */
NODISCARD bool kv_page_read(const KvCache *cache, const KvSequence *sequence, int page, void *out);
/* out: [kv_state_bytes] at the sequence's length, which is positive. Errors as above. */
NODISCARD bool kv_state_read(const KvCache *cache, const KvSequence *sequence, void *out);
/* Continues a sequence to the end of the page that its length lies in. from: [kv_page_bytes]. Recurrent entries are
 * undefined until kv_state_write(). ERROR_LIMIT: the pool is full, and nothing has changed; ERROR_DEVICE: a device has
 * failed. */
NODISCARD bool kv_page_write(KvCache *cache, KvSequence *sequence, const void *from, Error *error);
/* Continues a sequence to a length in the page that its own length lies in or ends. state: [kv_state_bytes] at that
 * length. Errors as above. */
NODISCARD bool kv_state_write(KvCache *cache, KvSequence *sequence, int length, const void *state, Error *error);
