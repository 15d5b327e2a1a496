/* What sequences leave behind to be found by later ones: a radix tree over tokens whose nodes are pages. A node stands
 * for one page of text (the last one of a branch may hold fewer tokens) and holds, of each group, the exact page, and
 * its pages of codes. A sequence that is found is what a cold run would have at that length, bit for bit: of windows
 * the pages before it, of coded layers codes up to the hot window and exact pages from there on. What is kept of a
 * sequence is therefore what a continuation from its end needs; further back only codes stay, so that the memory that
 * codes save is saved here too. A sequence can be left on its way, too, where others are likely to part from it: behind
 * a system prompt, or where one has parted already (prefix_common()). How layers are coded follows from a sequence's
 * first `after` tokens: that decision and the codes of these pages are kept where the text of so many tokens ends, as
 * texts that share less may be decided otherwise.
 *
 * Memory is the cache's, under its one budget: when that is spent, exact pages go first that only an end with a later
 * end behind it needs, unless texts first part there, as behind a system prompt; then the pages at the tips of
 * branches, those least recently used first. Pages that sequences hold too would free nothing and stay. Threads: the
 * engine thread. */
#pragma once
#include "cache/kv_cache.h"

typedef struct PrefixCache PrefixCache;

enum {
    PREFIX_NODES_MAX = 1 << 16, /* each some 700 bytes besides its pages */
    PREFIX_PART_LEAST = 16,     /* tokens of a page that is begun: it is copied, so a few are sooner computed again */
};

typedef struct PrefixStats {
    size_t bytes; /* of pages that it holds, alone or together with sequences */
    int nodes;
    uint64_t evictions; /* pages that made room */
} PrefixStats;

/* Answers the cache's asking for room from now on. The cache outlives it. */
NODISCARD PrefixCache *prefix_open(KvCache *cache, Error *error);
void prefix_close(PrefixCache *prefix); /* NULL is fine */
void prefix_clear(PrefixCache *prefix); /* forgets everything, also what sequences hold too */

/* sequence (fresh) becomes the longest beginning of the tokens that is there, in its own format; its length. Only what
 * was left in the same space is found. */
int prefix_find(PrefixCache *prefix, uint64_t salt, const uint64_t *ids, int count, KvSequence *sequence);
/* Whether sequences like this one give back what a continuation from an earlier place would need: as codes and windows
 * do. Of others every beginning is there. */
bool prefix_forgets(const PrefixCache *prefix, const KvSequence *sequence);
/* How many of the tokens, in whole pages, are the beginning of something that was left, whether or not there is enough
 * of it to be found. */
int prefix_common(const PrefixCache *prefix, uint64_t salt, const uint64_t *ids, int count, const KvSequence *sequence);
/* Keeps what the sequence holds, whose text these tokens are; as much of it as there is memory for nodes. The sequence
 * copies its last page when it goes on. */
void prefix_insert(PrefixCache *prefix, uint64_t salt, const uint64_t *ids, const KvSequence *sequence);
/* Bytes that nobody else holds: what could be had by forgetting. */
size_t prefix_idle_bytes(const PrefixCache *prefix);
PrefixStats prefix_stats(const PrefixCache *prefix);
