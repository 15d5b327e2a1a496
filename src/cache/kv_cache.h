/* cache/: what sequences remember: pages, their pool, page tables. Nothing here computes: contents are the backend's.
 *
 * What sequences remember: reference-counted pages of KV_PAGE_TOKENS positions, and recurrent states as pages of their
 * own. Layers that keep pages alike (everything, or the same window, on one backend) form a group; a page of a group
 * stands for that page of all its layers. Full pages are immutable, so they can be shared; the page being filled, and a
 * state, are copied by whoever writes while others hold them too. Window groups free pages that no later token can see.
 * A sequence of a coded format has, from `after` tokens on, pages of codes per layer, and frees the exact ones that no
 * later row sees exactly. What a row sees depends on its position alone (KvQuantView), however the text is cut.
 * Threads: the engine thread; a plan is constant once it is made. */
#pragma once
#include "backend/backend.h"
#include "cache/cache_spec.h"
#include "cache/kv_format.h"
#include "cache/spill.h"

enum { KV_GROUPS_MAX = 8 };

/* How the layers of a model share pages, and what they cost. */
typedef struct KvPlan {
    int context;  /* tokens a sequence may hold */
    int rows_max; /* of a step */
    int group_count;
    struct {
        CacheKind kind; /* PAGES or STATE */
        int window;     /* 0: nothing ever leaves */
        bool quantised; /* its layers can be kept as codes */
        Backend *backend;
        size_t page_bytes; /* this group's layers, one after another */
    } group[KV_GROUPS_MAX];
    int entry_count;
    KvLayer *entries; /* [entry_count], owned; without memory: base is NULL */
    int *layers;      /* [entry_count], owned; CacheSpec.layer of each */
} KvPlan;

/* specs and backends: [entry_count], backends[i] computes with entry i; entry_count may be 0. Entries of one group lie
 * on one backend. Only entries that every backend of the plan can quantise are quantised. */
NODISCARD bool kv_plan_make(
    KvPlan *plan, const CacheSpec *specs, Backend *const *backends, int entry_count, int context, Error *error);
void kv_plan_free(KvPlan *plan); /* safe on a zeroed one */
/* Bytes that a sequence of this many tokens needs at most. format NULL: exact. */
size_t kv_bytes_for(const KvPlan *plan, const KvFormat *format, int tokens);

/* What exact pages take of a backend's memory with such a budget of kv_open: on a device at once. */
size_t kv_taken_bytes(const KvPlan *plan, const Backend *backend, size_t budget);

typedef struct KvCache KvCache;

/* The coded side of a sequence. */
typedef struct KvQuantPages {
    KvFormat format;
    bool active;                  /* the layers' codes are decided: `after` tokens were held once */
    int end;                      /* tokens, whole pages: pages from sink to here are coded; */
    int freed;                    /* and from sink to here they are not exact any more */
    KvQuant *layers;              /* [layer] */
    int32_t **k_pages, **v_pages; /* [layer][page]; −1: none. Full pages, shared like exact ones */
    KvQuantView view;             /* all of this, as a run needs it */
} KvQuantPages;

typedef struct KvSequence {
    int length;          /* tokens held */
    int reserved;        /* tokens that the tables have pages for */
    int32_t **tables;    /* [group][page]; −1: freed. A state is page 0 of its group */
    KvQuantPages *quant; /* NULL: everything stays exact */
    int tail_pages;      /* full pages whose text tail_key stands for, ≤ length / KV_PAGE_TOKENS; */
    SpillKey tail_key;   /* kept by the disk tier */
} KvSequence;

/* Page memory for at most budget_bytes over all groups. The plan outlives the cache. */
NODISCARD KvCache *kv_open(const KvPlan *plan, size_t budget_bytes, Error *error);
void kv_close(KvCache *cache);
const KvPlan *kv_plan(const KvCache *cache);     /* borrowed */
const KvLayer *kv_entries(const KvCache *cache); /* [entry_count] the plan's, with their memory; borrowed */
size_t kv_bytes_used(const KvCache *cache);
size_t kv_bytes_total(const KvCache *cache);
/* What is in use of each form: exact pages, and pages of keys' or values' codes; of all, or of one sequence, which may
 * share them. Each adds. */
typedef struct KvUse {
    size_t bytes[KV_FORMS];
    uint64_t pages[KV_FORMS];
    int raised;  /* of one sequence that is coded: layers whose keys have a better form than asked for, */
    float noise; /* and the largest of its layers (KvQuant) */
} KvUse;

/* format NULL: exact. Layers that cannot be coded stay exact. */
NODISCARD bool kv_sequence_open(KvCache *cache, const KvFormat *format, KvSequence *sequence, Error *error);
void kv_sequence_close(KvCache *cache, KvSequence *sequence);
/* Adds the pages in use: of the whole cache, each once; or those that a sequence holds, shared or not. */
void kv_use(const KvCache *cache, KvUse *use);
void kv_sequence_use(const KvCache *cache, const KvSequence *sequence, KvUse *use);
/* The most tokens that the next step may add: a step ends where coding begins, and must not need codes of pages that it
 * fills itself. At least 1; INT_MAX without codes. */
int kv_step_rows(const KvSequence *sequence);
/* Pages for `tokens` ≤ kv_step_rows() more positions, and a copy of what is to be written while others hold it too;
 * pages that a row of the step sees as codes are coded. ERROR_LIMIT when the pool is full; the sequence then holds what
 * it held, some of it perhaps also as codes. */
NODISCARD bool kv_reserve(KvCache *cache, KvSequence *sequence, int tokens, Error *error);
/* Of the reserved step: its place in the cache, for run->position = the sequence's length. */
void kv_run(const KvSequence *sequence, SequenceChunk *chunk);
/* After a step wrote them. Frees pages that no later row sees, or not exactly. */
void kv_advance(KvCache *cache, KvSequence *sequence, int tokens);
/* Forgets positions ≥ length. False when what a row there would see (of a window, or exactly) is gone, or when a state
 * would have to go back. */
NODISCARD bool kv_truncate(KvCache *cache, KvSequence *sequence, int length);
/* to (fresh, of the same format) becomes a copy of from: all pages are shared. */
void kv_fork(KvCache *cache, const KvSequence *from, KvSequence *to);
