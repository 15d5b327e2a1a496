#include "cache/prefix.h"

#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "cache/prefix_internal.h"

enum { SIBLINGS = 8 }; /* nodes on either side that may have a place to go on from */

/* ---- making room ---- */

static bool evict_stale(PrefixCache *p) {
    for (int i = p->listed[PREFIX_STALE]; i > 0; i--) {
        PrefixNode *node = p->oldest[PREFIX_STALE];
        if (!prefix_frees_stale(p, node)) { /* in use by a sequence */
            prefix_renew(p, PREFIX_STALE, node);
            continue;
        }
        for (int s = 0; s < p->slot_count; s++) {
            if (!(node->stale >> s & 1)) continue;
            prefix_release_slot(p, node, s);
            p->stats.evictions++;
        }
        prefix_set_stale(p, node, 0);
        return true;
    }
    return false;
}

/* Removes the least recently used tip; idle: only one that frees memory. */
static bool evict_tip(PrefixCache *p, bool idle) {
    for (int i = 2 * p->listed[PREFIX_USED]; i > 0 && p->stats.nodes > 0;
         i--) { /* twice: its parent may become a tip */
        PrefixNode *node = p->oldest[PREFIX_USED];
        const bool frees = prefix_node_idle(p, node) > 0;
        if (node->child_count > 0 || (idle && !frees && prefix_holds(p, node))) {
            prefix_renew(p, PREFIX_USED, node);
            continue;
        }
        prefix_remove_tip(p, node);
        p->stats.evictions += frees;
        if (frees || !idle) return true;
    }
    return false;
}

static bool evict(void *context) {
    PrefixCache *p = context;
    return evict_stale(p) || evict_tip(p, true);
}

PrefixCache *prefix_open(KvCache *cache, Error *error) {
    PrefixCache *p = calloc(1, sizeof *p);
    if (!p) {
        fail(error, ERROR_MEMORY, "no memory for a prefix cache");
        return NULL;
    }
    p->kv = cache;
    p->part_least = PREFIX_PART_LEAST;
    for (int g = 0; g < cache->plan->group_count; g++) {
        const int each = KV_PAGE_TOKENS / cache->plan->group[g].page_tokens;
        if (cache->plan->group[g].recurrent) p->part_least = 1; /* the next place to go on from may be far back */
        for (int i = 0; i < each; i++) p->slots[p->slot_count++] = (PrefixSlot){.group = g, .index = i, .each = each};
    }
    page_pool_set_evict(cache->pool, evict, p);
    return p;
}

void prefix_set_part_least(PrefixCache *p, int tokens) { p->part_least = tokens; }

void prefix_clear(PrefixCache *p) {
    while (p->stats.nodes > 0) {
        const bool removed = evict_tip(p, false);
        CHECK(removed);
    }
    CHECK(p->stats.bytes == 0 && p->root_count == 0);
}

void prefix_close(PrefixCache *p) {
    if (!p) return;
    prefix_clear(p);
    page_pool_set_evict(p->kv->pool, NULL, NULL);
    free(p->roots);
    free(p);
}

/* ---- finding ---- */

/* A way down the tree. */
typedef struct Walk {
    PrefixNode *node;
    int start[KV_GROUPS_MAX];   /* [group] the group's pages are there without a gap from this one up to the node */
    int leading[KV_GROUPS_MAX]; /* [group] this many are there from the beginning of the text on */
    int quant_end;              /* token up to which quantised pages are there; −1: no decision yet */
} Walk;

typedef struct Found {
    PrefixNode *tip; /* the last node, which may have more tokens than `need`; NULL: nothing was found */
    PrefixNeed need;
    bool active;
} Found;

/* Adds the pages of a node for a text that ends at this length, within or behind the node. */
static void walk_pages(const PrefixCache *p, Walk *walk, const PrefixNode *node, int length) {
    for (int s = 0; s < p->slot_count; s++) {
        const int g = p->slots[s].group, page = prefix_group_page(p, s, node->depth - 1);
        if (page >= kv_group_pages(p->kv->plan, g, length)) continue;
        if (!prefix_has(p, node, s, length - (node->depth - 1) * KV_PAGE_TOKENS))
            walk->start[g] = page + 1;
        else if (walk->leading[g] == page)
            walk->leading[g] = page + 1;
    }
}

static void walk_quant(Walk *walk, PrefixNode *node) {
    const int before = (node->depth - 1) * KV_PAGE_TOKENS;
    if (!node->decision) return;
    if (walk->quant_end < 0)
        walk->quant_end = node->decision->end * KV_PAGE_TOKENS;
    else if (node->quant && walk->quant_end == before)
        walk->quant_end = before + KV_PAGE_TOKENS;
}

/* Whether a sequence can begin with what the walk has seen. */
static bool is_whole(const PrefixCache *p, const Walk *walk, const PrefixNeed *need) {
    const KvPlan *plan = p->kv->plan;
    const int sink = min_int(need->sink, kv_pages(need->length));
    for (int g = 0; g < plan->group_count; g++)
        if (need->first[g] < walk->start[g] || (plan->group[g].quantised && walk->leading[g] < sink)) return false;
    return true;
}

static void consider(
    const PrefixCache *p, const KvSequence *sequence, const Walk *walk, PrefixNode *tip, int length, Found *found) {
    const KvFormat *format = sequence->quant ? &sequence->quant->format : NULL;
    if (!format || length <= format->after) {
        const PrefixNeed need = prefix_need(p, format, length, -1);
        if (is_whole(p, walk, &need)) *found = (Found){tip, need, false};
    }
    if (format && walk->quant_end >= 0 && length >= format->after) {
        const PrefixNeed need = prefix_need(p, format, length, walk->quant_end);
        if (is_whole(p, walk, &need)) *found = (Found){tip, need, true};
    }
}

static void consider_inside(
    const PrefixCache *p, const KvSequence *sequence, const Walk *walk, PrefixNode *child, int count, Found *found) {
    const int length = walk->node->depth * KV_PAGE_TOKENS + count;
    if (count < p->part_least || (found->tip && found->need.length >= length)) return;
    Walk part = *walk;
    walk_pages(p, &part, child, length);
    consider(p, sequence, &part, child, length, found);
}

/* A node of which only the first tokens are used: as many as agree, or fewer, where the text was published before. */
static void consider_part(const PrefixCache *p, const KvSequence *sequence, const Walk *walk, PrefixNode *child,
    const uint64_t *ids, int count, Found *found) {
    const int common = child ? prefix_common_tokens(child, ids, count) : 0;
    if (common < p->part_least) return;
    consider_inside(p, sequence, walk, child, common, found);
    for (int s = 0; s < p->slot_count; s++)
        if (child->pages[s] >= 0 && child->held[s] < common)
            consider_inside(p, sequence, walk, child, child->held[s], found);
}

/* The next node has all tokens that agree, but others beside it may have been left earlier in the same page. */
static Found find(const PrefixCache *p, const KvSequence *sequence, PrefixNode *root, const uint64_t *ids, int count) {
    Found found = {0};
    Walk walk = {.node = root, .quant_end = -1};
    walk_quant(&walk, root);
    for (;;) {
        const int at = walk.node->depth * KV_PAGE_TOKENS, left = count - at;
        const int wanted = left < KV_PAGE_TOKENS ? left : KV_PAGE_TOKENS;
        const int place = prefix_child_place(walk.node, ids + at, wanted);
        PrefixNode *next = prefix_child_at(walk.node, place);
        const bool whole = next && wanted == KV_PAGE_TOKENS && prefix_common_tokens(next, ids + at, wanted) == wanted;
        for (int i = place - SIBLINGS; i < place + SIBLINGS; i++)
            consider_part(p, sequence, &walk, prefix_child_at(walk.node, i), ids + at, wanted, &found);
        if (!whole) return found;
        walk.node = next;
        walk_pages(p, &walk, next, at + KV_PAGE_TOKENS);
        walk_quant(&walk, next);
        consider(p, sequence, &walk, next, at + KV_PAGE_TOKENS, &found);
    }
}

static Found look_up(const PrefixCache *p, uint64_t salt, const uint64_t *ids, int count, const KvSequence *sequence) {
    const PrefixRoot key = prefix_root_key(salt, sequence);
    bool known;
    const int at = prefix_root_place(p, &key, &known);
    return known ? find(p, sequence, p->roots[at].node, ids, count) : (Found){0};
}

/* Its pages are needed from now on: they are the last to be evicted. */
static void keep(PrefixCache *p, const Found *found) {
    for (PrefixNode *node = found->tip; node->parent; node = node->parent) {
        uint32_t stale = node->stale;
        for (int s = 0; s < p->slot_count; s++)
            if (prefix_needs(p, &found->need, s, node->depth - 1)) stale &= ~(UINT32_C(1) << s);
        if (stale != node->stale) prefix_set_stale(p, node, stale);
    }
    prefix_touch(p, found->tip);
}

/* Groups of which a snapshot is found, so that a sequence needs pages of its own. Bit g: group g. */
static uint32_t snapshot_groups(const PrefixCache *p, const Found *found) {
    uint32_t groups = 0;
    for (int s = 0; found->tip && s < p->slot_count; s++)
        if (found->tip->snapshots >> s & 1 && prefix_needs(p, &found->need, s, found->tip->depth - 1))
            groups |= UINT32_C(1) << p->slots[s].group;
    return groups;
}

/* Takes a page of each of these groups; −1 for others. False: there is no memory. May evict. */
static bool take_pages(PrefixCache *p, uint32_t groups, int32_t fresh[KV_GROUPS_MAX]) {
    bool ok = true;
    for (int g = 0; g < p->kv->plan->group_count; g++) {
        fresh[g] = groups >> g & 1 ? page_take(p->kv->pool, g) : -1;
        ok = ok && (fresh[g] >= 0 || !(groups >> g & 1));
    }
    return ok;
}

int prefix_find(PrefixCache *p, uint64_t salt, const uint64_t *ids, int count, KvSequence *sequence) {
    CHECK(sequence->length == 0 && sequence->reserved == 0);
    int32_t fresh[KV_GROUPS_MAX];
    Found found = look_up(p, salt, ids, count, sequence);
    const uint32_t groups = snapshot_groups(p, &found);
    if (found.tip) keep(p, &found);
    const bool room = take_pages(p, groups, fresh);
    if (groups) found = look_up(p, salt, ids, count, sequence); /* something of it may have been evicted */
    const bool lends = found.tip && room && (snapshot_groups(p, &found) & ~groups) == 0;
    if (lends && found.active) prefix_lend_decision(p, found.tip->decision, &found.need, sequence);
    for (PrefixNode *node = found.tip; lends && node->parent; node = node->parent)
        prefix_lend(p, node, node->depth - 1, &found.need, fresh, sequence);
    if (lends) keep(p, &found);
    if (lends) sequence->length = sequence->reserved = found.need.length;
    for (int g = 0; g < p->kv->plan->group_count; g++)
        if (fresh[g] >= 0) page_release(p->kv->pool, g, fresh[g]);
    return sequence->length;
}

bool prefix_forgets(const PrefixCache *p, const KvSequence *sequence) {
    const KvPlan *plan = p->kv->plan;
    bool forgets = sequence->quant != NULL;
    for (int g = 0; g < plan->group_count; g++) forgets = forgets || plan->group[g].window > 0;
    return forgets;
}

int prefix_common(const PrefixCache *p, uint64_t salt, const uint64_t *ids, int count, const KvSequence *sequence) {
    const PrefixRoot key = prefix_root_key(salt, sequence);
    bool known;
    const int at = prefix_root_place(p, &key, &known);
    const PrefixNode *node = known ? p->roots[at].node : NULL;
    int common = 0, more = KV_PAGE_TOKENS;
    while (node && more == KV_PAGE_TOKENS) {
        const int left = min_int(count - common, KV_PAGE_TOKENS);
        const int place = prefix_child_place(node, ids + common, left);
        const PrefixNode *next = prefix_child_at(node, place), *before = prefix_child_at(node, place - 1);
        more = next ? prefix_common_tokens(next, ids + common, left) : 0;
        if (before) more = max_int(more, prefix_common_tokens(before, ids + common, left));
        common += more;
        node = next;
    }
    return common;
}

/* ---- publishing ---- */

/* Whether a child of the node differs from these ids: neither is a beginning of the other. */
static bool parts(const PrefixNode *node, const uint64_t *ids, int count) {
    bool differs = false;
    for (int i = 0; !differs && i < node->child_count; i++) {
        const int common = prefix_common_tokens(node->children[i], ids, count);
        differs = common < node->children[i]->count && common < count;
    }
    return differs;
}

/* Pages after which this text first parts from another one in the tree; 0: nowhere. */
static int first_parting(const PrefixNode *node, const uint64_t *ids, int count) {
    while (node && node->depth * KV_PAGE_TOKENS < count) {
        const int at = node->depth * KV_PAGE_TOKENS, left = count - at < KV_PAGE_TOKENS ? count - at : KV_PAGE_TOKENS;
        if (node->parent && parts(node, ids + at, left)) return node->depth;
        node = prefix_child_at(node, prefix_child_place(node, ids + at, left));
        if (node && (node->count < KV_PAGE_TOKENS || prefix_common_tokens(node, ids + at, left) < KV_PAGE_TOKENS))
            break;
    }
    return 0;
}

/* What continuations need at the end of a text, and where it first parts from other texts, which are likely to come
 * again. */
typedef struct Kept {
    PrefixNeed end, parting;
} Kept;

/* Marks pages that neither needs: they serve earlier ends only. */
static void mark_stale(PrefixCache *p, PrefixNode *node, const Kept *kept) {
    uint32_t stale = 0;
    const int page = node->depth - 1;
    for (int s = 0; s < p->slot_count; s++)
        if (node->pages[s] >= 0 && !prefix_needs(p, &kept->end, s, page) && !prefix_needs(p, &kept->parting, s, page))
            stale |= UINT32_C(1) << s;
    prefix_set_stale(p, node, stale);
}

static PrefixNeed need_of(const PrefixCache *p, const KvSequence *s, int length) {
    const KvQuantPages *quant = s->quant;
    const bool active = quant && quant->active && length >= quant->format.after;
    return prefix_need(p, quant ? &quant->format : NULL, length, active ? quant->end : -1);
}

/* Whether the child ended earlier in the same text. It becomes the longer one and keeps pages that only a continuation
 * from its earlier end needs. */
static bool extends(const PrefixNode *child, const uint64_t *ids, int count) {
    return child && child->count < count && prefix_common_tokens(child, ids, count) == child->count;
}

/* The child for these ids, a new one if there is none. NULL: no memory. */
static PrefixNode *enter(PrefixCache *p, PrefixNode *node, const uint64_t *ids, int count) {
    const int place = prefix_child_place(node, ids, count);
    PrefixNode *next = prefix_child_at(node, place), *before = prefix_child_at(node, place - 1);
    if (next && next->count == count && prefix_common_tokens(next, ids, count) == count) return next;
    if (!extends(before, ids, count)) return prefix_add_child(p, node, place, ids, count);
    memcpy(before->ids, ids, (size_t)count * sizeof *ids); /* the order among the children stays the same */
    before->count = count;
    return before;
}

static bool has_all(const PrefixCache *p, const PrefixNode *node, int count, const PrefixNeed *need) {
    for (int s = 0; s < p->slot_count; s++)
        if (!prefix_has(p, node, s, count) && prefix_needs(p, need, s, node->depth - 1)) return false;
    return true;
}

/* A child that begins with these ids and has all pages that they need, so that none has a page of another. */
static PrefixNode *covering(
    const PrefixCache *p, const PrefixNode *node, const uint64_t *ids, int count, const PrefixNeed *need) {
    int place = prefix_child_place(node, ids, count);
    PrefixNode *next = prefix_child_at(node, place);
    while (next && prefix_common_tokens(next, ids, count) == count && !has_all(p, next, count, need))
        next = prefix_child_at(node, ++place);
    return next && prefix_common_tokens(next, ids, count) == count ? next : NULL;
}

static bool publish(PrefixCache *p, PrefixNode **at, const uint64_t *ids, const KvSequence *s, const Kept *kept,
    int32_t snapshots[KV_GROUPS_MAX]) {
    PrefixNode *node = *at;
    const PrefixNeed *need = &kept->end;
    const KvQuantPages *quant = s->quant;
    const bool active = quant && quant->active;
    for (int page = 0; page < kv_pages(need->length); page++) {
        const int begin = page * KV_PAGE_TOKENS, left = s->length - begin;
        const int count = left < KV_PAGE_TOKENS ? left : KV_PAGE_TOKENS;
        if (active && begin == quant->format.after && !prefix_hold_decision(p, node, s)) return false;
        PrefixNode *next = count < KV_PAGE_TOKENS ? covering(p, node, ids + begin, count, need) : NULL;
        if (!next) next = enter(p, node, ids + begin, count);
        if (!next) return false;
        *at = node = next;
        const bool held = prefix_hold(p, node, page, s, need, snapshots);
        mark_stale(p, node, kept);
        if (!held) return false;
    }
    return true;
}

void prefix_insert(PrefixCache *p, uint64_t salt, const uint64_t *ids, const KvSequence *sequence) {
    if (sequence->length == 0) return;
    const int pages = kv_pages(sequence->length);
    while (p->stats.nodes > 0 && p->stats.nodes + pages > PREFIX_NODES_MAX) (void)evict_tip(p, false);
    int32_t snapshots[KV_GROUPS_MAX];
    const bool whole = look_up(p, salt, ids, sequence->length, sequence).need.length == sequence->length;
    const KvSequence none = {0};
    prefix_take_snapshots(p, whole ? &none : sequence, snapshots); /* first of all, because it may evict nodes */
    const PrefixRoot key = prefix_root_key(salt, sequence);
    PrefixNode *root = prefix_open_root(p, &key), *last = root;
    if (!root) {
        prefix_release_snapshots(p, snapshots);
        return;
    }
    const int parting = first_parting(root, ids, sequence->length) * KV_PAGE_TOKENS;
    const Kept kept = {need_of(p, sequence, sequence->length), need_of(p, sequence, parting)};
    (void)publish(p, &last, ids, sequence, &kept, snapshots); /* pages without memory for nodes are not published */
    prefix_touch(p, last);
    prefix_release_snapshots(p, snapshots); /* that it had no use for */
    if (root->child_count == 0) prefix_close_root(p, root);
}

size_t prefix_idle_bytes(const PrefixCache *p) {
    size_t bytes = 0;
    for (const PrefixNode *node = p->newest[PREFIX_USED]; node; node = node->link[PREFIX_USED].older)
        bytes += prefix_node_idle(p, node);
    return bytes;
}

PrefixStats prefix_stats(const PrefixCache *p) { return p->stats; }
