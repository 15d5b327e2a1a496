/* cache/: pages of sequences, their pool, page tables, the prefix cache and the disk tier. This folder computes
 * nothing: the contents of pages are the backend's.
 *
 * Pages are reference-counted. Entries of a model's cache whose pages live equally long (same page size, window and
 * backend) form a group; one page of a group holds these positions of all its entries. Full pages are immutable and can
 * be shared; the page being filled is copied before it is written while another sequence or the prefix cache holds it.
 * Groups with a window free pages that no later row reads. Recurrent states are groups of this kind (cache_spec.h).
 *
 * A sequence of a quantised format has, from `after` tokens on, quantised pages of each entry, and frees the
 * full-precision pages that no later row reads in full precision. What a row reads depends on its position alone
 * (KvQuantView), however the text is cut into steps. Threads: the engine thread; a plan is constant once it is made. */
#pragma once
#include "backend/backend.h"
#include "cache/cache_spec.h"
#include "cache/kv_format.h"
#include "cache/spill.h"

enum {
    KV_GROUPS_MAX = 8,
    KV_GROUP_PAGES_MAX = 4, /* pages of a group that cover KV_PAGE_TOKENS positions */
};

/* How the entries of a model's cache share pages, and how large these are. */
typedef struct KvPlan {
    int context;  /* tokens that a sequence may hold */
    int rows_max; /* rows of one sequence in a step, at most */
    int group_count;
    struct {
        int page_tokens; /* positions per page, a divisor of KV_PAGE_TOKENS */
        int window;      /* a row at position p reads positions > p − window; 0: all up to p */
        int rewind;      /* further positions that stay for kv_truncate() */
        bool recurrent;  /* its entries are states: pages that lie wholly inside a step are not stored */
        bool quantised;  /* its entries can be kept in quantised form */
        Backend *backend;
        size_t page_bytes;     /* bytes of a page of all its entries, one after another */
        size_t snapshot_bytes; /* recurrent: of the first row of a page, its anchor and that row of all its entries */
    } group[KV_GROUPS_MAX];
    int entry_count;
    KvLayer *entries; /* [entry_count], owned; without memory: base is NULL */
    int *layers;      /* [entry_count], owned; CacheSpec.layer of each */
} KvPlan;

/* specs and backends: [entry_count], borrowed for the call; backends[i] computes with entry i; entry_count may be 0.
 * Entries are quantised only where every backend of the plan can do so. ERROR_UNSUPPORTED: more than KV_GROUPS_MAX
 * groups. */
NODISCARD bool kv_plan_make(
    KvPlan *plan, const CacheSpec *specs, Backend *const *backends, int entry_count, int context, Error *error);
void kv_plan_free(KvPlan *plan); /* safe on a zeroed plan */
/* The most bytes that a sequence of this many tokens holds. format NULL: full precision. */
size_t kv_bytes_for(const KvPlan *plan, const KvFormat *format, int tokens);

/* Bytes of a snapshot of all recurrent entries in the prefix cache; 0: there are none. */
size_t kv_snapshot_bytes(const KvPlan *plan);

/* Bytes of a backend's memory that full-precision pages can take with this budget of kv_open(): what a device has to
 * give. Where all memory is backed at once, the parts that groups can take of the budget are added up, although they
 * cannot take them together. */
size_t kv_taken_bytes(const KvPlan *plan, const Backend *backend, size_t budget);

typedef struct KvCache KvCache;

/* The quantised side of a sequence. */
typedef struct KvQuantPages {
    KvFormat format;
    bool active;                  /* the form of each entry is decided: `after` tokens were held once */
    int end;                      /* tokens: pages from sink to here are quantised */
    int freed;                    /* tokens: pages from sink to here have no full-precision form any more */
    KvQuant *layers;              /* [entry], owned */
    int32_t **k_pages, **v_pages; /* [entry][page], owned; −1: none. Full pages, shared like others */
    KvQuantView view;             /* the above, as a step needs it */
} KvQuantPages;

typedef struct KvSequence {
    int length;          /* tokens held */
    int reserved;        /* tokens that the tables have pages for, ≥ length */
    int32_t **tables;    /* [group][position / page_tokens], owned; −1: not stored */
    KvQuantPages *quant; /* owned; NULL: everything stays in full precision */
    int tail_pages;      /* pages of KV_PAGE_TOKENS that tail_key stands for, ≤ length / KV_PAGE_TOKENS */
    SpillKey tail_key;   /* kept by the disk tier */
    int restoring;       /* length that the disk tier is continuing it to; recurrent entries are undefined until it is
                            reached; 0: not */
} KvSequence;

/* Page memory for at most budget_bytes over all groups. The plan is borrowed and outlives the cache. */
NODISCARD KvCache *kv_open(const KvPlan *plan, size_t budget_bytes, Error *error);
void kv_close(KvCache *cache);                   /* NULL is fine */
const KvPlan *kv_plan(const KvCache *cache);     /* borrowed */
const KvLayer *kv_entries(const KvCache *cache); /* [entry_count] the plan's, with their memory; borrowed */
size_t kv_bytes_used(const KvCache *cache);
size_t kv_bytes_total(const KvCache *cache);

/* Pages in use by form: full precision, or quantised keys or values. */
typedef struct KvUse {
    size_t bytes[KV_FORMS];
    uint64_t pages[KV_FORMS];
    int raised;  /* kv_sequence_use() of a quantised sequence: entries whose keys have a better form than asked for */
    float noise; /* the same: the largest KvQuant.noise of its entries */
} KvUse;
/* Both add to *use: the whole cache, every page once; or what one sequence holds, shared or not. */
void kv_use(const KvCache *cache, KvUse *use);
void kv_sequence_use(const KvCache *cache, const KvSequence *sequence, KvUse *use);

/* format NULL: full precision. Entries that cannot be quantised stay in full precision. Allocates the tables. */
NODISCARD bool kv_sequence_open(KvCache *cache, const KvFormat *format, KvSequence *sequence, Error *error);
void kv_sequence_close(KvCache *cache, KvSequence *sequence); /* safe on a zeroed one */
/* The most tokens that the next step may add: a step must not cross `after`, nor need quantised forms of pages that it
 * fills itself. At least 1; INT_MAX in full precision. */
int kv_step_rows(const KvSequence *sequence);
/* Reserves pages for `tokens` ≤ kv_step_rows() further positions, copies the page that will be written if it is shared,
 * and quantises pages that a row of the step reads in that form. ERROR_LIMIT: the pool is full, or the context ends;
 * the sequence then holds what it held, some pages perhaps in quantised form too. */
NODISCARD bool kv_reserve(KvCache *cache, KvSequence *sequence, int tokens, Error *error);
/* Sets tables, quant and position of a chunk for the reserved step, which begins at the sequence's length. */
void kv_run(const KvSequence *sequence, SequenceChunk *chunk);
/* Accepts the first `tokens` of the reserved positions, which a step has written; the others are written again. Frees
 * pages that no later row reads. With recurrent entries fewer than reserved can be accepted of a step of up to
 * page_tokens rows. */
void kv_advance(KvCache *cache, KvSequence *sequence, int tokens);
/* Forgets positions ≥ length. False, and nothing has changed: pages that a row there would read are gone. */
NODISCARD bool kv_truncate(KvCache *cache, KvSequence *sequence, int length);
/* `to`, fresh and of the same format, becomes a copy of `from`; all pages are shared. */
void kv_fork(KvCache *cache, const KvSequence *from, KvSequence *to);
