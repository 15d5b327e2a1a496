/* Pages of nodes: shared with sequences and released. */
#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "cache/prefix_internal.h"

/* ---- what a continuation needs ---- */

PrefixNeed prefix_need(const PrefixCache *prefix, const KvFormat *format, int length, int quant_end) {
    const KvPlan *plan = prefix->kv->plan;
    PrefixNeed need = {.length = length};
    int exact = 0; /* first full-precision page of quantised groups */
    if (quant_end >= 0) {
        const KvQuantView view = {.after = format->after, .hot = format->hot, .sink = format->sink};
        exact = min_int(kv_cold_end(&view, length), quant_end) / KV_PAGE_TOKENS;
        need.sink = format->sink / KV_PAGE_TOKENS;
        need.quant_end = quant_end;
    }
    for (int g = 0; g < plan->group_count; g++) {
        need.first[g] = plan->group[g].quantised ? exact : kv_first_page(plan, g, length);
    }
    return need;
}

bool prefix_needs(const PrefixCache *prefix, const PrefixNeed *need, int slot, int page) {
    const KvPlan *plan = prefix->kv->plan;
    const int group = prefix->slots[slot].group, number = prefix_group_page(prefix, slot, page);
    if (number >= kv_group_pages(plan, group, need->length)) return false;
    return number >= need->first[group] || (plan->group[group].quantised && page < need->sink);
}

bool prefix_has(const PrefixCache *prefix, const PrefixNode *node, int slot, int count) {
    const PrefixSlot *s = &prefix->slots[slot];
    const int end = (s->index + 1) * (KV_PAGE_TOKENS / s->each);
    return node->pages[slot] >= 0 && node->held[slot] >= min_int(count, end);
}

/* ---- references ---- */

/* The counter of bytes of recurrent states; NULL: pages of this kind have none. */
static size_t *state_bytes(PrefixCache *prefix, int kind) {
    const KvPlan *plan = prefix->kv->plan;
    for (int g = 0; g < plan->group_count; g++)
        if (plan->group[g].recurrent && (kind == g || kind == prefix->kv->snapshot_kinds[g]))
            return &prefix->stats.state_bytes;
    return NULL;
}

/* Counts a page that the tree holds from now on. */
static void count_held(PrefixCache *prefix, int kind) {
    const size_t bytes = page_pool_page_bytes(prefix->kv->pool, kind);
    prefix->stats.bytes += bytes;
    if (state_bytes(prefix, kind)) *state_bytes(prefix, kind) += bytes;
}

static void retain(PrefixCache *prefix, int kind, int32_t page) {
    page_retain(prefix->kv->pool, kind, page);
    count_held(prefix, kind);
}

static void release(PrefixCache *prefix, int kind, int32_t page) {
    const size_t bytes = page_pool_page_bytes(prefix->kv->pool, kind);
    page_release(prefix->kv->pool, kind, page);
    prefix->stats.bytes -= bytes;
    if (state_bytes(prefix, kind)) *state_bytes(prefix, kind) -= bytes;
}

static bool is_snapshot(const PrefixNode *node, int slot) { return node->snapshots >> slot & 1; }

/* The kind of the page that a node has in a slot. */
static int slot_kind(const PrefixCache *prefix, const PrefixNode *node, int slot) {
    const int group = prefix->slots[slot].group;
    return is_snapshot(node, slot) ? prefix->kv->snapshot_kinds[group] : group;
}

static int quant_kind_of(const KvCache *kv, const KvQuant *layers, int i) {
    const int n = kv->plan->entry_count;
    return i < n ? kv->k_kinds[i][layers[i].k] : kv->v_kinds[i - n][layers[i - n].v];
}

static void release_quant(PrefixCache *prefix, const KvQuant *layers, int32_t *quant) {
    for (int i = 0; quant && i < 2 * prefix->kv->plan->entry_count; i++)
        if (quant[i] >= 0) release(prefix, quant_kind_of(prefix->kv, layers, i), quant[i]);
    free(quant);
}

/* Shares the quantised pages of all entries at one page of the sequence. NULL: no memory. */
static int32_t *hold_quant(PrefixCache *prefix, const KvSequence *sequence, int page) {
    const KvQuantPages *from = sequence->quant;
    const int n = prefix->kv->plan->entry_count;
    int32_t *quant = malloc(2 * (size_t)n * sizeof *quant);
    for (int i = 0; quant && i < 2 * n; i++) {
        quant[i] = i < n ? from->k_pages[i][page] : from->v_pages[i - n][page];
        if (quant[i] >= 0) retain(prefix, quant_kind_of(prefix->kv, from->layers, i), quant[i]);
    }
    return quant;
}

/* ---- holding ---- */

void prefix_take_snapshots(PrefixCache *prefix, const KvSequence *sequence, int32_t snapshots[KV_GROUPS_MAX]) {
    KvCache *kv = prefix->kv;
    for (int g = 0; g < kv->plan->group_count; g++) {
        snapshots[g] = -1;
        if (!kv_ends_at_first_row(kv->plan, g, sequence->length)) continue;
        const int32_t page = sequence->tables[g][sequence->length / kv->plan->group[g].page_tokens];
        snapshots[g] = page_take(kv->pool, kv->snapshot_kinds[g]);
        if (snapshots[g] >= 0) kv_snapshot_write(kv, g, snapshots[g], page);
    }
}

void prefix_release_snapshots(PrefixCache *prefix, const int32_t snapshots[KV_GROUPS_MAX]) {
    for (int g = 0; g < prefix->kv->plan->group_count; g++)
        if (snapshots[g] >= 0) page_release(prefix->kv->pool, prefix->kv->snapshot_kinds[g], snapshots[g]);
}

/* Puts the sequence's page into a free slot, or the snapshot of it. */
static void hold_slot(PrefixCache *prefix, PrefixNode *node, int slot, int32_t own, int32_t *snapshot) {
    const bool own_copy = *snapshot >= 0;
    node->pages[slot] = own_copy ? *snapshot : own;
    node->snapshots |= (uint32_t)own_copy << slot;
    *snapshot = -1;
    if (own_copy)
        count_held(prefix, slot_kind(prefix, node, slot));
    else
        retain(prefix, slot_kind(prefix, node, slot), own);
}

bool prefix_hold(PrefixCache *prefix, PrefixNode *node, int page, const KvSequence *sequence, const PrefixNeed *need,
    int32_t snapshots[KV_GROUPS_MAX]) {
    const int tokens = min_int(KV_PAGE_TOKENS, need->length - page * KV_PAGE_TOKENS);
    for (int s = 0; s < prefix->slot_count; s++) {
        if (prefix_has(prefix, node, s, tokens) || !prefix_needs(prefix, need, s, page)) continue;
        const int group = prefix->slots[s].group;
        const int32_t own = sequence->tables[group][prefix_group_page(prefix, s, page)];
        if (own < 0) continue;
        prefix_release_slot(prefix, node, s);
        hold_slot(prefix, node, s, own, &snapshots[group]);
        node->held[s] = (int16_t)tokens;
    }
    if (!node->decision || node->quant || (page + 1) * KV_PAGE_TOKENS > need->quant_end) return true;
    if (page < node->decision->first || page * KV_PAGE_TOKENS < sequence->quant->format.after) return true;
    node->quant = hold_quant(prefix, sequence, page);
    return node->quant != NULL;
}

static PrefixDecision *copy_decision(const KvCache *kv, const KvQuantPages *quant) {
    const size_t layers = (size_t)kv->plan->entry_count;
    const size_t pages = (size_t)quant->format.after / KV_PAGE_TOKENS;
    size_t heads = 0;
    for (size_t i = 0; i < layers; i++) heads += (size_t)kv->entries[i].layout.kv_heads;
    PrefixDecision *decision = calloc(1, sizeof *decision + pages * sizeof *decision->pages);
    if (!decision) return NULL;
    decision->layers = malloc(layers * sizeof *decision->layers);
    decision->pairs = calloc(heads ? heads : 1, sizeof *decision->pairs);
    if (!decision->layers || !decision->pairs) {
        free(decision->layers);
        free(decision->pairs);
        free(decision);
        return NULL;
    }
    memcpy(decision->layers, quant->layers, layers * sizeof *decision->layers);
    uint64_t *pairs = decision->pairs;
    for (size_t i = 0; i < layers; pairs += kv->entries[i++].layout.kv_heads) {
        if (!quant->layers[i].bias_pairs) continue;
        memcpy(pairs, quant->layers[i].bias_pairs, (size_t)kv->entries[i].layout.kv_heads * sizeof *pairs);
        decision->layers[i].bias_pairs = pairs;
    }
    decision->first = decision->end = quant->format.sink / KV_PAGE_TOKENS;
    return decision;
}

bool prefix_hold_decision(PrefixCache *prefix, PrefixNode *node, const KvSequence *sequence) {
    const KvQuantPages *quant = sequence->quant;
    if (!node->decision) node->decision = copy_decision(prefix->kv, quant);
    PrefixDecision *decision = node->decision;
    if (!decision) return false;
    for (; decision->end < min_int(quant->end, quant->format.after) / KV_PAGE_TOKENS; decision->end++) {
        decision->pages[decision->end] = hold_quant(prefix, sequence, decision->end);
        if (!decision->pages[decision->end]) return false;
    }
    return true;
}

/* ---- releasing ---- */

void prefix_release_slot(PrefixCache *prefix, PrefixNode *node, int slot) {
    if (node->pages[slot] >= 0) release(prefix, slot_kind(prefix, node, slot), node->pages[slot]);
    node->pages[slot] = -1;
    node->snapshots &= ~(UINT32_C(1) << slot);
}

static bool owns_decision(const PrefixNode *node) {
    return node->decision && (!node->parent || node->parent->decision != node->decision);
}

void prefix_release_pages(PrefixCache *prefix, PrefixNode *node) {
    for (int s = 0; s < prefix->slot_count; s++) prefix_release_slot(prefix, node, s);
    PrefixDecision *decision = node->decision;
    if (node->quant) release_quant(prefix, decision->layers, node->quant);
    node->quant = NULL;
    if (owns_decision(node)) {
        for (int i = decision->first; i < decision->end; i++)
            release_quant(prefix, decision->layers, decision->pages[i]);
        free(decision->layers);
        free(decision->pairs);
        free(decision);
    }
    node->decision = NULL;
}

/* ---- what eviction would free ---- */

static size_t idle_quant(const PrefixCache *prefix, const KvQuant *layers, const int32_t *quant) {
    const KvCache *kv = prefix->kv;
    size_t bytes = 0;
    for (int i = 0; quant && i < 2 * kv->plan->entry_count; i++) {
        if (quant[i] < 0) continue;
        const int kind = quant_kind_of(kv, layers, i);
        if (page_owners(kv->pool, kind, quant[i]) == 1) bytes += page_pool_page_bytes(kv->pool, kind);
    }
    return bytes;
}

static size_t idle_slot(const PrefixCache *prefix, const PrefixNode *node, int slot) {
    const PagePool *pool = prefix->kv->pool;
    const int kind = slot_kind(prefix, node, slot);
    const int32_t page = node->pages[slot];
    return page >= 0 && page_owners(pool, kind, page) == 1 ? page_pool_page_bytes(pool, kind) : 0;
}

size_t prefix_node_idle(const PrefixCache *prefix, const PrefixNode *node) {
    size_t bytes = 0;
    for (int s = 0; s < prefix->slot_count; s++) bytes += idle_slot(prefix, node, s);
    const PrefixDecision *decision = node->decision;
    if (node->quant) bytes += idle_quant(prefix, decision->layers, node->quant);
    if (owns_decision(node))
        for (int i = decision->first; i < decision->end; i++)
            bytes += idle_quant(prefix, decision->layers, decision->pages[i]);
    return bytes;
}

bool prefix_frees_stale(const PrefixCache *prefix, const PrefixNode *node) {
    for (int s = 0; s < prefix->slot_count; s++)
        if (node->stale >> s & 1 && idle_slot(prefix, node, s) > 0) return true;
    return false;
}

bool prefix_holds(const PrefixCache *prefix, const PrefixNode *node) {
    for (int s = 0; s < prefix->slot_count; s++)
        if (node->pages[s] >= 0) return true;
    return node->quant || owns_decision(node);
}

/* ---- lending ---- */

static void lend_quant(
    PrefixCache *prefix, const KvQuant *layers, const int32_t *quant, int page, KvSequence *sequence) {
    const int n = prefix->kv->plan->entry_count;
    for (int i = 0; i < 2 * n; i++) {
        *(i < n ? &sequence->quant->k_pages[i][page] : &sequence->quant->v_pages[i - n][page]) = quant[i];
        if (quant[i] >= 0) page_retain(prefix->kv->pool, quant_kind_of(prefix->kv, layers, i), quant[i]);
    }
}

void prefix_lend(PrefixCache *prefix, const PrefixNode *node, int page, const PrefixNeed *need,
    int32_t fresh[KV_GROUPS_MAX], KvSequence *sequence) {
    for (int s = 0; s < prefix->slot_count; s++) {
        if (!prefix_needs(prefix, need, s, page)) continue;
        const int group = prefix->slots[s].group;
        int32_t *own = &sequence->tables[group][prefix_group_page(prefix, s, page)];
        CHECK(node->pages[s] >= 0);
        if (is_snapshot(node, s)) {
            *own = fresh[group];
            fresh[group] = -1;
            kv_snapshot_read(prefix->kv, group, node->pages[s], *own);
        } else {
            *own = node->pages[s];
            page_retain(prefix->kv->pool, group, *own);
        }
    }
    if (node->quant && (page + 1) * KV_PAGE_TOKENS <= need->quant_end)
        lend_quant(prefix, node->decision->layers, node->quant, page, sequence);
}

void prefix_lend_decision(
    PrefixCache *prefix, const PrefixDecision *decision, const PrefixNeed *need, KvSequence *sequence) {
    KvQuantPages *quant = sequence->quant;
    for (int i = 0; i < prefix->kv->plan->entry_count; i++) {
        uint64_t *pairs = quant->layers[i].bias_pairs;
        quant->layers[i] = decision->layers[i];
        quant->layers[i].bias_pairs = pairs;
        if (pairs)
            memcpy(
                pairs, decision->layers[i].bias_pairs, (size_t)prefix->kv->entries[i].layout.kv_heads * sizeof *pairs);
    }
    for (int page = decision->first; page < decision->end; page++)
        lend_quant(prefix, decision->layers, decision->pages[page], page, sequence);
    quant->active = true;
    quant->end = need->quant_end;
    const KvFormat *f = &quant->format;
    const KvQuantView view = {.after = f->after, .hot = f->hot, .sink = f->sink};
    quant->freed = min_int(kv_cold_end(&view, need->length), quant->end);
}
