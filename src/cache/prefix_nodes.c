/* Nodes of the prefix cache: roots by salt and format, children by content ids, lists by use. */
#include <stdlib.h>
#include <string.h>

#include "cache/prefix_internal.h"

enum { CHILDREN_LEAST = 2, ROOTS_LEAST = 8 };

/* ---- lists by use ---- */

static void list_remove(PrefixCache *p, PrefixOrder order, PrefixNode *node) {
    PrefixLink *link = &node->link[order];
    *(link->newer ? &link->newer->link[order].older : &p->newest[order]) = link->older;
    *(link->older ? &link->older->link[order].newer : &p->oldest[order]) = link->newer;
    *link = (PrefixLink){0};
    p->listed[order]--;
}

static void list_push(PrefixCache *p, PrefixOrder order, PrefixNode *node) {
    PrefixNode *first = p->newest[order];
    node->link[order] = (PrefixLink){.older = first};
    *(first ? &first->link[order].newer : &p->oldest[order]) = node;
    p->newest[order] = node;
    p->listed[order]++;
}

void prefix_renew(PrefixCache *p, PrefixOrder order, PrefixNode *node) {
    list_remove(p, order, node);
    list_push(p, order, node);
}

void prefix_set_stale(PrefixCache *p, PrefixNode *node, uint32_t stale) {
    if (node->stale) list_remove(p, PREFIX_STALE, node);
    node->stale = stale;
    if (stale) list_push(p, PREFIX_STALE, node);
}

void prefix_touch(PrefixCache *p, PrefixNode *node) {
    for (; node->parent; node = node->parent) prefix_renew(p, PREFIX_USED, node);
}

/* ---- roots ---- */

static int compare_root(const PrefixRoot *a, const PrefixRoot *b) {
    if (a->salt != b->salt) return a->salt < b->salt ? -1 : 1;
    if (a->quantised != b->quantised) return a->quantised ? 1 : -1;
    return memcmp(&a->format, &b->format, sizeof a->format);
}

PrefixRoot prefix_root_key(uint64_t salt, const KvSequence *sequence) {
    PrefixRoot key = {.salt = salt, .quantised = sequence->quant != NULL};
    if (key.quantised) key.format = sequence->quant->format;
    return key;
}

int prefix_root_place(const PrefixCache *p, const PrefixRoot *key, bool *found) {
    int low = 0, high = p->root_count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (compare_root(&p->roots[middle], key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *found = low < p->root_count && compare_root(&p->roots[low], key) == 0;
    return low;
}

static PrefixNode *new_node(PrefixNode *parent) {
    PrefixNode *node = calloc(1, sizeof *node);
    if (!node) return NULL;
    node->parent = parent;
    node->depth = parent ? parent->depth + 1 : 0;
    node->decision = parent ? parent->decision : NULL;
    for (int s = 0; s < PREFIX_SLOTS_MAX; s++) node->pages[s] = -1;
    return node;
}

/* Grows an array that is full; returns its address, which may have changed. NULL: no memory. */
static void *grow(void *entries, int count, int *room, int least, size_t size) {
    if (count < *room) return entries;
    const int more = *room ? 2 * *room : least;
    void *larger = realloc(entries, (size_t)more * size);
    if (larger) *room = more;
    return larger;
}

PrefixNode *prefix_open_root(PrefixCache *p, const PrefixRoot *key) {
    bool found;
    const int at = prefix_root_place(p, key, &found);
    if (found) return p->roots[at].node;
    PrefixRoot *roots = grow(p->roots, p->root_count, &p->root_room, ROOTS_LEAST, sizeof *roots);
    if (!roots) return NULL;
    p->roots = roots;
    PrefixNode *node = new_node(NULL);
    if (!node) return NULL;
    memmove(&roots[at + 1], &roots[at], (size_t)(p->root_count++ - at) * sizeof *roots);
    roots[at] = *key;
    roots[at].node = node;
    return node;
}

void prefix_close_root(PrefixCache *p, PrefixNode *node) {
    int at = 0;
    while (p->roots[at].node != node) at++;
    memmove(&p->roots[at], &p->roots[at + 1], (size_t)(--p->root_count - at) * sizeof *p->roots);
    prefix_release_pages(p, node);
    free(node->children);
    free(node);
}

/* ---- children ---- */

int prefix_common_tokens(const PrefixNode *node, const uint64_t *ids, int count) {
    const int most = node->count < count ? node->count : count;
    int same = 0;
    while (same < most && node->ids[same] == ids[same]) same++;
    return same;
}

static bool is_less(const PrefixNode *node, const uint64_t *ids, int count) {
    const int same = prefix_common_tokens(node, ids, count);
    if (same == node->count || same == count) return node->count < count;
    return node->ids[same] < ids[same];
}

int prefix_child_place(const PrefixNode *node, const uint64_t *ids, int count) {
    int low = 0, high = node->child_count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (is_less(node->children[middle], ids, count))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

PrefixNode *prefix_child_at(const PrefixNode *node, int place) {
    return place >= 0 && place < node->child_count ? node->children[place] : NULL;
}

PrefixNode *prefix_add_child(PrefixCache *p, PrefixNode *parent, int place, const uint64_t *ids, int count) {
    PrefixNode **children =
        grow(parent->children, parent->child_count, &parent->child_room, CHILDREN_LEAST, sizeof *children);
    if (!children) return NULL;
    parent->children = children;
    PrefixNode *node = new_node(parent);
    if (!node) return NULL;
    memmove(&children[place + 1], &children[place], (size_t)(parent->child_count++ - place) * sizeof *children);
    children[place] = node;
    node->count = count;
    memcpy(node->ids, ids, (size_t)count * sizeof *ids);
    list_push(p, PREFIX_USED, node);
    p->stats.nodes++;
    return node;
}

void prefix_remove_tip(PrefixCache *p, PrefixNode *node) {
    CHECK(node->child_count == 0);
    PrefixNode *parent = node->parent;
    const int at = prefix_child_place(parent, node->ids, node->count);
    CHECK(parent->children[at] == node);
    memmove(&parent->children[at], &parent->children[at + 1],
        (size_t)(--parent->child_count - at) * sizeof *parent->children);
    prefix_set_stale(p, node, 0);
    list_remove(p, PREFIX_USED, node);
    prefix_release_pages(p, node);
    free(node->children);
    free(node);
    p->stats.nodes--;
    if (!parent->parent && parent->child_count == 0) prefix_close_root(p, parent);
}
