/* A page of a sequence in the form that every backend shares: of each layer that keeps pages, one after another, the
 * canonical bytes of its exact page (BackendOps.page_read). */
#pragma once
#include "cache/kv_cache.h"

/* Whether pages are all that a sequence of this plan remembers. */
bool kv_page_possible(const KvPlan *plan);
size_t kv_page_bytes(const KvPlan *plan);
/* The page must be there exactly, in all groups, and full once the step that was reserved is written. False: a device
 * has failed, or what it holds are not all finite numbers, and nothing can be made of them. */
NODISCARD bool kv_page_read(const KvCache *cache, const KvSequence *sequence, int page, void *out);
/* Continues a sequence to the end of the page that it is in, as the step would that computed these bytes. False: the
 * pool is full, or a device has failed. */
NODISCARD bool kv_page_write(KvCache *cache, KvSequence *sequence, const void *from, Error *error);
