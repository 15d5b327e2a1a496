/* The prefix cache: pages of finished or published sequences, found again by sequences whose text begins alike. A radix
 * tree over content ids; a node stands for KV_PAGE_TOKENS positions of one text (the last node of a branch may have
 * fewer) and holds the pages of each group that lie in them, and their quantised pages.
 *
 * A sequence that is found equals what a cold run has at that length, bit for bit: with windows and recurrent states
 * the pages that the next row reads, with quantised entries quantised pages up to the hot window and full-precision
 * pages from there on. The tree therefore keeps of a sequence what a continuation from its end needs; earlier positions
 * keep only their quantised pages, so that quantisation saves memory here too. A sequence can also be published on its
 * way, where other texts are likely to part from it: behind a system prompt, or where one has parted already
 * (prefix_common()). The quantisation of entries follows from the first `after` tokens of a sequence: the tree keeps
 * that decision, and the quantised pages of these tokens, where a text of so many tokens ends, since texts that share
 * less may be decided differently.
 *
 * Memory is the cache's, under its one budget. When the budget is spent, two kinds of pages are evicted in this order:
 * full-precision pages that only an end with a later end behind it needs, unless texts first part there; then the pages
 * at the tips of branches, the least recently used first. Pages that sequences hold too free nothing and stay.
 *
 * Content ids: 64 bits for each position. The content id of a token is its id; other content (a part of an image) has a
 * digest with its upper half set. Threads: the engine thread. */
#pragma once
#include "cache/kv_cache.h"

typedef struct PrefixCache PrefixCache;

enum {
    PREFIX_NODES_MAX = 1 << 16, /* each some 1,400 bytes besides its pages */
    PREFIX_PART_LEAST = 16,     /* tokens of a partly used page: it is copied, so fewer are computed again instead,
                                   unless there are recurrent states */
};

typedef struct PrefixStats {
    size_t bytes;       /* bytes of the pages held, alone or shared with sequences */
    size_t state_bytes; /* the part of them that are recurrent states */
    int nodes;
    uint64_t evictions; /* pages evicted for memory */
} PrefixStats;

/* Evicts pages for the cache from now on. The cache is borrowed and outlives it. */
NODISCARD PrefixCache *prefix_open(KvCache *cache, Error *error);
/* Partly used pages are found from so many tokens on, in place of PREFIX_PART_LEAST. */
void prefix_set_part_least(PrefixCache *prefix, int tokens);
void prefix_close(PrefixCache *prefix); /* NULL is fine */
void prefix_clear(PrefixCache *prefix); /* removes every node, whether or not that frees memory */

/* Makes a fresh sequence the longest beginning of this text that the tree has in the sequence's format, and returns its
 * length; 0: none. Only sequences of the same salt are found. ids: [count]. */
int prefix_find(PrefixCache *prefix, uint64_t salt, const uint64_t *ids, int count, KvSequence *sequence);
/* Whether sequences of this format free pages that a continuation from an earlier position needs: with windows,
 * recurrent states and quantised entries. Of others every beginning can be continued. */
bool prefix_forgets(const PrefixCache *prefix, const KvSequence *sequence);
/* Positions up to which this text agrees with one in the tree, whether or not the tree has the pages to continue there.
 */
int prefix_common(const PrefixCache *prefix, uint64_t salt, const uint64_t *ids, int count, const KvSequence *sequence);
/* Publishes a sequence whose content ids are ids [sequence->length]: the tree shares its pages, as many as there is
 * memory for nodes. The sequence copies its last page when it continues. */
void prefix_insert(PrefixCache *prefix, uint64_t salt, const uint64_t *ids, const KvSequence *sequence);
/* Bytes of pages that no sequence holds: what evicting everything would free. */
size_t prefix_idle_bytes(const PrefixCache *prefix);
PrefixStats prefix_stats(const PrefixCache *prefix);
