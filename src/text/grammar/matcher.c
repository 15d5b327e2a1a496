/* States and their transitions. */
#include "text/grammar/matcher.h"

#include <stdlib.h>
#include <string.h>

#include "text/grammar/grammar.h"

enum { BUCKETS_FIRST = 256, MOVES_FIRST = 1024, MOVES_MAX = 1 << 20 };

/* --- Stacks ------------------------------------------------------------------------------------------------------- */

static uint32_t mix(uint32_t a, uint32_t b, uint32_t c) {
    uint64_t h = a;
    h = (h ^ b) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 29 ^ c) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32);
}

static bool rehash_stacks(Matcher *m) {
    const uint32_t want = m->stack_bucket_count ? m->stack_bucket_count * 2 : BUCKETS_FIRST;
    uint32_t *buckets = budget_alloc(m->budget, want * sizeof *buckets);
    if (!buckets) return false;
    memset(buckets, 0, want * sizeof *buckets);
    for (Stack i = 1; i < m->stack_count; i++) {
        StackNode *s = &m->stacks[i];
        uint32_t *bucket = &buckets[mix(s->expr, s->count, s->below) & (want - 1)];
        s->next = *bucket;
        *bucket = i;
    }
    budget_free(m->budget, m->stack_buckets, m->stack_bucket_count * sizeof *buckets);
    m->stack_buckets = buckets;
    m->stack_bucket_count = want;
    return true;
}

static Stack push(Matcher *m, Expr expr, uint32_t count, Stack below) {
    if (m->stack_count >= m->stack_bucket_count && !rehash_stacks(m)) return 0;
    const uint32_t hash = mix(expr, count, below);
    for (Stack i = m->stack_buckets[hash & (m->stack_bucket_count - 1)]; i; i = m->stacks[i].next) {
        const StackNode *s = &m->stacks[i];
        if (s->expr == expr && s->count == count && s->below == below) return i;
    }
    m->stacks = budget_grow(m->budget, m->stacks, &m->stack_capacity, (uint64_t)m->stack_count + 1, sizeof *m->stacks);
    if (m->budget->failed) return 0;
    uint32_t *bucket = &m->stack_buckets[hash & (m->stack_bucket_count - 1)];
    m->stacks[m->stack_count] = (StackNode){.expr = expr, .count = count, .below = below, .next = *bucket};
    *bucket = m->stack_count;
    return m->stack_count++;
}

/* --- States ------------------------------------------------------------------------------------------------------- */

static uint32_t hash_items(const Item *items, uint32_t count, bool ends) {
    uint32_t h = ends;
    for (uint32_t i = 0; i < count; i++) h = mix(h, items[i].lex, items[i].stack);
    return h;
}

static bool rehash_states(Matcher *m) {
    const uint32_t want = m->state_bucket_count ? m->state_bucket_count * 2 : BUCKETS_FIRST;
    uint32_t *buckets = budget_alloc(m->budget, want * sizeof *buckets);
    if (!buckets) return false;
    memset(buckets, 0, want * sizeof *buckets);
    for (State i = 1; i < m->state_count; i++) {
        StateNode *s = &m->states[i];
        uint32_t *bucket = &buckets[hash_items(m->items + s->first, s->count, s->ends) & (want - 1)];
        s->next = *bucket;
        *bucket = i;
    }
    budget_free(m->budget, m->state_buckets, m->state_bucket_count * sizeof *buckets);
    m->state_buckets = buckets;
    m->state_bucket_count = want;
    return true;
}

static int compare_items(const void *a, const void *b) {
    const Item *one = a, *other = b;
    if (one->lex != other->lex) return one->lex > other->lex ? 1 : -1;
    return (one->stack > other->stack) - (one->stack < other->stack);
}

/* The state of the items in m->found; sorts them. */
static State intern(Matcher *m, bool ends) {
    Item *items = m->found;
    uint32_t count = 0;
    if (m->budget->failed || (!m->found_count && !ends)) return STATE_DEAD;
    if (m->found_count > 1) qsort(items, m->found_count, sizeof *items, compare_items);
    for (uint32_t i = 0; i < m->found_count; i++)
        if (!count || compare_items(&items[count - 1], &items[i]) != 0) items[count++] = items[i];
    if (!budget_step(m->budget, count + 1)) return STATE_DEAD;
    if (count > GRAMMAR_ITEMS_MAX) {
        budget_fail(m->budget, ERROR_LIMIT, "the grammar has more than %d ways to read a text", GRAMMAR_ITEMS_MAX);
        return STATE_DEAD;
    }
    if (m->state_count >= m->state_bucket_count && !rehash_states(m)) return STATE_DEAD;
    const uint32_t hash = hash_items(items, count, ends);
    for (State i = m->state_buckets[hash & (m->state_bucket_count - 1)]; i; i = m->states[i].next) {
        const StateNode *s = &m->states[i];
        if (s->count == count && s->ends == ends && !memcmp(m->items + s->first, items, count * sizeof *items))
            return i;
    }
    m->states = budget_grow(m->budget, m->states, &m->state_capacity, (uint64_t)m->state_count + 1, sizeof *m->states);
    m->items = budget_grow(m->budget, m->items, &m->item_capacity, (uint64_t)m->item_count + count, sizeof *m->items);
    if (m->budget->failed) return STATE_DEAD;
    uint32_t *bucket = &m->state_buckets[hash & (m->state_bucket_count - 1)];
    m->states[m->state_count] = (StateNode){.first = m->item_count, .count = count, .ends = ends, .next = *bucket};
    *bucket = m->state_count;
    if (count) memcpy(m->items + m->item_count, items, count * sizeof *items);
    m->item_count += count;
    return m->state_count++;
}

static void add_item(Matcher *m, Item item) {
    m->found = budget_grow(m->budget, m->found, &m->found_capacity, (uint64_t)m->found_count + 1, sizeof *m->found);
    if (m->found_count < m->found_capacity) m->found[m->found_count++] = item;
}

/* --- Items readable from a stack ---------------------------------------------------------------------------------- */

static void later(Matcher *m, Stack stack) {
    if (m->budget->failed || (stack && m->stacks[stack].seen == m->seen)) return;
    if (stack) m->stacks[stack].seen = m->seen;
    m->pending =
        budget_grow(m->budget, m->pending, &m->pending_capacity, (uint64_t)m->pending_count + 1, sizeof *m->pending);
    if (m->pending_count < m->pending_capacity) m->pending[m->pending_count++] = stack;
}

/* A repeat after `count` repetitions. Beyond its bounds the count does not grow. */
static void open_repeat(Matcher *m, const ExprNode *n, Expr expr, uint32_t count, Stack below) {
    const uint32_t done = count + 1, still = n->max == LEX_FOREVER ? n->min : n->max;
    if (count >= n->min || m->rules->nodes[n->a].nullable) later(m, below);
    if (count >= n->max || !m->rules->nodes[n->a].productive) return;
    const bool last = done >= n->max;
    later(m, push(m, n->a, 0, last ? below : push(m, expr, done < still ? done : still, below)));
}

static void open_stack(Matcher *m, Stack stack) {
    const StackNode s = m->stacks[stack];
    const ExprNode *n = &m->rules->nodes[s.expr];
    switch (n->kind) {
    case EXPR_IS_EMPTY: later(m, s.below); break;
    case EXPR_IS_LEX:
        add_item(m, (Item){n->a, s.below});
        if (lex_nullable(m->lexicon, n->a)) later(m, s.below);
        break;
    case EXPR_IS_SEQ: {
        const Stack rest = s.count + 1 < n->b ? push(m, s.expr, s.count + 1, s.below) : s.below;
        later(m, push(m, m->rules->children[n->a + s.count], 0, rest));
        break;
    }
    case EXPR_IS_OR:
        for (uint32_t i = 0; i < n->b && !m->budget->failed; i++) {
            const Expr child = m->rules->children[n->a + i];
            if (m->rules->nodes[child].productive) later(m, push(m, child, 0, s.below));
        }
        break;
    case EXPR_IS_REPEAT: open_repeat(m, n, s.expr, s.count, s.below); break;
    case EXPR_IS_RULE: later(m, push(m, m->rules->rules[n->a].body, 0, s.below)); break;
    }
}

static State closure(Matcher *m, Stack stack) {
    if (m->stacks[stack].closure) return m->stacks[stack].closure;
    bool ends = false;
    m->seen++;
    m->found_count = m->pending_count = 0;
    later(m, stack);
    while (m->pending_count && budget_step(m->budget, 1)) {
        const Stack next = m->pending[--m->pending_count];
        if (next) {
            open_stack(m, next);
        } else {
            ends = true;
        }
    }
    const State state = intern(m, ends);
    if (!m->budget->failed) m->stacks[stack].closure = state;
    return state;
}

/* --- Steps -------------------------------------------------------------------------------------------------------- */

static void add_state(Matcher *m, State state, bool *ends) {
    const StateNode s = m->states[state];
    for (uint32_t i = 0; i < s.count; i++) add_item(m, m->items[s.first + i]);
    *ends = *ends || s.ends;
}

/* items: outside of m->items, or no state is created meanwhile. Closures come first: they use the same scratch. */
static State collect(Matcher *m, const Item *items, uint32_t count, bool ends) {
    for (uint32_t i = 0; i < count; i++)
        if (lex_nullable(m->lexicon, items[i].lex)) closure(m, items[i].stack);
    m->found_count = 0;
    for (uint32_t i = 0; i < count && !m->budget->failed; i++) {
        /* An item that is complete has no successors of its own. */
        if (items[i].lex != LEX_EMPTY) add_item(m, items[i]);
        if (lex_nullable(m->lexicon, items[i].lex)) add_state(m, m->stacks[items[i].stack].closure, &ends);
    }
    return intern(m, ends);
}

State matcher_state_of_items(Matcher *m, const Item *items, uint32_t count, bool ends) {
    m->found_count = 0;
    for (uint32_t i = 0; i < count; i++) add_item(m, items[i]);
    return intern(m, ends);
}

static State step(Matcher *m, State state, uint8_t byte) {
    const StateNode s = m->states[state];
    Item few[8], *moved = few;
    uint32_t count = 0;
    size_t size = 0;
    if (s.count > COUNT_OF(few)) {
        size = s.count * sizeof *moved;
        moved = budget_alloc(m->budget, size);
    }
    for (uint32_t i = 0; moved && i < s.count; i++) {
        const Lex next = lex_next(m->lexicon, m->items[s.first + i].lex, byte);
        if (next) moved[count++] = (Item){next, m->items[s.first + i].stack};
    }
    budget_step(m->budget, s.count);
    const State to = m->budget->failed || !count ? STATE_DEAD : collect(m, moved, count, false);
    if (size) budget_free(m->budget, moved, size);
    return to;
}

/* --- Transitions, remembered -------------------------------------------------------------------------------------- */

static Move *find_move(const Matcher *m, uint64_t key) {
    uint32_t at = mix((uint32_t)key, (uint32_t)(key >> 32), 0) & (m->move_capacity - 1);
    while (m->moves[at].key && m->moves[at].key != key) at = (at + 1) & (m->move_capacity - 1);
    return &m->moves[at];
}

static bool more_moves(Matcher *m) {
    Move *old = m->moves;
    const uint32_t had = m->move_capacity, want = had ? had * 2 : MOVES_FIRST;
    if (had >= MOVES_MAX) { /* enough remembered: begin anew */
        memset(old, 0, had * sizeof *old);
        m->move_count = 0;
        return true;
    }
    Move *moves = budget_alloc(m->budget, want * sizeof *moves);
    if (!moves) return false;
    memset(moves, 0, want * sizeof *moves);
    m->moves = moves;
    m->move_capacity = want;
    for (uint32_t i = 0; i < had; i++)
        if (old[i].key) *find_move(m, old[i].key) = old[i];
    budget_free(m->budget, old, had * sizeof *old);
    return true;
}

State matcher_step(Matcher *m, State state, uint8_t byte) {
    if (state == STATE_DEAD) return STATE_DEAD;
    const uint64_t key = (uint64_t)state * 256 + byte + 1;
    if (m->move_count >= m->move_capacity / 2 && !more_moves(m)) return STATE_DEAD;
    Move *move = find_move(m, key);
    if (move->key) return move->to;
    const State to = step(m, state, byte);
    if (m->budget->failed) return STATE_DEAD;
    *move = (Move){key, to};
    m->move_count++;
    return to;
}

State matcher_state_of(Matcher *m, Item item) {
    const uint64_t key = (uint64_t)1 << 63 | (uint64_t)item.stack << 32 | item.lex;
    if (m->move_count >= m->move_capacity / 2 && !more_moves(m)) return STATE_DEAD;
    Move *move = find_move(m, key);
    if (move->key) return move->to;
    const State to = collect(m, &item, 1, false);
    if (m->budget->failed) return STATE_DEAD;
    *move = (Move){key, to};
    m->move_count++;
    return to;
}

void matcher_find_heads(Matcher *m, State state) {
    const StateNode s = m->states[state];
    ByteSet heads = {{0}};
    for (uint32_t i = 0; i < s.count; i++) {
        const Lex lex = m->items[s.first + i].lex;
        const ByteSet *head = lex_head(m->lexicon, lex);
        const Lex *row = head ? NULL : lex_row(m->lexicon, lex);
        for (int k = 0; head && k < 4; k++) heads.bits[k] |= head->bits[k];
        for (unsigned b = 0; row && b < 256; b++) heads.bits[b / 64] |= (uint64_t)(row[b] != LEX_NONE) << (b % 64);
    }
    budget_step(m->budget, s.count);
    if (m->budget->failed) return;
    m->states[state].heads = heads;
    m->states[state].heads_known = true;
}

int matcher_only_byte(Matcher *m, State state) {
    if (m->states[state].ends || !state) return -1;
    if (!m->states[state].heads_known) matcher_find_heads(m, state);
    const ByteSet *heads = &m->states[state].heads;
    if (byteset_size(heads) != 1) return -1;
    int byte = 0;
    while (!byteset_has(heads, (uint8_t)byte)) byte++;
    return byte;
}

bool matcher_open(Matcher *m, Rules *rules, Rule root) {
    *m = (Matcher){.budget = rules->budget, .lexicon = rules->lexicon, .rules = rules};
    /* Number 0 of each is none: an empty stack, and the dead state. */
    m->stacks = budget_grow(m->budget, NULL, &m->stack_capacity, 1, sizeof *m->stacks);
    m->states = budget_grow(m->budget, NULL, &m->state_capacity, 1, sizeof *m->states);
    m->items = budget_grow(m->budget, NULL, &m->item_capacity, 1, sizeof *m->items);
    m->found = budget_grow(m->budget, NULL, &m->found_capacity, 1, sizeof *m->found);
    if (m->budget->failed) return false;
    m->stacks[m->stack_count++] = (StackNode){0};
    m->states[m->state_count++] = (StateNode){0};
    more_moves(m);
    m->stacks[0].closure = intern(m, true);
    m->start = closure(m, push(m, rules->rules[root].body, 0, 0));
    return !m->budget->failed;
}

void matcher_close(Matcher *m) {
    free(m->stacks);
    free(m->stack_buckets);
    free(m->states);
    free(m->state_buckets);
    free(m->items);
    free(m->moves);
    free(m->found);
    free(m->pending);
}
