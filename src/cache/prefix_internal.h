/* The nodes of a PrefixCache and the pages they hold, for the files of PrefixCache. */
#pragma once
#include "cache/kv_internal.h"
#include "cache/prefix.h"

enum { PREFIX_SLOTS_MAX = KV_GROUPS_MAX * KV_GROUP_PAGES_MAX };

/* In a list from the most to the least recently used. */
typedef struct PrefixLink {
    struct PrefixNode *newer, *older;
} PrefixLink;

typedef enum PrefixOrder { PREFIX_USED, PREFIX_STALE, PREFIX_ORDERS } PrefixOrder;

/* How the layers are coded behind one text of `after` tokens, and that text's codes. */
typedef struct PrefixDecision {
    KvQuant *layers;  /* [layer] */
    uint64_t *pairs;  /* what their bias_pairs point into */
    int first, end;   /* pages whose codes are here */
    int32_t *pages[]; /* [page][2·layer], of after / KV_PAGE_TOKENS pages: as a node's codes */
} PrefixDecision;

typedef struct PrefixNode {
    struct PrefixNode *parent;    /* NULL: the root of a space and format */
    struct PrefixNode **children; /* by tokens, ascending */
    int child_count, child_room;
    int depth; /* pages from the root up to this one's end */
    int count; /* tokens; fewer than a page: no children */
    PrefixLink link[PREFIX_ORDERS];
    uint32_t stale; /* bit s: the page of slot s serves earlier ends only; any: the node is in the list of stale ones */
    int32_t pages[PREFIX_SLOTS_MAX]; /* [slot] in full precision; −1: none */
    int16_t held[PREFIX_SLOTS_MAX];  /* [slot] of the node's tokens, so many were there when the page was taken over */
    int32_t *quant;                  /* [2·layer] keys', then values' pages of each layer; NULL: none */
    PrefixDecision *decision;     /* of the node at depth after / KV_PAGE_TOKENS, and of all below it; NULL: none yet */
    uint64_t ids[KV_PAGE_TOKENS]; /* content id of each position */
} PrefixNode;

typedef struct PrefixRoot {
    uint64_t salt;
    bool quantised;
    KvFormat format; /* zero unless coded */
    PrefixNode *node;
} PrefixRoot;

/* A node has a slot for each page of each group that lies in its positions. */
typedef struct PrefixSlot {
    int group, index; /* the slot is for page `index` of `each` of this group, in the order of positions */
    int each;
} PrefixSlot;

struct PrefixCache {
    KvCache *kv;
    PrefixSlot slots[PREFIX_SLOTS_MAX];
    int slot_count;
    PrefixRoot *roots; /* by space and format, ascending */
    int root_count, root_room;
    PrefixNode *newest[PREFIX_ORDERS], *oldest[PREFIX_ORDERS];
    int listed[PREFIX_ORDERS];
    PrefixStats stats;
};

/* What a continuation at a length needs of a sequence's pages. */
typedef struct PrefixNeed {
    int length;
    int sink;                 /* of quantised groups the pages before this one, */
    int first[KV_GROUPS_MAX]; /* and of every group its pages from this one on */
    int codes_end;            /* quantised pages from sink up to this token; sink: none */
} PrefixNeed;
/* codes_end: pages coded so far; −1: nothing is coded, nor to be. */
PrefixNeed prefix_need(const PrefixCache *prefix, const KvFormat *format, int length, int codes_end);
/* Whether the slot's page is needed of the node that is page number `page` of a sequence. */
bool prefix_needs(const PrefixCache *prefix, const PrefixNeed *need, int slot, int page);
/* Whether the node has the slot's page with all its rows before `count` tokens of the node. */
bool prefix_has(const PrefixCache *prefix, const PrefixNode *node, int slot, int count);
/* The number of the slot's page in its group's table, for the node that is page number `page`. */
static inline int prefix_group_page(const PrefixCache *prefix, int slot, int page) {
    return page * prefix->slots[slot].each + prefix->slots[slot].index;
}

/* ---- prefix_nodes.c ---- */

void prefix_renew(PrefixCache *prefix, PrefixOrder order, PrefixNode *node);
void prefix_set_stale(PrefixCache *prefix, PrefixNode *node, uint32_t stale);
/* From a tip to its root, so that a page is never older than what follows it. */
void prefix_touch(PrefixCache *prefix, PrefixNode *node);
PrefixRoot prefix_root_key(uint64_t salt, const KvSequence *sequence);
/* Where this root is, or belongs. */
int prefix_root_place(const PrefixCache *prefix, const PrefixRoot *key, bool *found);
PrefixNode *prefix_open_root(
    PrefixCache *prefix, const PrefixRoot *key);               /* the one there is, or new; NULL: no memory */
void prefix_close_root(PrefixCache *prefix, PrefixNode *node); /* which has no children */
int prefix_common_tokens(const PrefixNode *node, const uint64_t *ids, int count);
/* The first child that is not before these tokens; those that share most with them are it and the one before. */
int prefix_child_place(const PrefixNode *node, const uint64_t *ids, int count);
PrefixNode *prefix_child_at(const PrefixNode *node, int place); /* NULL: out of range */
PrefixNode *prefix_add_child(PrefixCache *prefix, PrefixNode *parent, int place, const uint64_t *ids, int count);
void prefix_remove_tip(PrefixCache *prefix, PrefixNode *node); /* its root, too, if that was its only child */

/* ---- prefix_pages.c ---- */

/* Takes over what the node is short of; page: its number in the sequence. False: no memory. */
NODISCARD bool prefix_hold(
    PrefixCache *prefix, PrefixNode *node, int page, const KvSequence *sequence, const PrefixNeed *need);
NODISCARD bool prefix_hold_decision(PrefixCache *prefix, PrefixNode *node, const KvSequence *sequence);
void prefix_release_slot(PrefixCache *prefix, PrefixNode *node, int slot);
/* All pages; the decision, too, where it is the node's own. */
void prefix_release_pages(PrefixCache *prefix, PrefixNode *node);
bool prefix_holds(const PrefixCache *prefix, const PrefixNode *node);
/* Bytes that nobody else holds; whether the stale ones among its pages have any. */
size_t prefix_node_idle(const PrefixCache *prefix, const PrefixNode *node);
bool prefix_frees_stale(const PrefixCache *prefix, const PrefixNode *node);
/* The sequence gets the pages of the node, which is page number `page` of it. */
void prefix_lend(PrefixCache *prefix, const PrefixNode *node, int page, const PrefixNeed *need, KvSequence *sequence);
void prefix_lend_decision(
    PrefixCache *prefix, const PrefixDecision *decision, const PrefixNeed *need, KvSequence *sequence);
