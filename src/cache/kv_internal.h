/* The fields of a KvCache, for the files of this folder. */
#pragma once
#include "cache/kv_cache.h"
#include "cache/page_pool.h"

enum { QUANT_KINDS_MAX = PAGE_KINDS_MAX - KV_GROUPS_MAX };

struct KvCache {
    const KvPlan *plan;
    PagePool *pool;  /* a group's number is the kind of its pages; kinds of quantised pages follow */
    int table_pages; /* entries of a sequence's table */
    KvLayer *entries;
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
