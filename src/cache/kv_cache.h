/* cache/: what sequences remember: pages, their pool, page tables. Nothing here computes: contents are the backend's.
 *
 * What sequences remember: reference-counted pages of KV_PAGE_TOKENS positions, and recurrent states as pages of their
 * own. Layers that keep pages alike (everything, or the same window, on one backend) form a group; a page of a group
 * stands for that page of all its layers. Full pages are immutable, so they can be shared; the page being filled, and a
 * state, are copied by whoever writes while others hold them too. Window groups free pages that no later token can see.
 * Threads: the engine thread; a plan is constant once it is made. */
#pragma once
#include "backend/backend.h"
#include "cache/cache_spec.h"

enum { KV_GROUPS_MAX = 8 };

/* How the layers of a model share pages, and what they cost. */
typedef struct KvPlan {
    int context;  /* tokens a sequence may hold */
    int rows_max; /* of a step */
    int group_count;
    struct {
        CacheKind kind; /* PAGES or STATE */
        int window;     /* 0: nothing ever leaves */
        Backend *backend;
        size_t page_bytes; /* this group's layers, one after another */
    } group[KV_GROUPS_MAX];
    int layer_count;
    KvLayer *layers; /* [layer_count] without memory: base is NULL. All zero: the layer remembers nothing */
} KvPlan;

/* specs and backends: [layer_count]; layers of one group lie on one backend. */
NODISCARD bool kv_plan_make(
    KvPlan *plan, const CacheSpec *specs, Backend *const *backends, int layer_count, int context, Error *error);
void kv_plan_free(KvPlan *plan); /* safe on a zeroed one */
/* Bytes that a sequence of this many tokens needs at most. */
size_t kv_bytes_for(const KvPlan *plan, int tokens);

typedef struct KvCache KvCache;
typedef struct KvSequence {
    int length;       /* tokens held */
    int reserved;     /* tokens that the tables have pages for */
    int32_t **tables; /* [group][page]; −1: freed. A state is page 0 of its group */
} KvSequence;

/* Page memory for at most budget_bytes over all groups. The plan outlives the cache. */
NODISCARD KvCache *kv_open(const KvPlan *plan, size_t budget_bytes, Error *error);
void kv_close(KvCache *cache);
const KvLayer *kv_layers(const KvCache *cache); /* the plan's, with their memory */
size_t kv_bytes_used(const KvCache *cache);
size_t kv_bytes_total(const KvCache *cache);

NODISCARD bool kv_sequence_open(KvCache *cache, KvSequence *sequence, Error *error);
void kv_sequence_close(KvCache *cache, KvSequence *sequence);
/* Pages for `tokens` more positions, and a copy of what is to be written while others hold it too. ERROR_LIMIT when the
 * pool is full; the sequence is then as before. */
NODISCARD bool kv_reserve(KvCache *cache, KvSequence *sequence, int tokens, Error *error);
/* After a step wrote them. Frees pages that left every window. */
void kv_advance(KvCache *cache, KvSequence *sequence, int tokens);
/* Forgets positions ≥ length. False when a window group no longer holds what an earlier position would see, or when a
 * state would have to go back. */
NODISCARD bool kv_truncate(KvCache *cache, KvSequence *sequence, int length);
/* to (fresh) becomes a copy of from: all pages are shared. */
void kv_fork(KvCache *cache, const KvSequence *from, KvSequence *to);
