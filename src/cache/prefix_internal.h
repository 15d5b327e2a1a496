/* The nodes of a PrefixCache and the pages they hold, for the files of PrefixCache. */
#pragma once
#include "cache/kv_internal.h"
#include "cache/prefix.h"

enum { PREFIX_SLOTS_MAX = KV_GROUPS_MAX * KV_GROUP_PAGES_MAX };

/* Links of a list from the most to the least recently used node. */
typedef struct PrefixLink {
    struct PrefixNode *newer, *older;
} PrefixLink;

typedef enum PrefixOrder { PREFIX_USED, PREFIX_STALE, PREFIX_ORDERS } PrefixOrder;

/* The quantisation of entries behind one text of `after` tokens, and that text's quantised pages. */
typedef struct PrefixDecision {
    KvQuant *layers;  /* [entry], owned */
    uint64_t *pairs;  /* memory of their bias_pairs, owned */
    int first, end;   /* range of pages[] that is filled */
    int32_t *pages[]; /* [after / KV_PAGE_TOKENS][2 · entries]: as PrefixNode.quant */
} PrefixDecision;

typedef struct PrefixNode {
    struct PrefixNode *parent;    /* NULL: the root of a salt and format */
    struct PrefixNode **children; /* in ascending order of ids */
    int child_count, child_room;
    int depth; /* nodes from the root to this one, itself included: it ends at depth · KV_PAGE_TOKENS */
    int count; /* tokens; fewer than KV_PAGE_TOKENS: no children */
    PrefixLink link[PREFIX_ORDERS];
    uint32_t stale; /* bit s: the page of slot s serves earlier ends only; any: the node is in the list of stale ones */
    int32_t pages[PREFIX_SLOTS_MAX]; /* [slot] in full precision; −1: none */
    int16_t held[PREFIX_SLOTS_MAX];  /* [slot] the node's tokens that the page had when it was shared */
    uint32_t snapshots;              /* bit s: the page of slot s is a snapshot (kv_internal.h), the tree's own */
    int32_t *quant;                  /* [2 · entries] quantised keys of each entry, then values; owned; NULL: none */
    PrefixDecision *decision; /* owned by the node at depth after / KV_PAGE_TOKENS, shared by all below; NULL: none */
    uint64_t ids[KV_PAGE_TOKENS]; /* content id of each position */
} PrefixNode;

typedef struct PrefixRoot {
    uint64_t salt;
    bool quantised;
    KvFormat format; /* zero unless quantised */
    PrefixNode *node;
} PrefixRoot;

/* A node has a slot for each page of each group that lies in its positions. */
typedef struct PrefixSlot {
    int group, index; /* the slot is for page `index` of `each` of this group, in the order of positions */
    int each;
} PrefixSlot;

struct PrefixCache {
    KvCache *kv;
    int part_least; /* tokens of a page that are used in part, at least */
    PrefixSlot slots[PREFIX_SLOTS_MAX];
    int slot_count;
    PrefixRoot *roots; /* in ascending order of salt and format */
    int root_count, root_room;
    PrefixNode *newest[PREFIX_ORDERS], *oldest[PREFIX_ORDERS];
    int listed[PREFIX_ORDERS];
    PrefixStats stats;
};

/* What a continuation at a length needs of a sequence's pages. */
typedef struct PrefixNeed {
    int length;
    int sink;                 /* pages of quantised groups before this one are needed */
    int first[KV_GROUPS_MAX]; /* [group] pages from this one on are needed */
    int quant_end;            /* quantised pages from sink up to this token; sink: none */
} PrefixNeed;
/* quant_end: tokens quantised so far; −1: nothing is quantised. */
PrefixNeed prefix_need(const PrefixCache *prefix, const KvFormat *format, int length, int quant_end);
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
/* Marks a tip and all its ancestors as used now: a node is never older than its children. */
void prefix_touch(PrefixCache *prefix, PrefixNode *node);
PrefixRoot prefix_root_key(uint64_t salt, const KvSequence *sequence);
/* The index of this root, or where it would be inserted. */
int prefix_root_place(const PrefixCache *prefix, const PrefixRoot *key, bool *found);
PrefixNode *prefix_open_root(
    PrefixCache *prefix, const PrefixRoot *key);               /* an existing or a new one; NULL: no memory */
void prefix_close_root(PrefixCache *prefix, PrefixNode *node); /* a root without children */
int prefix_common_tokens(const PrefixNode *node, const uint64_t *ids, int count);
/* The index of the first child that does not sort before these ids; this child and the one before it share most with
 * them. */
int prefix_child_place(const PrefixNode *node, const uint64_t *ids, int count);
PrefixNode *prefix_child_at(const PrefixNode *node, int place); /* NULL: out of range */
PrefixNode *prefix_add_child(PrefixCache *prefix, PrefixNode *parent, int place, const uint64_t *ids, int count);
void prefix_remove_tip(PrefixCache *prefix, PrefixNode *node); /* and its root, if that was its only child */

/* ---- prefix_pages.c ---- */

/* Makes snapshots of a sequence, those of groups that end at a first row, as far as there is memory; −1: none. May
 * evict. */
void prefix_take_snapshots(PrefixCache *prefix, const KvSequence *sequence, int32_t snapshots[KV_GROUPS_MAX]);
void prefix_release_snapshots(PrefixCache *prefix, const int32_t snapshots[KV_GROUPS_MAX]);
/* Shares the pages of the sequence that `need` asks for and the node lacks, or takes a snapshot over instead and leaves
 * −1; page: the node's number in the sequence. False: no memory. */
NODISCARD bool prefix_hold(PrefixCache *prefix, PrefixNode *node, int page, const KvSequence *sequence,
    const PrefixNeed *need, int32_t snapshots[KV_GROUPS_MAX]);
NODISCARD bool prefix_hold_decision(PrefixCache *prefix, PrefixNode *node, const KvSequence *sequence);
void prefix_release_slot(PrefixCache *prefix, PrefixNode *node, int slot);
/* Releases all pages, and the decision if the node owns it. */
void prefix_release_pages(PrefixCache *prefix, PrefixNode *node);
bool prefix_holds(const PrefixCache *prefix, const PrefixNode *node);
/* Bytes of pages that no sequence holds; whether some of these pages are stale. */
size_t prefix_node_idle(const PrefixCache *prefix, const PrefixNode *node);
bool prefix_frees_stale(const PrefixCache *prefix, const PrefixNode *node);
/* Gives the sequence those pages of the node, its page number `page`, that `need` asks for; of a snapshot, the page
 * fresh[group], which it takes over and leaves −1. */
void prefix_lend(PrefixCache *prefix, const PrefixNode *node, int page, const PrefixNeed *need,
    int32_t fresh[KV_GROUPS_MAX], KvSequence *sequence);
void prefix_lend_decision(
    PrefixCache *prefix, const PrefixDecision *decision, const PrefixNeed *need, KvSequence *sequence);
