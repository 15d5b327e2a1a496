/* The KV cache of all sequences: reference-counted pages of KV_PAGE_TOKENS positions. Layers that keep pages alike
 * (full, or the same window) form a group; a page id of a group stands for that page of all its layers. Full pages are
 * immutable, so they can be shared; the page being filled belongs to one sequence. Window groups free pages that no
 * later token can see. Threads: the engine thread. Memory is reserved address space; a page costs memory from its first
 * use until it and those that share its huge pages of memory are freed. */
#pragma once
#include "backend/backend.h"
#include "model/model.h"

typedef struct KvCache KvCache;
typedef struct KvSequence {
    int length;       /* tokens held */
    int reserved;     /* tokens that the tables have pages for */
    int32_t **tables; /* [group][page]; −1: freed */
} KvSequence;

/* page memory for at most budget_bytes over all groups, and the layers' KvLayer entries filled in the model. */
NODISCARD KvCache *kv_open(Model *model, size_t budget_bytes, Error *error);
void kv_close(KvCache *cache);
size_t kv_bytes_used(const KvCache *cache);
size_t kv_bytes_total(const KvCache *cache);
/* Bytes that a sequence of this many tokens needs at most. */
size_t kv_bytes_for(const Model *model, int tokens);

NODISCARD bool kv_sequence_open(KvCache *cache, KvSequence *sequence, Error *error);
void kv_sequence_close(KvCache *cache, KvSequence *sequence);
/* Pages for `tokens` more positions. ERROR_LIMIT when the pool is full; the sequence is then as before. */
NODISCARD bool kv_reserve(KvCache *cache, KvSequence *sequence, int tokens, Error *error);
/* After a step wrote them. Frees pages that left every window. */
void kv_advance(KvCache *cache, KvSequence *sequence, int tokens);
/* Forgets positions ≥ length. False when a window group no longer holds what an earlier position would see. */
NODISCARD bool kv_truncate(KvCache *cache, KvSequence *sequence, int length);
/* to (fresh) becomes a copy of from: full pages shared, the page being filled copied. */
NODISCARD bool kv_fork(KvCache *cache, const KvSequence *from, KvSequence *to, Error *error);
