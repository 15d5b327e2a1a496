/* Masks: walks of the vocabulary's tries. The tokens of an item do not depend on the other items of a state, so each
 * item is handled in its cheapest way: free text by the vocabulary's own masks; large counts as unbounded ones; items
 * close to free text, or to an item with a recent mask, by the difference to that; and all remaining items by one walk
 * of the whole trie. */
#include "text/grammar/mask.h"

#include <stdlib.h>

/* --- Kept masks --------------------------------------------------------------------------------------------------- */

static size_t mask_bytes(const Masks *masks, uint32_t count) {
    const size_t list = ((size_t)count + 1) / 2;
    return sizeof(Mask) + sizeof(uint64_t) * (count <= MASK_LIST_MAX ? list : masks->vocabulary->words);
}

void masks_forget(Masks *masks) {
    for (uint32_t i = 0; i < masks->count; i++) {
        if (masks->of[i]) budget_free(masks->matcher->budget, masks->of[i], mask_bytes(masks, masks->of[i]->count));
        masks->of[i] = NULL;
    }
    masks->bytes = 0;
}

/* Adds a mask that was kept; false: it was not. */
static bool add_kept(const Masks *masks, State state, uint64_t *mask) {
    const Mask *kept = state < masks->count ? masks->of[state] : NULL;
    if (!kept) return false;
    const uint32_t *list = (const uint32_t *)kept->data;
    if (kept->count > MASK_LIST_MAX) {
        for (size_t i = 0; i < masks->vocabulary->words; i++) mask[i] |= kept->data[i];
    } else {
        for (uint32_t i = 0; i < kept->count; i++) mask[list[i] / 64] |= (uint64_t)1 << (list[i] % 64);
    }
    return true;
}

/* Keeps a mask for the next time. When there is no room for it, it is computed again. */
static void keep(Masks *masks, State state, const uint64_t *mask) {
    Budget *budget = masks->matcher->budget;
    uint32_t count = 0;
    for (size_t i = 0; i < masks->vocabulary->words && count <= MASK_LIST_MAX; i++)
        if (mask[i]) count += (uint32_t)__builtin_popcountll(mask[i]);
    if (count > MASK_LIST_MAX) count = MASK_LIST_MAX + 1;
    const size_t bytes = mask_bytes(masks, count);
    if (masks->bytes + bytes > MASKS_BYTES_MAX) masks_forget(masks);
    masks->of = budget_grow(budget, masks->of, &masks->capacity, (uint64_t)state + 1, sizeof *masks->of);
    if (state >= masks->capacity) return;
    for (; masks->count <= state; masks->count++) masks->of[masks->count] = NULL;
    Mask *kept = budget_alloc(budget, bytes);
    if (!kept) return;
    kept->count = count;
    uint32_t *list = (uint32_t *)kept->data, found = 0;
    for (size_t i = 0; count <= MASK_LIST_MAX && i < masks->vocabulary->words; i++)
        for (uint64_t word = mask[i]; word; word &= word - 1)
            list[found++] = (uint32_t)(i * 64) + (uint32_t)__builtin_ctzll(word);
    if (count > MASK_LIST_MAX) memcpy(kept->data, mask, masks->vocabulary->words * sizeof *mask);
    masks->of[state] = kept;
    masks->bytes += bytes;
}

/* --- Walking ------------------------------------------------------------------------------------------------------ */

/* A state on the way. Within one lexeme that cannot be over yet, the row of the lexeme says all: no set is looked at.
 */
typedef struct Cursor {
    Lex lex;     /* LEX_NONE: at is a State */
    uint32_t at; /* otherwise the stack after the lexeme */
} Cursor;

static inline bool is_dead(Cursor c) { return !c.lex && !c.at; }

static Cursor cursor_of(const Matcher *m, State state) {
    uint32_t count;
    const Item *items = matcher_items(m, state, &count);
    const bool one = count == 1 && !m->states[state].ends && !lex_nullable(m->lexicon, items[0].lex);
    return one ? (Cursor){items[0].lex, items[0].stack} : (Cursor){LEX_NONE, state};
}

static inline Cursor cursor_step(Matcher *m, Cursor c, uint8_t byte) {
    if (!c.lex && !(c.at && matcher_may_follow(m, c.at, byte))) return (Cursor){LEX_NONE, STATE_DEAD};
    if (!c.lex) return cursor_of(m, matcher_step(m, c.at, byte));
    const Lex next = lex_next(m->lexicon, c.lex, byte);
    if (!next) return (Cursor){LEX_NONE, STATE_DEAD};
    if (!lex_nullable(m->lexicon, next)) return (Cursor){next, c.at};
    return cursor_of(m, matcher_state_of(m, (Item){next, c.at}));
}

static inline void set_tokens(const Trie *trie, uint32_t node, uint64_t *mask) {
    for (uint32_t i = trie->nodes[node].first; i < trie->nodes[node + 1].first; i++)
        mask[(uint32_t)trie->tokens[i] / 64] |= (uint64_t)1 << (trie->tokens[i] % 64);
}

/* Sets the tokens below a first byte. path[0] is where the walk begins. */
static void walk_below(Matcher *m, const Trie *trie, uint32_t begin, Cursor *path, uint64_t *mask) {
    const uint32_t end = trie->nodes[begin].skip;
    uint32_t steps = 0;
    for (uint32_t i = begin; i < end; steps++) {
        const TrieNode *node = &trie->nodes[i];
        const Cursor c = cursor_step(m, path[node->depth - 1], node->byte);
        if (is_dead(c)) {
            i = node->skip;
            continue;
        }
        set_tokens(trie, i, mask);
        path[node->depth] = c;
        i++;
    }
    budget_step(m->budget, steps);
}

static void walk(Matcher *m, const Trie *trie, Cursor from, uint64_t *mask) {
    Cursor path[TOKEN_BYTES_MAX + 1];
    path[0] = from;
    for (uint32_t i = 0; i < trie->count && !m->budget->failed; i = trie->nodes[i].skip)
        if (from.lex ? lex_next(m->lexicon, from.lex, trie->nodes[i].byte) != LEX_NONE
                     : matcher_may_follow(m, from.at, trie->nodes[i].byte))
            walk_below(m, trie, i, path, mask);
}

/* --- Free text ---------------------------------------------------------------------------------------------------- */

/* An item whose lexeme accepts any character of an alphabet again and again, to its end or for longer than tokens are.
 * chain: the lexemes after 0, 1, 2 … characters. */
typedef struct Free {
    Alphabet alphabet;
    uint32_t count;
    bool for_ever; /* all lexemes of the chain are equal */
    Lex chain[RUN_MAX];
} Free;

static bool is_free_of(Matcher *m, Item item, Free *run) {
    Lex lex = item.lex;
    for (run->count = 0; run->count < RUN_MAX; run->count++) {
        const Lex next = lex_behind(m->lexicon, lex, run->alphabet);
        /* Where the lexeme may end, the characters could belong to its successor. */
        if ((run->count || next == lex) && lex_nullable(m->lexicon, lex) && item.stack) return false;
        run->chain[run->count] = lex;
        run->for_ever = next == lex && run->count == 0;
        if (next == LEX_MIXED || (next == LEX_NONE && run->count == 0)) return false;
        if (next == LEX_NONE || run->for_ever) {
            run->count++;
            return true;
        }
        lex = next;
    }
    return true;
}

static void add_free(Masks *masks, Item item, const Free *run, uint64_t *mask) {
    Matcher *m = masks->matcher;
    const Vocabulary *v = masks->vocabulary;
    const Runs *runs = &v->runs[run->alphabet];
    if (run->for_ever || run->count > 1) {
        const uint64_t *whole = vocabulary_whole(v, run->alphabet, run->for_ever ? RUN_MAX : run->count - 1);
        for (size_t i = 0; i < v->words; i++) mask[i] |= whole[i];
    }
    if (run->for_ever) {
        walk(m, &runs->rests, (Cursor){item.lex, item.stack}, mask);
        return;
    }
    for (uint32_t chars = 0; chars < run->count; chars++)
        walk(m, &runs->rest_of[chars], (Cursor){run->chain[chars], item.stack}, mask);
    if (run->count == RUN_MAX) walk(m, &runs->longer, (Cursor){item.lex, item.stack}, mask);
}

/* --- Nearly free text --------------------------------------------------------------------------------------------- */

/* The free text that the item's lexeme becomes after most plain characters, or LEX_NONE. Keys that must differ from
 * some names are of this kind. */
static Lex nearly_free(Matcher *m, Item item) {
    enum { MOST = 60 };
    const Lex *row = lex_row(m->lexicon, item.lex);
    for (unsigned b = ' '; row && b < 0x7F; b += 13) {
        unsigned same = 0;
        if (!row[b]) continue;
        for (unsigned other = ' '; other < 0x7F; other++) same += row[other] == row[b];
        if (same >= MOST && lex_behind(m->lexicon, row[b], ALPHABET_PLAIN) == row[b] &&
            !lex_nullable(m->lexicon, row[b]))
            return row[b];
    }
    return LEX_NONE;
}

static inline bool same_cursor(Cursor a, Cursor b) { return a.lex == b.lex && a.at == b.at; }

/* mask has the tokens of `base`; changes them to the tokens of `from`. Where both cursors meet, the results are equal.
 */
static void walk_difference(Matcher *m, const Trie *trie, Cursor from, Cursor base, uint64_t *mask) {
    struct {
        Cursor from, base;
    } path[TOKEN_BYTES_MAX + 1];
    uint32_t steps = 0;
    path[0].from = from;
    path[0].base = base;
    for (uint32_t i = 0; i < trie->count; steps++) {
        const TrieNode *node = &trie->nodes[i];
        const Cursor c = cursor_step(m, path[node->depth - 1].from, node->byte);
        const Cursor b = cursor_step(m, path[node->depth - 1].base, node->byte);
        if (same_cursor(c, b)) {
            i = node->skip;
            continue;
        }
        if (is_dead(c)) {
            for (uint32_t k = node->first; k < trie->nodes[i + 1].first; k++)
                mask[(uint32_t)trie->tokens[k] / 64] &= ~((uint64_t)1 << (trie->tokens[k] % 64));
        } else {
            set_tokens(trie, i, mask);
        }
        path[node->depth].from = c;
        path[node->depth].base = b;
        i++;
    }
    budget_step(m->budget, steps);
}

static bool add_nearly_free(Masks *masks, Item item, uint64_t *mask) {
    Matcher *m = masks->matcher;
    const size_t words = masks->vocabulary->words;
    Free run = {.alphabet = ALPHABET_PLAIN};
    const Lex base = nearly_free(m, item);
    if (!base || lex_nullable(m->lexicon, item.lex) || !is_free_of(m, (Item){base, item.stack}, &run)) return false;
    memset(masks->base, 0, words * sizeof *masks->base);
    add_free(masks, (Item){base, item.stack}, &run, masks->base);
    walk_difference(
        m, &masks->vocabulary->all, (Cursor){item.lex, item.stack}, (Cursor){base, item.stack}, masks->base);
    for (size_t i = 0; i < words; i++) mask[i] |= masks->base[i];
    return true;
}

/* --- Long strings ------------------------------------------------------------------------------------------------- */

/* Where a count is too large for all but a few tokens, only these are walked; the other bits are those of any such
 * count. */
static bool add_counted(Masks *masks, Item item, uint64_t *mask) {
    Matcher *m = masks->matcher;
    const Vocabulary *v = masks->vocabulary;
    const Lex near = lex_within(m->lexicon, item.lex, TOKEN_BYTES_USUAL);
    if (near == item.lex) return false;
    const State state = matcher_state_of_items(m, &(Item){near, item.stack}, 1, false);
    if (!state || !masks_fill(masks, state, masks->near)) return true;
    for (size_t i = 0; i < v->words; i++) mask[i] |= masks->near[i] & v->usual[i];
    walk(m, &v->unusual, (Cursor){item.lex, item.stack}, mask);
    return true;
}

/* --- All else ----------------------------------------------------------------------------------------------------- */

/* So many characters may follow that a walk is long. */
static bool is_wide(Masks *masks, Lex lex) {
    enum { WIDE = 24 };
    const Lex *row = lex_row(masks->matcher->lexicon, lex);
    unsigned live = 0;
    for (unsigned b = ' '; row && b < 0x7F; b++) live += row[b] != LEX_NONE;
    return live >= WIDE;
}

/* A recently computed state that, after most characters, leads to the same lexeme as the item: usually a few bytes
 * earlier in the same string. STATE_DEAD: none. */
static State find_relative(Masks *masks, Item item) {
    enum { MOST = 60 };
    Matcher *m = masks->matcher;
    const Lex *row = lex_row(m->lexicon, item.lex);
    for (unsigned i = 0; row && i < RECENT_ITEMS; i++) {
        const State state = masks->recent[i];
        if (!state || state >= masks->count || !masks->of[state]) continue;
        const Item other = m->items[m->states[state].first];
        const Lex *its = other.stack == item.stack ? lex_row(m->lexicon, other.lex) : NULL;
        unsigned same = 0;
        for (unsigned b = ' '; its && b < 0x7F; b++) same += row[b] == its[b];
        if (same >= MOST) return state;
    }
    return STATE_DEAD;
}

/* Stored as the mask of this item alone, which other states share. */
static void add_wide(Masks *masks, Item item, uint64_t *mask) {
    Matcher *m = masks->matcher;
    const size_t words = masks->vocabulary->words;
    const State alone = matcher_state_of_items(m, &item, 1, false), relative = find_relative(masks, item);
    if (!alone || add_kept(masks, alone, mask)) return;
    memset(masks->base, 0, words * sizeof *masks->base);
    if (relative && add_kept(masks, relative, masks->base)) {
        const Item from = m->items[m->states[relative].first];
        walk_difference(
            m, &masks->vocabulary->all, (Cursor){item.lex, item.stack}, (Cursor){from.lex, from.stack}, masks->base);
    } else {
        walk(m, &masks->vocabulary->all, (Cursor){item.lex, item.stack}, masks->base);
    }
    for (size_t i = 0; i < words; i++) mask[i] |= masks->base[i];
    if (m->budget->failed) return;
    keep(masks, alone, masks->base);
    masks->recent[masks->recent_at++ % RECENT_ITEMS] = alone;
}

/* --- Masks -------------------------------------------------------------------------------------------------------- */

/* Any alphabet is correct; the one with the fewest rests is tried first. */
static bool add_item_tokens(Masks *masks, Item item, uint64_t *mask) {
    enum { NARROW = 8 };
    const ByteSet *head = lex_head(masks->matcher->lexicon, item.lex);
    if (head && byteset_size(head) < NARROW) return false; /* a literal: far from any */
    if (add_counted(masks, item, mask)) return true;
    for (int i = 0; i < ALPHABET_COUNT; i++) {
        Free run = {.alphabet = (Alphabet)i};
        if (is_free_of(masks->matcher, item, &run)) {
            add_free(masks, item, &run, mask);
            return true;
        }
        if (run.alphabet == ALPHABET_PLAIN && add_nearly_free(masks, item, mask)) return true;
    }
    if (!is_wide(masks, item.lex)) return false;
    add_wide(masks, item, mask);
    return true;
}

static void compute(Masks *masks, State state, uint64_t *mask) {
    Matcher *m = masks->matcher;
    const StateNode s = m->states[state];
    uint32_t rest = 0;
    const size_t size = (s.count + 1) * sizeof(Item);
    Item *others = budget_alloc(m->budget, size);
    for (uint32_t i = 0; others && i < s.count && !m->budget->failed; i++) {
        const Item item = m->items[s.first + i];
        if (!add_item_tokens(masks, item, mask)) others[rest++] = item;
    }
    if (others && rest) {
        const State walked = rest == s.count ? state : matcher_state_of_items(m, others, rest, false);
        walk(m, &masks->vocabulary->all, cursor_of(m, walked), mask);
    }
    if (others) budget_free(m->budget, others, size);
    for (size_t i = 0; s.ends && i < masks->vocabulary->end_count; i++) {
        const int32_t id = masks->vocabulary->ends[i];
        if (id >= 0 && (size_t)id < masks->vocabulary->count) mask[id / 64] |= (uint64_t)1 << (id % 64);
    }
}

/* A state with the same mask. */
static State alike(Masks *masks, State state) {
    Matcher *m = masks->matcher;
    const StateNode s = m->states[state];
    if (s.count != 1) return state;
    const Item item = m->items[s.first];
    const Lex lex = lex_within(m->lexicon, item.lex, masks->vocabulary->all.depth);
    return lex == item.lex ? state : matcher_state_of_items(m, &(Item){lex, item.stack}, 1, s.ends);
}

bool masks_fill(Masks *masks, State state, uint64_t *mask) {
    memset(mask, 0, masks->vocabulary->words * sizeof *mask);
    if (add_kept(masks, state, mask)) return true;
    const State same = alike(masks, state);
    if (same != state && add_kept(masks, same, mask)) return true;
    compute(masks, same, mask);
    if (masks->matcher->budget->failed) return false;
    if (same >= masks->count || !masks->of[same]) keep(masks, same, mask);
    return true;
}

State masks_token(Masks *masks, State state, int32_t token) {
    const Slice bytes = vocabulary_token(masks->vocabulary, token);
    for (size_t i = 0; i < bytes.size && state; i++)
        state = matcher_step(masks->matcher, state, (uint8_t)bytes.data[i]);
    return bytes.size ? state : STATE_DEAD;
}

/* Whether a token that begins with these bytes continues with an allowed one. */
static bool goes_on(const Masks *masks, State state, Slice bytes) {
    const Trie *trie = &masks->vocabulary->all;
    uint32_t begin = 0, end = trie->count;
    for (size_t i = 0; i < bytes.size; i++) {
        while (begin < end && trie->nodes[begin].byte != (uint8_t)bytes.data[i]) begin = trie->nodes[begin].skip;
        if (begin == end) return false;
        end = trie->nodes[begin++].skip;
    }
    for (; begin < end; begin = trie->nodes[begin].skip)
        if (matcher_may_follow(masks->matcher, state, trie->nodes[begin].byte)) return true;
    return false;
}

size_t masks_settled(const Masks *masks, State state, Slice bytes) {
    const size_t longest = masks->vocabulary->all.depth;
    for (size_t at = bytes.size > longest ? bytes.size - longest : 0; at < bytes.size; at++)
        if (goes_on(masks, state, (Slice){bytes.data + at, bytes.size - at})) return at;
    return bytes.size;
}

bool masks_open(Masks *masks, Matcher *matcher, const Vocabulary *vocabulary) {
    *masks = (Masks){.matcher = matcher, .vocabulary = vocabulary};
    masks->base = budget_alloc(matcher->budget, (2 * vocabulary->words + 1) * sizeof *masks->base);
    if (masks->base) masks->near = masks->base + vocabulary->words;
    return masks->base;
}

void masks_close(Masks *masks) {
    for (uint32_t i = 0; i < masks->count; i++) free(masks->of[i]);
    free(masks->of);
    free(masks->base);
}
