/* The fields of a KvCache, for the files of this folder. */
#pragma once
#include "cache/kv_cache.h"
#include "cache/page_pool.h"

enum {
    QUANT_KINDS_MAX = PAGE_KINDS_MAX - 2 * KV_GROUPS_MAX,
    KV_ENTRY_ALIGN = 64, /* every entry's part of a page starts on a cache line */
};

struct KvCache {
    const KvPlan *plan;
    PagePool *pool;                    /* a group's number is the kind of its pages */
    int snapshot_kinds[KV_GROUPS_MAX]; /* [group] recurrent groups: the kind of pages of snapshots; others: −1 */
    int table_pages;                   /* entries of a sequence's table */
    KvLayer *entries;
    int first_quant_kind; /* behind the kinds of groups and snapshots */
    int quant_kind_count;
    struct {
        Backend *backend;
        size_t bytes;
    } quant_kind[QUANT_KINDS_MAX];
    int (*k_kinds)[KV_FORMS], (*v_kinds)[KV_FORMS]; /* [entry] the kind of each form's pages */
    KvQuantise *encode;                             /* [entry] */
    KvCalibration *calibration;                     /* [entry] */
};

/* Pages of a group that so many tokens fill or begin. */
static inline int kv_group_pages(const KvPlan *plan, int group, int64_t tokens) {
    const int page = plan->group[group].page_tokens;
    return (int)((tokens + page - 1) / page);
}
/* The first page of a group that a row at this position, or a later one, reads. */
static inline int kv_first_page(const KvPlan *plan, int group, int position) {
    const int window = plan->group[group].window;
    return (window && position >= window ? position - window + 1 : 0) / plan->group[group].page_tokens;
}
/* Pages of KV_PAGE_TOKENS that so many tokens fill or begin. */
static inline int kv_pages(int64_t tokens) { return (int)((tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS); }

/* ---- kv_snapshot.c ---- */

/* A snapshot of a recurrent group is a page of another kind, with the anchors and first rows of a page: all that a
 * sequence needs which ends at the first row. Others would need the rows up to their end, and share the page itself. */
static inline bool kv_ends_at_first_row(const KvPlan *plan, int group, int length) {
    return plan->group[group].recurrent && length % plan->group[group].page_tokens == 1;
}
/* Bytes of an entry's part of a snapshot. */
size_t kv_snapshot_entry_bytes(const KvLayout *layout);
/* Copies the first row of a page of the group to a snapshot, or of a snapshot to a page. */
void kv_snapshot_write(KvCache *cache, int group, int32_t snapshot, int32_t page);
void kv_snapshot_read(KvCache *cache, int group, int32_t snapshot, int32_t page);

/* ---- kv_quant_pages.c ---- */

/* Whether pages of this entry can be kept quantised. */
bool kv_entry_quantised(const KvPlan *plan, int entry);
size_t kv_quant_bytes_for(const KvPlan *plan, const KvFormat *format, int group, int tokens);
NODISCARD bool kv_quant_pages_open(KvCache *cache, const KvFormat *format, KvSequence *sequence, Error *error);
void kv_quant_pages_close(KvCache *cache, KvSequence *sequence);
/* Decides the form of entries and quantises the pages that rows of the coming step read in quantised form. */
NODISCARD bool kv_quant_pages_reserve(KvCache *cache, KvSequence *sequence, int tokens, Error *error);
/* Frees full-precision pages that no row from the sequence's length on reads. */
void kv_quant_pages_advance(KvCache *cache, KvSequence *sequence);
/* Whether the full-precision pages that a row at this position reads are there. */
bool kv_quant_pages_can_truncate(const KvCache *cache, const KvSequence *sequence, int length);
void kv_quant_pages_truncate(KvCache *cache, KvSequence *sequence, int length);
void kv_quant_pages_fork(KvCache *cache, const KvSequence *from, KvSequence *to);
